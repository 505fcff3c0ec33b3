"""JSON traces: Mooncake (a line a request), kv-cache-tester (a file a session), OpenTelemetry GenAI spans (a file a run)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from headway.traces.record import Call, TraceError
from headway.traces.rows import document, ids, objects, seconds, whole
from headway.traces.tables import moment

MOONCAKE_BLOCK = 512  # tokens: what Mooncake's FAST'25 traces hash at a time
TEXT_BLOCK = 16  # tokens
BYTES_A_TOKEN = 4  # where a trace holds text and no counts
MODEL_CALLS = ("chat", "text_completion", "generate_content")


def mooncake(path: Path) -> Iterator[Call]:
    """`timestamp` in ms, `hash_ids` global to the file."""
    for line, row in objects(path):
        tokens = whole(path, line, "input_length", row.get("input_length"), 1)
        blocks = ids(path, line, "hash_ids", row.get("hash_ids") or [], tokens, MOONCAKE_BLOCK)
        at = seconds(path, line, "timestamp", row.get("timestamp")) / 1e3
        out = whole(path, line, "output_length", row.get("output_length"))
        yield Call(at, tokens, out, block_size=MOONCAKE_BLOCK if blocks else 0, blocks=blocks)


def served(path: Path) -> Iterator[Call]:
    """Requests that an engine served, a line each: `arrival_time` (seconds of any clock), `input_toks`, `output_toks`."""
    first = None
    for line, row in objects(path):
        at = seconds(path, line, "arrival_time", row.get("arrival_time"))
        first = at if first is None else first
        tokens = whole(path, line, "input_toks", row.get("input_toks"), 1)
        yield Call(at - first, tokens, whole(path, line, "output_toks", row.get("output_toks")))


def weka(path: Path) -> Iterator[Call]:
    """One session, its clock starting at 0. Hash ids that are local to it get its name into their numbers."""
    page = document(path)
    name, rows = page.get("id"), page.get("requests")
    if not isinstance(name, str) or not isinstance(rows, list):
        raise TraceError(path, None, "no id or no requests: not a kv-cache-tester trace")
    block = whole(path, None, "block_size", page.get("block_size"), 1)
    base = 0 if page.get("hash_id_scope") == "global" else int.from_bytes(blake2b(name.encode(), digest_size=4).digest()) << 30
    yield from sorted(_weka(path, rows, name, "main", block, base, 0.0), key=lambda call: call.arrival)


def _weka(path: Path, rows: list[Any], name: str, thread: str, block: int, base: int, start: float) -> Iterator[Call]:
    for i, row in enumerate(rows):
        where = f"{thread} requests[{i}]"
        if not isinstance(row, dict):
            raise TraceError(path, None, f"{where} is not an object")
        at = start + seconds(path, None, f"{where}.t", row.get("t"))
        if isinstance(inner := row.get("requests"), list):  # a subagent; its calls count from its own start
            yield from _weka(path, inner, name, f"{thread}/s{i}", block, base, at)
            continue
        tokens = whole(path, None, f"{where}.in", row.get("in"), 1)
        named = ids(path, None, f"{where}.hash_ids", row.get("hash_ids"), tokens, block)
        out = whole(path, None, f"{where}.out", row.get("out"))
        yield Call(at, tokens, out, name, thread, block, tuple(base + i for i in named))


def otel(path: Path) -> Iterator[Call]:
    """Chats among the spans of one run, which is the session. Tokens as the span counted them, else four bytes each; what
    prompts share is seen in their text.
    """
    spans = document(path).get("spans")
    if not isinstance(spans, list):
        raise TraceError(path, None, "no spans: not an OpenTelemetry trace")
    chats = [found for i, span in enumerate(spans) if (found := _span(path, f"spans[{i}]", span))]
    chats.sort(key=lambda chat: chat[0].arrival)
    ends: list[float] = []  # by thread: when its latest call ended
    for call, end in chats:
        free = next((i for i, until in enumerate(ends) if until <= call.arrival), len(ends))
        ends[free : free + 1] = [end]
        yield replace(call, arrival=call.arrival - chats[0][0].arrival, thread=str(free))


def _span(path: Path, where: str, span: Any) -> tuple[Call, float] | None:
    """(call, when it ended), both in calendar seconds. None for a span that is no model call (a tool, an agent)."""
    marks = span.get("attributes") if isinstance(span, dict) else None
    if not isinstance(marks, dict):
        raise TraceError(path, None, f"{where} has no attributes")
    if marks.get("gen_ai.operation.name", "chat") not in MODEL_CALLS:
        return None
    said = marks.get("gen_ai.input.messages")
    try:
        messages = msgspec.json.decode(said) if isinstance(said, str) else said
    except msgspec.DecodeError as error:
        raise TraceError(path, None, f"{where}: gen_ai.input.messages is not JSON: {error}") from None
    if not isinstance(messages, list):
        raise TraceError(path, None, f"{where} has no gen_ai.input.messages")
    text = b"".join(msgspec.json.encode(message) for message in messages)
    answer = str(marks.get("gen_ai.output.text") or marks.get("gen_ai.output.messages") or "")
    tokens = _count(path, where, marks, "prompt_tokens", "input_tokens", text)
    out = _count(path, where, marks, "completion_tokens", "output_tokens", answer.encode())
    at = moment(path, None, f"{where}.start_time", str(span.get("start_time")))
    end = moment(path, None, f"{where}.end_time", str(span.get("end_time")))
    return Call(at, tokens, out, path.stem, "", TEXT_BLOCK, _text_ids(text, tokens)), end


def _count(path: Path, where: str, marks: dict[str, Any], older: str, newer: str, text: bytes) -> int:
    for name in (f"gen_ai.usage.{newer}", f"gen_ai.usage.{older}"):
        if name in marks:
            return whole(path, None, f"{where}: {name}", marks[name], 1)
    return max(1, len(text) // BYTES_A_TOKEN)


def _text_ids(text: bytes, tokens: int) -> tuple[int, ...]:
    """One id a whole block, made of all text up to the block's end."""
    step, out, seen = TEXT_BLOCK * BYTES_A_TOKEN, [], blake2b(digest_size=7)
    for i in range(min(tokens // TEXT_BLOCK, len(text) // step)):
        seen.update(text[i * step : (i + 1) * step])
        out.append(int.from_bytes(seen.digest()))
    return tuple(out)
