"""`headway serve`: the gateway."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from headway.core.policy import POLICIES
from headway.errors import UsageError
from headway.gateway.classify import parse_classes, parse_rules
from headway.gateway.config import (
    Config,
    UpstreamConfig,
    beside,
    parse_address,
    parse_key,
    parse_policy,
    parse_relay,
    parse_targets,
    parse_upstreams,
)
from headway.gateway.priority import BY
from headway.gateway.server import run


def register(app: typer.Typer) -> None:
    app.command()(serve)


def _from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a TOML file become the defaults: the command line and HEADWAY_* win."""
    if path is None:
        return None
    values = _read(path)
    known = {p.name for p in context.command.params}
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = "traffic_class" if key == "class" else key.replace("-", "_")
        if name == "traffic_class":
            value = _class_texts(path, value)
        if name == "class_rule":
            value = _rule_texts(path, value)
        if name not in known or name == "config":
            raise UsageError(f"--config {path}: {key!r} is not an option of headway serve")
        if not isinstance(value, str | int | float | bool | list):
            raise UsageError(f"--config {path}: {key!r} must be a string, a number, true, false or a list")
        defaults[name] = ("off", "on")[value] if name == "probe" and isinstance(value, bool) else value
    if "upstream" in defaults:
        defaults["upstream"] = _upstream_texts(path, defaults["upstream"])
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: {error}") from None


def _upstream_texts(path: Path, value: object) -> list[str]:
    """`upstream = "URL"`, a list of those, or `[[upstream]]` tables, as --upstream takes them."""
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str | dict) for entry in entries):
        raise UsageError(f"--config {path}: 'upstream' must be a URL, a list of URLs or [[upstream]] tables")
    return [entry if isinstance(entry, str) else json.dumps(entry, default=str) for entry in entries]


def _class_texts(path: Path, value: object) -> list[str]:
    """`[class.NAME]` tables as --class takes them."""
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise UsageError(f"--config {path}: 'class' must be tables: [class.interactive], [class.agent], [class.background]")
    return [json.dumps({"name": name, **table}, default=str) for name, table in value.items()]


def _rule_texts(path: Path, value: object) -> list[str]:
    """`[[class-rule]]` tables, or a list of texts, as --class-rule takes them."""
    if not isinstance(value, list) or not all(isinstance(entry, str | dict) for entry in value):
        raise UsageError(f"--config {path}: 'class-rule' must be [[class-rule]] tables or a list of texts")
    return [entry if isinstance(entry, str) else json.dumps(entry, default=str) for entry in value]


def _reload(context: typer.Context, path: Path | None) -> Callable[[], tuple[UpstreamConfig, ...]] | None:
    """Reads the upstreams of the TOML file anew; None where they were given elsewhere."""
    source = context.get_parameter_source("upstream")
    if path is None or source is None or source.name != "DEFAULT_MAP":
        return None
    return lambda: parse_upstreams(_upstream_texts(path, _read(path).get("upstream", [])))


