"""The arm file: TOML in, arms out. Everything that can be wrong with it is found here, before anything is started.

An arm is a server (started from a command, or running at a URL), maybe a gateway in front, and what is measured through
it. `[server]`, `[client]` and `[vars]` hold for every arm; an arm's own tables win, key by key. docs/bench-arms.md has every key.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

from headway.bench.arms.plan import Arm, Plan, Server
from headway.bench.arms.schema import ArmTable, FileTable, Scalar, ServerTable, Words, convert
from headway.bench.arms.template import Unknown, fill
from headway.bench.context import Settings, unfit
from headway.bench.scenarios import SCENARIOS
from headway.errors import UsageError

#: Policies under which the intruder waits for the victim's end, and those that send it in pieces.
KEEPS_BACK, IN_PIECES, POLICY = ("hold", "serialize"), ("hold", "pace", "auto"), "auto"
DEFAULT = ("long-prefill-overlap",)


def read(
    path: Path,
    gateway_options: Collection[str] | None = None,
    told: Mapping[str, str] | None = None,
    reps: int | None = None,
) -> Plan:
    """Raises UsageError with the file and the key. `told`: vars that the command line sets; they win over all of the file's,
    and so does `reps`.
    `gateway_options`: what `headway serve` knows, without dashes (None: not checked)."""
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file") from None
    plan = parse(text, str(path), gateway_options, told)
    if reps is not None and reps < 1:
        raise UsageError(f"--reps {reps} must be at least 1")
    return plan if reps is None else replace(plan, reps=reps)


def parse(text: str, where: str, gateway_options: Collection[str] | None = None, told: Mapping[str, str] | None = None) -> Plan:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    file = convert(table, FileTable, where, [entry.get("name") for entry in _entries(table)])
    if not file.arm:
        raise UsageError(f"{where}: there is no [[arm]]")
    for key, value in (("reps", file.reps), ("reps_per_start", file.reps_per_start)):
        if value < 1:
            raise UsageError(f"{where}: {key} = {value} must be at least 1")
    for name in told or {}:
        if name not in file.vars and not any(name in one.vars for one in file.arm):
            raise UsageError(f"{where}: --set {name}: the file has no such vars")
    arms = [_arm(entry, file, where, gateway_options, told or {}) for entry in file.arm]
    baseline = file.baseline or arms[0].name
    if baseline not in [arm.name for arm in arms]:
        raise UsageError(f"{where}: baseline {baseline!r} is not an arm; there are {', '.join(a.name for a in arms)}")
    aa = None
    if file.aa:
        first = next(arm for arm in arms if arm.name == baseline)
        # Where arms differ in their start, a second start belongs to the noise
        apart = first.own_start or len({(arm.server, arm.name if arm.own_start else "") for arm in arms}) > 1
        aa = f"{baseline} (A/A)"
        arms.append(replace(first, name=aa, own_start=apart, copy_of=baseline))
    seen: dict[str, str] = {}
    for arm in arms:
        if arm.slug in seen:
            other = seen[arm.slug]
            same = "there are two arms" if other == arm.name else f"arm {other!r} shares its file names with arm"
            raise UsageError(f"{where}: {same} {arm.name!r}")
        seen[arm.slug] = arm.name
    return Plan(file.title, tuple(arms), file.reps, file.reps_per_start, file.seed, baseline, aa)


def _entries(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = table.get("arm")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _arm(entry: ArmTable, file: FileTable, where: str, gateway_options: Collection[str] | None, told: Mapping[str, str]) -> Arm:
    here = f"{where}: arm {entry.name!r}"
    if not entry.name.strip():
        raise UsageError(f"{where}: an arm has an empty name")
    values = {**file.vars, **entry.vars, **told, "arm": entry.name}

    def filled(text: str, key: str) -> str:
        try:
            return fill(text, values)
        except Unknown as error:
            known = ", ".join(sorted({*values, "port", "url"}))
            raise UsageError(f"{here}: {key}: {{{error}}} has no value; known are {known}") from None

    gateway = None if entry.gateway is None else _gateway(entry.gateway, here, gateway_options, filled)
    policy = str((entry.gateway or {}).get("policy", POLICY)) if entry.gateway is not None else None
    told_client = {**file.client, **entry.client}
    if policy in KEEPS_BACK:
        told_client.setdefault("kept_back", True)
    if policy in IN_PIECES:
        told_client.setdefault("pieces", True)
        if "budget" not in entry.client:
            told_client.pop("budget", None)  # steps are as large as the pieces there, which is no contradiction
    return Arm(
        entry.name,
        _server(_merged(file.server, entry.server), here, filled),
        gateway,
        _settings(told_client, here, filled),
        _scenarios(entry.scenarios or file.scenarios, here),
        entry.own_start,
    )  # fmt: skip


def _merged(every: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """An arm's own keys win; of `env`, name by name. A command of its own replaces a URL, and the other way round."""
    other = {"command": "url", "url": "command"}
    kept = {key: value for key, value in every.items() if other.get(key) not in own}
    environments = [table.get("env", {}) for table in (every, own)]
    if all(isinstance(one, dict) for one in environments):
        own = {**own, "env": environments[0] | environments[1]}
    return {**kept, **own}


