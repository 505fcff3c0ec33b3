"""Where start options are written: command line, compose file, systemd unit, Helm values, Kubernetes manifest, /server_info page.

`read_deployments` tells them apart by their content and gives every engine that it finds. Text that holds no engine is a usage
error that says what was looked for. Files that a deployment names (`--config`, `.env`, EnvironmentFile) are asked of `load`, so
this module does no IO of its own; a file that `load` does not have is listed in the deployment's `missing`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from headway.advisor.commandline import expand, image_engine, parse_words, read_command, value_of
from headway.advisor.deployment import Deployment
from headway.advisor.versions import parse_version
from headway.errors import UsageError

#: Text of a file that is named in a deployment, or None when it cannot be had.
Load = Callable[[str], str | None]


def _no_file(name: str) -> str | None:
    return None


def _strings(value: Any) -> str:
    """A command as one line; of a list the part that is a shell line, when one is."""
    if isinstance(value, list):
        return " ".join(shlex.quote(str(part)) for part in value)
    return str(value)


def _environment(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(k): "" if v is None else str(v) for k, v in value.items()}
    if isinstance(value, list):
        pairs = []
        for part in value:
            if isinstance(part, dict) and "name" in part:
                pairs.append((str(part["name"]), str(part.get("value", ""))))
            elif "=" in str(part):
                name, _, told = str(part).partition("=")
                pairs.append((name, told))
        return dict(pairs)
    return {}


def _env_text(text: str) -> dict[str, str]:
    """The variables of an env file: NAME=value lines, with quotes and comments."""
    rows = re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$", text, re.MULTILINE)
    return {name: told.strip("'\"") if told[:1] in ("'", '"') else told.split(" #")[0].strip() for name, told in rows}


def _names(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value] if value else []
    return [str(item["path"] if isinstance(item, dict) and "path" in item else item) for item in items]


def _configured(one: Deployment, load: Load) -> Deployment:
    """Options of the YAML file that `--config` names; what the command line says stands."""
    name = one.options.get("config")
    if not isinstance(name, str) or one.engine == "llama.cpp":
        return one
    text = load(name)
    if text is None:
        one.missing.append(name)
        return one
    try:
        told = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{one.where}: --config {name}: not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(told, dict):
        raise UsageError(f"{one.where}: --config {name}: not a mapping of options")
    for key, value in told.items():
        option = str(key).lstrip("-").replace("-", "_")
        if option.startswith("no_") and value is True:
            option, value = option[3:], False
        one.options.setdefault(option, value_of(value) if isinstance(value, str) else value)
    one.model = one.model or (str(told["model"]) if told.get("model") else None)
    return one


def _service(name: str, body: Mapping[str, Any], where: str, load: Load, outside: Mapping[str, str]) -> Deployment | None:
    environment: dict[str, str] = {}
    missing = []
    for file in _names(body.get("env_file")):
        text = load(file)
        if text is None:
            missing.append(file)
        else:
            environment |= _env_text(text)
    environment |= _environment(body.get("environment") or body.get("env"))
    known = dict(outside) | environment
    environment = {key: expand(value, outside) for key, value in environment.items()}
    image = body.get("image")
    if isinstance(image, dict):
        image = f"{image.get('repository', '')}:{image.get('tag', '')}"
    image = expand(str(image or ""), known)
    parts = [expand(_strings(body[key]), known) for key in ("entrypoint", "command", "args") if body.get(key)]
    text = " ".join(parts)
    found = read_command(text, f"{where}: {name}", image_engine(image), environment) if text or image_engine(image) else None
    if found:
        found.environment = environment | found.environment
        found.version = found.version or parse_version(image.rpartition(":")[2])
        found.missing += missing
    return found


def _helm(value: Any, where: str, load: Load, path: str = "") -> Iterator[Deployment]:
    """Engines anywhere in Helm values or a manifest: an argument list, a command, or production-stack's vllmConfig."""
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from _helm(part, where, load, f"{path}[{number}]")
    if not isinstance(value, dict):
        return
    config = value.get("vllmConfig")
    if isinstance(config, dict):
        yield _production_stack(value, config, f"{where}: {path or 'values'}.vllmConfig")
        return
    if value.get("args") or value.get("command"):
        found = _service(path or "values", value, where, load, {})
        if found:
            yield found
            return
    for key, part in value.items():
        yield from _helm(part, where, load, f"{path}.{key}" if path else str(key))


