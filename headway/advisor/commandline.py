"""An engine's start line to its options: shell words, environment before it, a shell around it, `docker run` around that."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

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
    "llama.cpp": {"b": "batch_size", "ub": "ubatch_size", "np": "parallel", "c": "ctx_size", "m": "model", "cb": "cont_batching", "hf": "model", "hfr": "model"},  # noqa: E501
    "vllm": {"tp": "tensor_parallel_size", "dp": "data_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization", "tpl": "tensor_parallel_size", "O": "optimization_level"},  # noqa: E501
    "sglang": {"tp": "tp_size"},
}  # fmt: skip
#: llama.cpp's server takes these variables for options that are not given (tools/server/README.md).
LLAMA_VARIABLES = {"LLAMA_ARG_BATCH": "batch_size", "LLAMA_ARG_UBATCH": "ubatch_size", "LLAMA_ARG_N_PARALLEL": "parallel", "LLAMA_ARG_MODEL": "model"}  # fmt: skip  # noqa: E501
_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?:(:?[-?+])([^}]*))?\}|\$(\w+)")
#: Shell words after which the engine's own arguments have ended.
_ENDS = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<", "2>&1", "1>&2"})


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
    """Shell and compose variables (`$X`, `${X:-y}`, `${X:?y}`, `${X:+y}`, `$$`) by their value; an unknown one stays as it is."""

    def put(hit: re.Match[str]) -> str:
        if hit.group(0) == "$$":
            return "$"
        name, mark, word = hit.group(1) or hit.group(4), hit.group(2) or "", hit.group(3) or ""
        told = environment.get(name)
        if mark.endswith("+"):
            return word if told else ""
        if told is not None and not (mark.startswith(":") and told == ""):
            return told
        return word if mark.endswith("-") else hit.group(0)

    return _VARIABLE.sub(put, text)


def parse_words(words: list[str], engine: str) -> tuple[dict[str, Any], list[str]]:
    """Options and the free words of an argument list. `--no-x` gives x = False, `--x.y v` an object."""
    options: dict[str, Any] = {}
    free: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in _ENDS:
            break
        hit = re.fullmatch(r"(--?)([A-Za-z][\w.-]*)(?:=(.*))?", word, re.DOTALL)
        if not hit:
            free.append(word)
            continue
        dashes, raw, told = hit.groups()
        name = raw.replace("-", "_")
        if dashes == "-" or name in ("tp", "dp", "pp"):
            name = SHORT.get(engine, {}).get(name, name)
        if told is None and at < len(words) and words[at] not in _ENDS and not re.match(r"--?[A-Za-z]", words[at]):
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


def image_engine(text: str | None) -> str | None:
    """The engine that a container image's name speaks of, or None."""
    return next((name for pattern, name in IMAGES if re.search(pattern, text or "")), None)


def _split(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: the command line cannot be split into words: {error}") from error


def _starter(text: str) -> tuple[int, int, str] | None:
    for pattern, name in STARTERS:
        if hit := re.search(pattern, text):
            return hit.start(), hit.end(), name
    return None


def _variables(words: list[str]) -> dict[str, str]:
    """`NAME=value` words, as before a command, after `env` or after `-e`."""
    pairs = (word.partition("=") for word in words if re.match(r"[A-Za-z_]\w*=", word))
    return {name: value for name, _, value in pairs}


def _docker(words: list[str], where: str) -> Deployment | None:
    """`docker run [options] image [arguments]`."""
    names = [re.split(r"[/\\]", word)[-1] for word in words]
    if "run" not in words or not any(name in ("docker", "podman", "nerdctl") for name in names):
        return None
    for at, word in enumerate(words):
        engine = image_engine(word)
        named = ":" in word or "/" in word
        if not engine or not named or word.startswith("-") or "=" in word or words[at - 1] in ("-v", "--volume", "--name"):
            continue
        inner = next((w for w in words[at + 1 :] if " " in w and _starter(w)), None)
        if inner is not None:
            return read_command(inner, where, engine, _variables(words[:at]))
        options, free = parse_words([w for w in words[at + 1 :] if w != "serve"], engine)
        model = options.get("model") or options.get("model_path") or next((w for w in free if "/" in w), None)
        one = Deployment(where, engine, options, environment=_variables(words[:at]), model=str(model) if model else None)
        one.version = parse_version(word.rpartition(":")[2]) if ":" in word else None
        return one
    return None


def read_command(
    text: str, where: str, engine: str | None = None, environment: Mapping[str, str] | None = None
) -> Deployment | None:
    """The engine that a command line starts, or None; `engine` when the image's entry point starts it already."""
    joined = re.sub(r"\\\s*\n", " ", text)
    found = _starter(joined)
    if found is None and engine is None and not re.search(r"\b(docker|podman|nerdctl)\b", joined):
        return None
    if found is None or re.search(r"\b(docker|podman|nerdctl)\s+run\b", joined):
        words = _split(joined, where)
        if one := _docker(words, where):
            return one
    if found is None:
        if engine is None:
            return None
        return _deployment(where, engine, _split(joined, where), dict(environment or {}))
    start, end, name = found
    line_start = joined.rfind("\n", 0, start) + 1
    line = joined[line_start:].split("\n")[0]
    # A shell around it: the word that holds the whole command is a command line of its own.
    if re.search(r"['\"]", joined[line_start:start]):
        words = _split(line, where)
        inner = next((word for word in words if " " in word and _starter(word)), None)
        if inner is not None and inner != line:
            one = read_command(inner, where, engine, environment)
            if one is not None:
                one.environment = _variables(words) | one.environment
            return one
    before = _split(joined[line_start:start], where) if start > line_start else []
    exported = _variables(re.findall(r"^\s*export\s+(\S+)", joined[:line_start], re.MULTILINE))
    rest = joined[end:].split("\n")[0] if line_start + len(line) > end else joined[end:]
    told = dict(environment or {}) | exported | _variables(before)
    return _deployment(where, name, _split(expand(rest, told), where), told)


def _deployment(where: str, engine: str, words: list[str], environment: dict[str, str]) -> Deployment:
    options, free = parse_words(words, engine)
    if engine == "llama.cpp":
        for variable, name in LLAMA_VARIABLES.items():
            if variable in environment:
                options.setdefault(name, value_of(environment[variable]))
    model = options.get("model") or options.get("model_path") or next((w for w in free if w not in ("serve",)), None)
    return Deployment(where, engine, options, environment=environment, model=str(model) if model else None)