def _server(table: dict[str, Any], here: str, filled: Any) -> Server:
    told = convert({**table, **_renamed(table)}, ServerTable, f"{here}: server")
    if (told.command is None) == (told.url is None):
        both = "both command and url" if told.command else "neither command nor url"
        raise UsageError(f"{here}: server has {both}; it needs one of them")
    if told.port is not None and not 1 <= told.port <= 65535:
        raise UsageError(f"{here}: server.port = {told.port} is outside 1..65535")
    for key in ("ready_s", "stop_s"):
        if getattr(told, key) <= 0:
            raise UsageError(f"{here}: server.{key} = {getattr(told, key):g} must be above 0")

    def words(value: Words | None, key: str) -> tuple[str, ...] | None:
        if value is None:
            return None
        if isinstance(value, list):
            return tuple(filled(word, f"server.{key}") for word in value) or _empty(here, key)
        try:  # filled before it is split: a var may stand for several words, or for none
            return tuple(shlex.split(filled(value, f"server.{key}"))) or _empty(here, key)
        except ValueError as error:
            raise UsageError(f"{here}: server.{key} cannot be split into words: {error}") from None

    def text(value: str | None, key: str) -> str | None:
        return None if value is None else filled(value, f"server.{key}")

    env = tuple(sorted((name, filled(_plain(value), f"server.env.{name}")) for name, value in told.env.items()))
    url = text(told.url, "url")
    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError(f"{here}: server.url {url!r} is not an http:// or https:// URL")
    return Server(
        words(told.command, "command"), url, env, text(told.cwd, "cwd"), told.port, text(told.ready, "ready"),
        told.ready_s, words(told.stop, "stop"), told.stop_s, text(told.lint, "lint"),
        text(told.engine_version, "engine_version") or None,
        text(told.model_config_file, "model_config"), text(told.model, "model"), told.key_env,
    )  # fmt: skip


def _empty(here: str, key: str) -> NoReturn:
    raise UsageError(f"{here}: server.{key} is empty")


def _renamed(table: dict[str, Any]) -> dict[str, Any]:
    """msgspec keeps the name `model_config` for itself."""
    return {"model_config_file": table.pop("model_config")} if "model_config" in table else {}


def _plain(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gateway(table: dict[str, Any], here: str, known: Collection[str] | None, filled: Any) -> tuple[str, ...]:
    out: list[str] = []
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in ("upstream", "listen", "status", "config"):
            raise UsageError(f"{here}: gateway.{key} is set by the benchmark itself")
        if known is not None and name not in known:
            raise UsageError(f"{here}: gateway.{key} is not an option of headway serve; there are {', '.join(sorted(known))}")
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float):
                raise UsageError(f"{here}: gateway.{key} must be a string, a number, true, false or a list of them")
            switch = ("off", "on")[item] if isinstance(item, bool) else item
            out += [f"--{name}", filled(str(switch), f"gateway.{key}")]
    return tuple(out)


def _settings(table: dict[str, Any], here: str, filled: Any) -> Settings:
    known = [one.name for one in fields(Settings)]
    for key in table:
        if key not in known:
            raise UsageError(f"{here}: client.{key} is not an option; there are {', '.join(known)}")
    values = {key: filled(value, f"client.{key}") if isinstance(value, str) else value for key, value in table.items()}
    settings = convert(values, Settings, f"{here}: client", strict=False)
    if wrong := unfit(settings):
        raise UsageError(f"{here}: client.{wrong[0]} = {wrong[1]}")
    return settings


def _scenarios(told: list[str] | None, here: str) -> tuple[str, ...]:
    for name in told or ():
        if name not in SCENARIOS:
            raise UsageError(f"{here}: scenario {name!r} is unknown; there are {', '.join(SCENARIOS)}")
    return tuple(told or DEFAULT)
