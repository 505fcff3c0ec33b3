"""What is to be measured: arms, their servers, and how often. Made from an arm file by file.py."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from headway.bench.context import Settings


@dataclass(frozen=True)
class Server:
    """How to start and stop one server. {port} and {url} still stand in the words; two arms whose Server is equal can
    share one start. `ready` is a path or a URL, None for /health or /v1/models; seconds."""

    command: tuple[str, ...] | None
    url: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    port: int | None = None
    ready: str | None = None
    ready_s: float = 900.0
    stop: tuple[str, ...] | None = None
    stop_s: float = 30.0
    lint: str | None = None
    engine_version: str | None = None
    model_config: str | None = None
    model: str | None = None
    key_env: str | None = None


@dataclass(frozen=True)
class Arm:
    """`gateway`: options of `headway serve`, None without one. `own_start`: shares no server with another arm."""

    name: str
    server: Server
    gateway: tuple[str, ...] | None
    settings: Settings
    scenarios: tuple[str, ...]
    own_start: bool = False
    copy_of: str | None = None  # the A/A arm: the same as this one

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-.") or "arm"

    @property
    def digest(self) -> str:
        """Changes with anything that changes what is measured; not with the arm's name or how often it is run."""
        told = (self.server, self.gateway, self.settings, self.scenarios, self.own_start)
        return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Plan:
    title: str
    arms: tuple[Arm, ...]
    reps: int
    reps_per_start: int
    seed: int | None
    baseline: str
    aa: str | None  # the name of the A/A arm
