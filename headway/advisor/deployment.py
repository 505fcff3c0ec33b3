"""One engine as it will be started: the input of every lint rule.

Options carry the engine's own names with underscores; what was not given is not there. `missing`: files that it names and that
could not be read. Derived numbers
(block, decode tokens a step) are None when they are not known.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from headway.advisor.blocks import hybrid_block_size, is_hybrid, known_config
from headway.advisor.versions import Version

_HYBRID_NAMES = re.compile(
    r"qwen3\.[5-9]|qwen3-next|nemotron-h|nemotron-3|granite-4\S*-h|falcon-h1|jamba|bamba|zamba|kimi-linear|lfm2|minimax-(text-)?01|ring-\S*linear|olmo-hybrid",
    re.IGNORECASE,
)


@dataclass
class Deployment:
    where: str
    engine: str
    options: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    version: Version | None = None
    model: str | None = None
    config: dict[str, Any] | None = None
    file: str | None = None
    missing: list[str] = field(default_factory=list)

    def number(self, name: str) -> float | None:
        """An option's value as a number; None when absent or not a number."""
        value = self.options.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def shapes(self) -> dict[str, Any] | None:
        return self.config or known_config(self.model)

    @property
    def hybrid(self) -> bool:
        """A model with linear-attention or Mamba layers, by its config.json, an option or its name."""
        if self.config is not None:
            return is_hybrid(self.config)
        told = self.options.get("mamba_cache_mode") not in (None, "none")
        return told or bool(_HYBRID_NAMES.search(self.model or ""))

    @property
    def speculative_tokens(self) -> int:
        """Draft tokens a step; 0 without speculation."""
        told = self.options.get("speculative_config")
        if isinstance(told, str):
            try:
                told = json.loads(told)
            except ValueError:
                return 1
        if isinstance(told, dict):
            return int(told.get("num_speculative_tokens") or 1)
        named = self.options.get("speculative_num_draft_tokens") or self.options.get("speculative_num_steps")
        if named or self.options.get("speculative_algorithm"):
            return int(named or 1)
        return 0

    @property
    def prefix_caching(self) -> bool:
        """Whether vLLM will cache prefixes: as told, else on, except for hybrids before 0.26."""
        told = self.options.get("enable_prefix_caching")
        if told is not None:
            return bool(told)
        return not (self.hybrid and self.version is not None and self.version < (0, 26))

    @property
    def block(self) -> int | None:
        """Tokens of a block in align mode; None when not aligned or not known."""
        if self.engine != "vllm" or not self.hybrid or not self.prefix_caching:
            return None
        told = self.number("block_size")
        shapes = self.shapes
        computed = (
            hybrid_block_size(shapes, str(self.options.get("kv_cache_dtype", "auto")), self.speculative_tokens)
            if shapes
            else None
        )
        return max(int(told or 0), computed or 0) or None

    @property
    def decode_tokens(self) -> int:
        """Tokens that one running stream takes from a step's budget."""
        return 1 + self.speculative_tokens
