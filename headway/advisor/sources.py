"""Where start options are written: command line, compose file, systemd unit, Helm values, /server_info page.

`read_deployments` tells them apart by their content and gives every engine that it finds. Text that holds
no engine is a usage error that says what was looked for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from headway.advisor.deployment import Deployment
from headway.advisor.versions import parse_version
from headway.errors import UsageError

#: What starts an engine, and which engine that is.
STARTERS: tuple[tuple[str, str], ...] = (
    (r"\bvllm\s+serve\b", "vllm"),
    (r"vllm\.entrypoints\.(openai\.api_server|cli\.main)", "vllm"),
    (r"sglang\.launch_server|\bsglang\s+serve\b", "sglang"),
    (r"\bllama-server\b|llama\.cpp/server|\./server\b", "llama.cpp"),
)
IMAGES: tuple[tuple[str, str], ...] = (
    (r"vllm", "vllm"),
    (r"sglang|lmsysorg", "sglang"),
    (r"llama[.-]cpp|llama-server", "llama.cpp"),
)
SHORT: dict[str, dict[str, str]] = {
    "llama.cpp": {"b": "batch_size", "ub": "ubatch_size", "np": "parallel", "c": "ctx_size", "m": "model", "cb": "cont_batching", "hf": "model"},  # noqa: E501
    "vllm": {"tp": "tensor_parallel_size", "dp": "data_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization", "tpl": "tensor_parallel_size"},  # noqa: E501
    "sglang": {"tp": "tp_size"},
}  # fmt: skip
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")


def value_of(text: str) -> Any:
    """Number, boolean or JSON object in an option's text; the text itself otherwise. 8k is 8,000, 8K is 8,192."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d+", text):
        return float(text)
    scaled = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", text)
    if scaled:
        return int(float(scaled.group(1)) * {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}[scaled.group(2)])
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Shell and compose variables replaced by their value or default; an unknown one stays as it is."""

    def put(hit: re.Match[str]) -> str:
        name = hit.group(1) or hit.group(3)
        return environment.get(name, hit.group(2) if hit.group(2) is not None else hit.group(0))

    return _VARIABLE.sub(put, text)


def parse_words(words: list[str], engine: str) -> tuple[dict[str, Any], list[str]]:
    """Options and the free words of an argument list. `--no-x` gives x = False, `--x.y v` an object."""
    options: dict[str, Any] = {}
    free: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        hit = re.fullmatch(r"(--?)([A-Za-z][\w.-]*)(?:=(.*))?", word, re.DOTALL)
        if not hit:
            free.append(word)
            continue
        dashes, raw, told = hit.groups()
        name = raw.replace("-", "_")
        if dashes == "-":
            name = SHORT.get(engine, {}).get(name, name)
        if told is None and at < len(words) and not re.match(r"--?[A-Za-z]", words[at]):
            told = words[at]
            at += 1
        if "." in name:
            outer, inner = name.split(".", 1)
            nested = options.setdefault(outer, {})
            if isinstance(nested, dict):
                nested[inner] = value_of(told) if told is not None else True
        elif told is None and name.startswith("no_"):
            options[name[3:]] = False
        else:
            options[name] = value_of(told) if told is not None else True
    return options, free


def _command(text: str, where: str, engine: str | None = None) -> Deployment | None:
    joined = re.sub(r"\\\s*\n", " ", text)
    start = None
    for pattern, name in STARTERS:
        if hit := re.search(pattern, joined):
            start, engine = hit.end(), name
            break
    if start is None and engine is None:
        return None
    tail = joined[start or 0 :]
    try:
        words = shlex.split(tail.split("\n")[0] if start else tail, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: the command line cannot be split into words: {error}") from error
    assert engine is not None
    options, free = parse_words(words, engine)
    model = options.get("model") or options.get("model_path") or next((w for w in free if w not in ("serve",)), None)
    return Deployment(where, engine, options, model=str(model) if model else None)


def _strings(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(shlex.quote(str(part)) for part in value)
    return str(value)


def _image(text: str | None) -> str | None:
    return next((name for pattern, name in IMAGES if re.search(pattern, text or "")), None)


def _environment(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items()}
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


def _service(name: str, body: Mapping[str, Any], where: str) -> Deployment | None:
    environment = _environment(body.get("environment") or body.get("env"))
    image = body.get("image")
    if isinstance(image, dict):
        image = f"{image.get('repository', '')}:{image.get('tag', '')}"
    image = expand(str(image or ""), environment)
    text = " ".join(_strings(body[key]) for key in ("entrypoint", "command", "args") if body.get(key))
    found = _command(expand(text, environment), f"{where}: {name}", _image(image)) if text else None
    if found:
        found.environment, found.version = environment, parse_version(image.rpartition(":")[2])
    return found


def _helm(value: Any, where: str, path: str = "") -> Iterator[Deployment]:
    """Engines anywhere in Helm values: an argument list, a command, or production-stack's vllmConfig."""
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from _helm(part, where, f"{path}[{number}]")
    if not isinstance(value, dict):
        return
    config = value.get("vllmConfig")
    if isinstance(config, dict):
        options = {re.sub(r"(?<!^)([A-Z])", r"_\1", k).lower(): v for k, v in config.items() if not isinstance(v, list | dict)}
        extra, _ = parse_words([str(part) for part in config.get("extraArgs") or []], "vllm")
        tag = str(
            value.get("tag") or (value.get("image") or {}).get("tag", "") if not isinstance(value.get("image"), str) else ""
        )
        yield Deployment(
            f"{where}: {path or 'values'}.vllmConfig",
            "vllm",
            options | extra,
            version=parse_version(tag),
            model=value.get("modelURL"),
        )
        return
    if value.get("args") or value.get("command"):
        found = _service(path or "values", value, where)
        if found:
            yield found
            return
    for key, part in value.items():
        yield from _helm(part, where, f"{path}.{key}" if path else str(key))


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
    version = parse_version(str(page.get("vllm_version") or page.get("version") or ""))
    engine = "sglang" if "chunked_prefill_size" in options else "vllm"
    return Deployment(where, engine, options, version=version, model=str(options.get("model") or "") or None)