def _production_stack(value: Mapping[str, Any], config: Mapping[str, Any], where: str) -> Deployment:
    options = {re.sub(r"(?<!^)([A-Z])", r"_\1", k).lower(): v for k, v in config.items() if not isinstance(v, list | dict)}
    extra, _ = parse_words([str(part) for part in config.get("extraArgs") or []], "vllm")
    image = value.get("image")
    tag = str(value.get("tag") or (image.get("tag", "") if isinstance(image, dict) else str(image or "").rpartition(":")[2]))
    return Deployment(
        where,
        "vllm",
        options | extra,
        environment=_environment(value.get("env")),
        version=parse_version(tag),
        model=value.get("modelURL"),
    )


def server_info(page: Mapping[str, Any], where: str) -> Deployment:
    """A /server_info page: nested configuration objects, or one long text of them."""
    options: dict[str, Any] = {}

    def take(value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                if isinstance(part, dict):
                    take(part)
                elif part is not None:
                    options[str(key)] = part
        elif isinstance(value, str):
            for key, told in re.findall(r"(\w+)=('[^']*'|[\w./-]+)", value):
                if told != "None":
                    options[key] = value_of(told.strip("'"))

    take(page.get("vllm_config", page))
    if "policy" in options:
        options["scheduling_policy"] = options["policy"]
    if "cache_dtype" in options:
        options.setdefault("kv_cache_dtype", options["cache_dtype"])
    version = parse_version(str(page.get("vllm_version") or page.get("version") or ""))
    engine = "sglang" if "chunked_prefill_size" in options else "vllm"
    environment = _environment(page.get("vllm_env"))
    return Deployment(
        where, engine, options, environment=environment, version=version, model=str(options.get("model") or "") or None
    )


def _unit(text: str, where: str, load: Load) -> list[Deployment]:
    joined = re.sub(r"\\\s*\n", " ", text)
    environment: dict[str, str] = {}
    missing = []
    for name in re.findall(r"^EnvironmentFile=-?(.*)$", joined, re.MULTILINE):
        told = load(name.strip())
        if told is None:
            missing.append(name.strip())
        else:
            environment |= _env_text(told)
    for line in re.findall(r"^Environment=(.*)$", joined, re.MULTILINE):
        try:
            environment |= _environment(shlex.split(line))
        except ValueError as error:
            raise UsageError(f"{where}: Environment= cannot be split into words: {error}") from error
    found = []
    for line in re.findall(r"^ExecStart=[-@:+!]*(.*)$", joined, re.MULTILINE):
        if unit := read_command(expand(line, environment), f"{where}: ExecStart", None, environment):
            unit.missing += missing
            found.append(unit)
    return found


def _yaml(text: str, where: str, load: Load) -> list[Deployment]:
    try:
        bodies = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {str(error).splitlines()[0]}") from error
    found: list[Deployment] = []
    for body in bodies:
        if isinstance(body, dict) and isinstance(body.get("services"), dict):
            outside = _env_text(load(".env") or "")
            services = [(n, b) for n, b in body["services"].items() if isinstance(b, dict)]
            found += [one for name, part in services if (one := _service(name, part, where, load, outside))]
        else:
            found += _helm(body, where, load)
    return found


def _with_lines(found: list[Deployment], text: str, file: str | None) -> list[Deployment]:
    """Line of each option in the text, for reports that point into files."""
    for one in found:
        one.file = file
        for option in one.options:
            spelled = option.replace("_", "[-_]")
            camel = re.sub(r"_([a-z])", lambda hit: hit.group(1).upper(), option)
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(rf"--(no-)?{spelled}\b|\b{camel}:", line):
                    one.lines[option] = number
                    break
    return found


def read_deployments(text: str, where: str, file: str | None = None, load: Load = _no_file) -> list[Deployment]:
    """Every engine in the text, whatever kind of file it is; UsageError when there is none."""
    stripped = text.strip()
    found: list[Deployment] = []
    if stripped.startswith("{"):
        try:
            page = json.loads(stripped)
        except ValueError as error:
            raise UsageError(f"{where}: not valid JSON: {error}") from error
        found = [server_info(page, where)]
    elif re.search(r"^\[Service\]", text, re.MULTILINE):
        found = _unit(text, where, load)
    elif re.search(r"^(---|[\w.-]+:(\s|$))", text, re.MULTILINE) and not stripped.startswith(("vllm", "python", "#!", "docker")):
        found = _yaml(text, where, load)
    elif one := read_command(text, where):
        found = [one]
    if not found:
        raise UsageError(
            f"{where}: no engine in it: looked for `vllm serve`, sglang.launch_server, llama-server, docker run, compose "
            "services, ExecStart, Helm values or a /server_info page"
        )
    return _with_lines([_configured(one, load) for one in found], text, file)
