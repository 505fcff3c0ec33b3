"""Which class a request belongs to: the operator's rules, first match wins; else what its client says; else `agent` for a coding
agent, `interactive` for anyone else.

Invariants
----------
1. A client can choose a class by a header only where that gives it no privilege: an *exempt* class needs a rule.
2. A rule that names several conditions needs all of them.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from headway.core.classes import AGENT, INTERACTIVE, NAMES, Classes, TrafficClass, default_classes
from headway.core.targets import Targets
from headway.errors import UsageError
from headway.gateway.transport.interface import RequestHead

SESSIONS = (
    b"x-session-id",
    b"x-claude-code-session-id",  # Claude Code
    b"session_id",  # Codex
    b"session-id",
    b"thread-id",
    b"x-opencode-session",  # opencode
    b"x-session-affinity",
    b"conversation_id",
)
"""Headers by which clients name a conversation."""
AGENTS = ("claude-cli/", "claude-code/", "codex_cli", "codex-tui", "codex_exec", "opencode/", "cline/", "openhands", "aider/")
"""How the User-Agent of a coding agent begins, in lower case."""
CHOICE = b"x-headway-class"
"""Header by which a client says its class."""
NUMBERS = ("share", "gap", "wait", "stretch")
FLAGS = ("protected", "exempt")
CONDITIONS = ("header", "value", "key", "model", "path", "agent")


@dataclass(slots=True, frozen=True)
class ClassRule:
    """`klass`, if all of the conditions hold that are given. Patterns are those of a shell: * and ?."""

    klass: str
    header: str = ""
    """A request header, present; with `value`: that matches the pattern."""
    value: str = "*"
    key: str = ""
    """The client's key: its bearer token or x-api-key."""
    model: str = ""
    """Pattern of the model's name, aliases included, as the client gives it."""
    path: str = ""
    agent: str = ""
    """Pattern of the User-Agent."""

    def matches(self, request: RequestHead, model: str) -> bool:
        if self.header and not self._has_header(request):
            return False
        if self.key and not any(hmac.compare_digest(self.key.encode(), key) for key in keys_of(request)):
            return False
        if self.model and not fnmatchcase(model, self.model):
            return False
        if self.path and not fnmatchcase(_text(request.target.partition(b"?")[0]), self.path):
            return False
        return not self.agent or fnmatchcase(_text(request.get(b"user-agent") or b""), self.agent)

    def _has_header(self, request: RequestHead) -> bool:
        value = request.get(self.header.lower().encode("latin-1"))
        return value is not None and fnmatchcase(_text(value), self.value)


def keys_of(request: RequestHead) -> list[bytes]:
    authorization = request.get(b"authorization") or b""
    scheme, _, token = authorization.partition(b" ")
    found = [token.strip()] if scheme.lower() == b"bearer" else []
    return [*found, *(key for key in (request.get(b"x-api-key"),) if key)]


def session_of(request: RequestHead) -> bytes | None:
    """What its client calls the conversation that a request belongs to."""
    for name in SESSIONS:
        value = request.get(name)
        if value:
            return value
    return None


def class_of(request: RequestHead, model: str, rules: Iterable[ClassRule], classes: Classes) -> str:
    for rule in rules:
        if rule.matches(request, model):
            return rule.klass
    choice = _text(request.get(CHOICE) or b"").strip().lower()
    if choice in classes and not classes[choice].exempt:
        return choice
    return AGENT if _text(request.get(b"user-agent") or b"").lower().startswith(AGENTS) else INTERACTIVE


def _text(value: bytes) -> str:
    return value.decode("latin-1")


# -- what the operator says ---------------------------------------------------------------------------


def parse_classes(texts: Iterable[str], targets: Targets) -> tuple[dict[str, TrafficClass], dict[str, int]]:
    """Classes, and the priorities that are forwarded for them, from `NAME,field=value,...` or JSON objects. Raises UsageError."""
    classes, priorities = default_classes(targets), {}
    for text in texts:
        table = _table(text, "--class", "name")
        name = str(table.pop("name", ""))
        where = f"--class {name}"
        if name not in NAMES:
            raise UsageError(f"--class {name!r}: not one of {', '.join(NAMES)}")
        _only(table, (*NUMBERS, *FLAGS, "priority"), where)
        if "priority" in table:
            priorities[name] = int(_number(table["priority"], f"{where}: priority"))
        own = {field: _number(table[field], f"{where}: {field}") for field in NUMBERS if field in table}
        try:
            wanted = replace(targets, **own)  # type: ignore[arg-type]
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        flags = {field: _flag(table[field], f"{where}: {field}") for field in FLAGS if field in table}
        classes[name] = replace(classes[name], targets=wanted, **flags)  # type: ignore[arg-type]
    return classes, priorities


def parse_rules(texts: Iterable[str]) -> tuple[ClassRule, ...]:
    """Rules from `CLASS,condition=pattern,...` or JSON objects. Raises UsageError."""
    rules = []
    for text in texts:
        table = _table(text, "--class-rule", "class")
        name = str(table.pop("class", ""))
        if name not in NAMES:
            raise UsageError(f"--class-rule {name!r}: not one of {', '.join(NAMES)}")
        _only(table, CONDITIONS, f"--class-rule {name}")
        if not table:
            raise UsageError(f"--class-rule {name}: without a condition ({', '.join(CONDITIONS)}) it would match everything")
        if "value" in table and "header" not in table:
            raise UsageError(f"--class-rule {name}: 'value' needs 'header'")
        for condition, value in table.items():
            if not isinstance(value, str) or not value:
                raise UsageError(f"--class-rule {name}: {condition} must be a string")
        rules.append(ClassRule(name, **table))
    return tuple(rules)


def _table(text: str, option: str, first: str) -> dict[str, Any]:
    if text.startswith("{"):
        return dict(json.loads(text))
    name, *rest = text.split(",")
    pairs = [part.partition("=") for part in rest]
    for field, equals, _ in pairs:
        if not equals:
            raise UsageError(f"{option} {name}: {field!r} is not of the form field=value")
    return {first: name} | {field.strip(): value for field, _, value in pairs}


def _only(table: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for field in table:
        if field not in allowed:
            raise UsageError(f"{where}: {field!r} is not one of {', '.join(allowed)}")


def _number(value: Any, where: str) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{where} {value!r} is not a number") from None


def _flag(value: Any, where: str) -> bool:
    if value in (True, "true", "yes"):
        return True
    if value in (False, "false", "no"):
        return False
    raise UsageError(f"{where} {value!r} is not true or false")