def _unit(text: str, where: str) -> list[Deployment]:
    joined = re.sub(r"\\\s*\n", " ", text)
    environment: dict[str, str] = {}
    for line in re.findall(r"^Environment=(.*)$", joined, re.MULTILINE):
        environment |= _environment(shlex.split(line))
    found = []
    for line in re.findall(r"^ExecStart=[-@:+!]*(.*)$", joined, re.MULTILINE):
        if unit := _command(expand(line, environment), f"{where}: ExecStart"):
            unit.environment = environment
            found.append(unit)
    return found


def _with_lines(found: list[Deployment], text: str, file: str | None) -> list[Deployment]:
    """Line of each option in the text, for reports that point into files."""
    for one in found:
        one.file = file
        for option in one.options:
            spelled = option.replace("_", "[-_]")
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(rf"--(no-)?{spelled}\b", line):
                    one.lines[option] = number
                    break
    return found


def read_deployments(text: str, where: str, file: str | None = None) -> list[Deployment]:
    """Every engine in the text, whatever kind of file it is; UsageError when there is none."""
    stripped = text.strip()
    found: list[Deployment] = []
    if stripped.startswith("{"):
        try:
            found = [server_info(json.loads(stripped), where)]
        except ValueError as error:
            raise UsageError(f"{where}: not valid JSON: {error}") from error
    elif re.search(r"^\[Service\]", text, re.MULTILINE):
        found = _unit(text, where)
    elif re.search(r"^[\w.-]+:(\s|$)", text, re.MULTILINE) and not stripped.startswith(("vllm", "python", "#!")):
        try:
            body = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(f"{where}: not valid YAML: {str(error).splitlines()[0]}") from error
        if isinstance(body, dict) and isinstance(body.get("services"), dict):
            services = [(n, b) for n, b in body["services"].items() if isinstance(b, dict)]
            found = [one for name, part in services if (one := _service(name, part, where))]
        else:
            found = list(_helm(body, where))
    elif one := _command(text, where):
        found = [one]
    if not found:
        raise UsageError(
            f"{where}: no engine in it: looked for `vllm serve`, sglang.launch_server, llama-server, compose services, "
            "ExecStart, Helm values or a /server_info page"
        )
    return _with_lines(found, text, file)
