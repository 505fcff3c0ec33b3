"""Which engine a report speaks of, and how that engine shares a step between prefill and decode.

`schedule` is the one trait that verdicts rest on:
- "mixed": decodes ride in the step that carries a prefill chunk, so a stream gets one token a step (vLLM
  V1, llama.cpp);
- "alternate": a batch is prefill or decode, prefill first, so decoding stops until the prefill is through
  (SGLang, MLX);
- None: not known, or it depends on the version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.advisor.versions import Version, parse_version

#: pattern in the engine's name -> family, schedule, source. The first that matches counts.
FAMILIES: tuple[tuple[str, str, str | None, str], ...] = (
    (
        r"prefill[- ]first|prefill xor decode|prefill[- ]priorit",
        "other",
        "alternate",
        "the report says so itself",
    ),
    (r"sglang|\bsgl\b", "sglang", "alternate", "https://github.com/sgl-project/sglang/pull/35017"),
    (
        r"mlx[-_]lm",
        "mlx",
        None,
        "https://github.com/ml-explore/mlx-lm/pull/1288 (one decode step for each prefill chunk; older ones whole prefills)",
    ),
    (
        r"vllm[- ]mlx|\bmlx\b|mlx[-_]lm|rapid-mlx|omlx",
        "mlx",
        "alternate",
        "https://github.com/ml-explore/mlx-lm",
    ),
    (
        r"lmdeploy|turbomind",
        "lmdeploy",
        "alternate",
        "https://github.com/InternLM/lmdeploy/issues/1740",
    ),
    (
        r"\btgi\b|text-generation-inference",
        "tgi",
        "alternate",
        "https://huggingface.co/docs/text-generation-inference",
    ),
    (r"vllm|aphrodite", "vllm", "mixed", "https://docs.vllm.ai (chunked prefill)"),
    (
        r"llama[._-]?cpp|llama-server|ollama|koboldcpp|llamafile|lm ?studio",
        "llama.cpp",
        "mixed",
        "https://github.com/ggml-org/llama.cpp/issues/4216",
    ),
    (
        r"tensorrt[- ]?llm|trt-?llm",
        "tensorrt-llm",
        "mixed",
        "https://nvidia.github.io/TensorRT-LLM (in-flight batching)",
    ),
)

_SPECULATIVE = re.compile(r"\bspec(ulative|\b)|\bmtp\b|eagle|draft|dflash|medusa|nextn", re.IGNORECASE)
_HYBRID = re.compile(
    r"hybrid|mamba|\bgdn\b|gated delta|align mode|qwen3\.[5-8]|qwen3-next|nemotron-h|kimi-linear",
    re.IGNORECASE,
)

_DERIVED = re.compile(r"\bfork|\b(?!vllm)\w+-vllm\b|\bvllm\.(rs|cpp)\b|vllm-(?!cpu|openai)[a-z]|plug-?in", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Engine:
    """What is known of the engine. `version` None: not told. `derived`: a fork or plug-in, whose scheduler may be its own."""

    name: str
    family: str = "other"
    schedule: str | None = None
    version: Version | None = None
    speculative: bool = False
    hybrid: bool = False
    derived: bool = False

    @property
    def title(self) -> str:
        number = ".".join(map(str, self.version)) if self.version else "(version unknown)"
        return f"{self.family if self.family != 'other' else self.name} {number}"


def _version(text: str, family: str) -> Version | None:
    """The engine's own version: beside its name or the word "version"; else a 0.x number, never a model's ("Qwen3.6")."""
    beside = (
        r"(?:sglang|vllm|llama\.?cpp|ollama)[\s:=/,-]{0,3}(?:version\s*)?(v?\d+\.\d[\w.+-]*)|\bversion[\s:=]*(v?\d+\.\d[\w.+-]*)"
    )
    if named := re.search(beside, text, re.IGNORECASE):
        return parse_version(named.group(1) or named.group(2))
    if family in ("vllm", "sglang") and (
        number := re.search(r"(?<![\w.])v?0\.\d{1,2}(?:\.\d+|\.?post\d+|rc\d+)*", text, re.IGNORECASE)
    ):
        return parse_version(number.group(0))
    return None


def parse_engine(text: str) -> Engine:
    """Engine from the free text of a report, e.g. "vllm 0.25.1 hybrid align, block 1568"."""
    family, schedule = "other", None
    for pattern, name, how, _source in FAMILIES:
        if re.search(pattern, text, re.IGNORECASE):
            family, schedule = name, how
            break
    if family == "other" and schedule is None and re.search(r"quant[au]|chunked|interleav", text, re.IGNORECASE):
        schedule = "mixed"
    version = _version(text, family)
    if family == "vllm" and (
        (version is not None and version < (0, 8)) or re.search(r"\b0\.x\b|\bv0\b(?!\.)", text, re.IGNORECASE)
    ):
        # V0 ran whole prefill batches first; from 0.4.2 on chunks could be switched on, and were on for
        # long contexts.
        schedule = "alternate" if version is not None and version < (0, 4, 2) else None
    return Engine(
        text, family, schedule, version, bool(_SPECULATIVE.search(text)), bool(_HYBRID.search(text)), bool(_DERIVED.search(text))
    )