def serve(
    context: typer.Context,
    upstream: Annotated[
        list[str],
        typer.Option(
            envvar="HEADWAY_UPSTREAM",
            help="the server behind: http://host:port[,role=any|interactive|bulk][,name=NAME]; may be repeated",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(envvar="HEADWAY_CONFIG", callback=_from_file, is_eager=True, help="TOML file with any of these options"),
    ] = None,
    listen: Annotated[str, typer.Option(envvar="HEADWAY_LISTEN", help="host:port for clients")] = "127.0.0.1:8100",
    status: Annotated[
        str | None,
        typer.Option(envvar="HEADWAY_STATUS", help="host:port for /metrics and /status [default: loopback, one above --listen]"),
    ] = None,
    policy: Annotated[str, typer.Option(envvar="HEADWAY_POLICY", help=", ".join(POLICIES))] = "auto",
    share: Annotated[
        float, typer.Option(envvar="HEADWAY_SHARE", help="part of its solo rate that a live answer keeps, 0..1")
    ] = 0.5,
    gap: Annotated[float, typer.Option(envvar="HEADWAY_GAP", help="longest gap of a live answer, seconds")] = 0.25,
    wait: Annotated[float, typer.Option(envvar="HEADWAY_WAIT", help="longest wait of a newcomer for its turn, seconds")] = 30.0,
    stretch: Annotated[
        float, typer.Option(envvar="HEADWAY_STRETCH", help="largest (TTFT - W)/W of a newcomer, W its prefill alone")
    ] = 20.0,
    queue: Annotated[int, typer.Option(envvar="HEADWAY_QUEUE", help="most requests waiting at once")] = 1000,
    queue_tokens: Annotated[
        int, typer.Option(envvar="HEADWAY_QUEUE_TOKENS", help="most uncached prompt tokens waiting at once")
    ] = 4_000_000,
    upstream_key: Annotated[
        str | None, typer.Option(envvar="HEADWAY_UPSTREAM_KEY", help="sent upstream as Authorization: Bearer")
    ] = None,
    relay: Annotated[
        list[str] | None, typer.Option(envvar="HEADWAY_RELAY", help="one more path to relay; may be repeated")
    ] = None,
    probe: Annotated[str, typer.Option(envvar="HEADWAY_PROBE", help="on or off: may an idle engine be probed")] = "on",
    max_body: Annotated[int, typer.Option(envvar="HEADWAY_MAX_BODY", help="largest request body, bytes")] = 64 * 1024 * 1024,
    drain: Annotated[float, typer.Option(envvar="HEADWAY_DRAIN", help="seconds that answers may take to end on SIGTERM")] = 30.0,
    traffic_class: Annotated[
        list[str] | None,
        typer.Option("--class", envvar="HEADWAY_CLASS", help="NAME,field=value,...: targets of a class; may be repeated"),
    ] = None,
    class_rule: Annotated[
        list[str] | None,
        typer.Option(envvar="HEADWAY_CLASS_RULE", help="NAME,condition=pattern,...: who is in a class; may be repeated"),
    ] = None,
    priority_by: Annotated[
        str, typer.Option(envvar="HEADWAY_PRIORITY_BY", help="header or body: how a class's priority goes to the engine")
    ] = "header",
    shadow: Annotated[
        bool, typer.Option("--shadow", envvar="HEADWAY_SHADOW", help="hold nothing, tell what each policy would have done")
    ] = False,
    engine_paces: Annotated[
        str, typer.Option(envvar="HEADWAY_ENGINE_PACES", help="yes, no, or auto: does the engine pace prefill by itself")
    ] = "auto",
    decision_log: Annotated[
        Path | None, typer.Option(envvar="HEADWAY_DECISION_LOG", help="append every decision to this file, a JSON line each")
    ] = None,
    resends: Annotated[
        str,
        typer.Option(envvar="HEADWAY_RESENDS", help="marked, replace, join or off: the same request again while it is under way"),
    ] = "marked",
    log_level: Annotated[str, typer.Option(envvar="HEADWAY_LOG_LEVEL", help="debug, info, warning or error")] = "info",
) -> None:
    """The gateway: keeps live answers streaming while long prompts come in."""
    if probe not in ("on", "off"):
        raise UsageError(f"--probe {probe!r}: not on or off")
    if priority_by not in BY:
        raise UsageError(f"--priority-by {priority_by!r}: not header or body")
    if engine_paces not in ("auto", "yes", "no"):
        raise UsageError(f"--engine-paces {engine_paces!r}: not auto, yes or no")
    if log_level not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level {log_level!r}: not debug, info, warning or error")
    if max_body <= 0:
        raise UsageError(f"--max-body {max_body}: not above 0")
    if not 0 <= drain < float("inf"):
        raise UsageError(f"--drain {drain:g}: not 0 or more")
    targets = parse_targets(share, gap, wait, stretch, queue, queue_tokens)
    classes, priorities = parse_classes(traffic_class or [], targets)
    settings = Config(
        upstreams=parse_upstreams(upstream),
        listen=parse_address(listen, "--listen"),
        status=parse_address(status, "--status") if status is not None else beside(parse_address(listen, "--listen")),
        policy="passthrough" if shadow and parse_policy(policy) else parse_policy(policy),
        shadow=shadow,
        targets=targets,
        classes=classes,
        class_rules=parse_rules(class_rule or []),
        priorities=priorities,
        priority_by=priority_by,
        upstream_key=parse_key(upstream_key),
        relay=parse_relay(relay or []),
        probe=probe == "on",
        max_body=max_body,
        drain=drain,
        decision_log=decision_log,
        engine_paces=engine_paces,
    )
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    uvloop.run(run(settings, reload=_reload(context, config)))
