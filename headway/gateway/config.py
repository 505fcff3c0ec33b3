"""What `headway serve` was told, checked before anything starts."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headway.core.classes import Classes
from headway.core.policy import POLICIES
from headway.core.resends import Mode
from headway.core.routing import Role
from headway.core.targets import Targets
from headway.engines.families import FAMILIES
from headway.errors import UsageError
from headway.gateway.classify import ClassRule


@dataclass(slots=True, frozen=True)
class Origin:
    """A host that requests are forwarded to."""

    host: str
    port: int
    tls: bool
    prefix: bytes = b""
    """Path in front of every relayed path."""

    @property
    def authority(self) -> bytes:
        name = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        return (name if self.port == default else f"{name}:{self.port}").encode()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority.decode()}{self.prefix.decode()}"


@dataclass(slots=True, frozen=True)
class Address:
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(slots=True, frozen=True)
class UpstreamConfig:
    """One upstream, as the operator names it."""

    origin: Origin
    name: str = ""
    """Its name in metrics, logs and on the status page; its host and port where none was given."""
    role: Role = Role.ANY
    key: str | None = None
    """Sent there in place of --upstream-key."""
    engine: str = "auto"
    """Family of the engine (engines/families.py); auto: by its own pages."""
    drain: bool = False
    """It gets no new requests; those under way end."""

    @property
    def label(self) -> str:
        return self.name or self.origin.authority.decode()


@dataclass(slots=True, frozen=True)
class Config:
    upstreams: tuple[UpstreamConfig, ...]
    listen: Address = Address("127.0.0.1", 8100)
    status: Address = Address("127.0.0.1", 8101)
    policy: str = "auto"
    targets: Targets = field(default_factory=Targets)
    classes: Classes | None = None
    """Traffic classes; None: all with `targets`."""
    class_rules: tuple[ClassRule, ...] = ()
    priorities: dict[str, int] = field(default_factory=dict)
    """Priority that is handed on to the engine, by class (priority.py)."""
    priority_by: str = "header"
    upstream_key: str | None = None
    relay: tuple[bytes, ...] = ()
    """Paths relayed beside the usual ones."""
    probe: bool = True
    max_body: int = 64 * 1024 * 1024
    """Largest request body, bytes."""
    drain: float = 30.0
    """Seconds that answers under way may take to end after SIGTERM."""
    shadow: bool = False
    """Relay everything at once, and write down what each policy would have done."""
    engine_paces: str = "auto"
    """Whether the engine paces prefill by itself: `yes`, `no`, or `auto` to ask it."""
    decision_log: Path | None = None
    """File to which every decision is appended (decisions.py)."""
    keepalive: float = 15.0
    """Seconds between two signs of life to the client of a held request, and before the first; 0: none."""
    keepalive_json: bool = False
    """Whitespace before a held answer that is not a stream."""
    resends: Mode = Mode.MARKED
    """What becomes of the same request again while the first is under way."""


def parse_origin(text: str, option: str = "--upstream") -> Origin:
    """`http://host:port[/prefix]`. Raises UsageError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}") from None
    if not text.isascii() or not text.isprintable() or " " in text or port == 0:
        raise UsageError(f"{option} {text!r}: not a URL of the form http://host:port")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{option} {text!r}: not a URL of the form http://host:port")
    if parts.query or parts.fragment or parts.username:
        raise UsageError(f"{option} {text!r}: only scheme, host, port and path may be given (a key goes into --upstream-key)")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/")
    # Clients put /v1 into their base URL, and so do people who configure an upstream; paths arrive here with it.
    prefix = prefix.removesuffix("/v1")
    return Origin(parts.hostname, port or (443 if tls else 80), tls, prefix.encode())


FIELDS = ("url", "name", "role", "key", "engine", "drain")
"""Fields of an upstream: in a TOML table, or behind its URL as `URL,role=bulk,name=big`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}")


def parse_upstream(text: str) -> UpstreamConfig:
    """`URL[,field=value...]`, or a JSON object with the same fields (a table of the TOML file). Raises UsageError."""
    if text.startswith("{"):
        table = json.loads(text)
    else:
        url, *rest = text.split(",")
        pairs = [part.partition("=") for part in rest]
        table = {"url": url} | {name: value for name, _, value in pairs}
    return _upstream(table, text if not text.startswith("{") else str(table.get("url", "(no url)")))


def _upstream(table: dict[str, Any], shown: str) -> UpstreamConfig:
    for field_, value in table.items():
        if field_ not in FIELDS:
            raise UsageError(f"--upstream {shown}: {field_!r} is not one of {', '.join(FIELDS)}")
        if not isinstance(value, str) and not (field_ == "drain" and isinstance(value, bool)):
            raise UsageError(f"--upstream {shown}: {field_} must be a string")
    name, role, drain = table.get("name", ""), table.get("role", "any"), table.get("drain", False)
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"--upstream {shown}: the name {name!r} is not letters, digits and _ . : - (63 at most)")
    if role not in tuple(Role):
        raise UsageError(f"--upstream {shown}: role {role!r} is not one of {', '.join(Role)}")
    if drain not in (True, False, "true", "false"):
        raise UsageError(f"--upstream {shown}: drain {drain!r} is not true or false")
    engine = table.get("engine", "auto")
    if engine != "auto" and engine not in FAMILIES:
        raise UsageError(f"--upstream {shown}: engine {engine!r} is not one of auto, {', '.join(FAMILIES)}")
    origin = parse_origin(table.get("url", ""))
    return UpstreamConfig(origin, name, Role(role), parse_key(table.get("key")), engine, drain in (True, "true"))


def parse_upstreams(texts: list[str]) -> tuple[UpstreamConfig, ...]:
    """At least one, all different. Raises UsageError."""
    if not texts:
        raise UsageError("--upstream: the server behind is missing (http://host:port)")
    upstreams = tuple(parse_upstream(text) for text in texts)
    for what, values in (("URL", [u.origin.url for u in upstreams]), ("name", [u.label for u in upstreams])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise UsageError(f"--upstream: the {what} {twice} is there twice")
    return upstreams


def parse_address(text: str, option: str) -> Address:
    """`host:port`, `:port` or `port`; port 0 takes a free one. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit()) or not 0 <= int(port) <= 65535:
        raise UsageError(f"{option} {text!r}: not host:port")
    return Address(host, int(port))


def beside(listen: Address) -> Address:
    """Where the status page goes when it was not said: on loopback, one port above the clients'."""
    return Address("127.0.0.1", 0 if listen.port == 0 else min(listen.port + 1, 65535))


def parse_targets(share: float, gap: float, wait: float, stretch: float, queue: int, queue_tokens: int = 4_000_000) -> Targets:
    try:
        return Targets(share, gap, wait, stretch, queue, queue_tokens)
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def parse_policy(name: str) -> str:
    if name not in POLICIES:
        raise UsageError(f"--policy {name!r}: not one of {', '.join(POLICIES)}")
    return name


def parse_resends(name: str) -> Mode:
    try:
        return Mode(name)
    except ValueError:
        raise UsageError(f"--resends {name!r}: not one of {', '.join(Mode)}") from None


def parse_key(key: str | None) -> str | None:
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise UsageError("--upstream-key: a key is printable ASCII")  # and is not printed
    return key


def parse_relay(paths: list[str]) -> tuple[bytes, ...]:
    for path in paths:
        if not path.startswith("/"):
            raise UsageError(f"--relay {path!r}: a path begins with /")
    return tuple(path.encode() for path in paths)
