"""Handing a class's priority on to an engine with priority scheduling (vLLM: `--scheduling-policy priority`; lower runs first).

Only where the operator gave the class a priority. vLLM 0.33 takes a header, which leaves the body as it came; older ones take a
field of the body only (`--priority-by body`), so that there the body changes by this one field and nothing else.

Invariant: a priority that the client gave itself is left alone.
"""

from __future__ import annotations

import re

from headway.gateway.dialects.ask import Ask
from headway.gateway.transport.interface import RequestHead

HEADER = b"X-Vllm-Priority"
BY = ("header", "body")
TAKEN = frozenset({"chat", "completions"})
"""Dialects whose body has a field `priority`."""
_OBJECT = re.compile(rb"\s*\{(\s*\})?")


def in_head(request: RequestHead, priority: int) -> RequestHead:
    if request.get(HEADER.lower()) is not None:
        return request
    return RequestHead(request.method, request.target, [*request.headers, (HEADER, b"%d" % priority)])


def in_body(body: bytes, ask: Ask, dialect: str, priority: int) -> bytes:
    """The body with its first field `priority`; as it was where it has one, or cannot have one."""
    start = _OBJECT.match(body)
    if dialect not in TAKEN or "priority" in ask.piece or start is None or start.group(1) is not None:
        return body
    ask.piece = {**ask.piece, "priority": priority}
    return body[: start.end()] + b'"priority":%d,' % priority + body[start.end() :]
