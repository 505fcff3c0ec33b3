"""The keys of an arm file and the types of their values: what is not here is an error that names it."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from headway.errors import UsageError

T = TypeVar("T")
Words = str | list[str]
Scalar = str | int | float | bool


class ServerTable(msgspec.Struct, forbid_unknown_fields=True):
    command: Words | None = None
    url: str | None = None
    env: dict[str, Scalar] = {}
    cwd: str | None = None
    port: int | None = None
    ready: str | None = None
    ready_s: float = 900.0
    stop: Words | None = None
    stop_s: float = 30.0
    lint: str | None = None
    engine_version: str | None = None
    model_config_file: str | None = None
    model: str | None = None
    key_env: str | None = None


class ArmTable(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    vars: dict[str, Scalar] = {}
    server: dict[str, Any] = {}
    gateway: dict[str, Any] | None = None
    client: dict[str, Any] = {}
    scenarios: list[str] | None = None
    own_start: bool = False


class FileTable(msgspec.Struct, forbid_unknown_fields=True):
    arm: list[ArmTable] = []
    title: str = ""
    reps: int = 5
    reps_per_start: int = 1
    seed: int | None = None
    scenarios: list[str] | None = None
    baseline: str | None = None
    aa: bool = True
    vars: dict[str, Scalar] = {}
    server: dict[str, Any] = {}
    client: dict[str, Any] = {}


def convert(table: Any, kind: type[T], where: str, arms: list[Any] | None = None, strict: bool = True) -> T:
    try:
        return msgspec.convert(table, kind, strict=strict)
    except msgspec.ValidationError as error:
        text = str(error)
        if hit := re.search(r" - at `\$\.?(.*)`", text):
            place = re.sub(r"^arm\[(\d+)\]\.?", lambda m: f"arm {arms[int(m[1])]!r}: " if arms else m[0], hit.group(1))
            text = f"{place.removesuffix(': ')}: {text[: hit.start()]}"
        raise UsageError(f"{where}: {text[0].lower()}{text[1:]}") from None
