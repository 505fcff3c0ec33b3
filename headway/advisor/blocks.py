"""The block size that vLLM gives a hybrid model, from its config.json.

The block of the attention layers is the smallest multiple of the kernel's block whose page is at least as
large as the page that holds one linear-attention state (vLLM, platforms/interface.py,
`_align_hybrid_block_size`; state shapes in model_executor/layers/mamba/mamba_utils.py). Tensor parallelism
divides both sides, so it does not matter while both shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

#: Kernel block of the usual attention backends, tokens.
KERNEL_BLOCK = 16

BYTES: dict[str, float] = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1, "nvfp4": 0.5625,
}  # fmt: skip

#: Models whose shapes are public and often served, by a part of their name.
KNOWN: dict[str, dict[str, Any]] = {
    "qwen3.6-27b": {
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
}
KNOWN["qwen3.5-27b"] = KNOWN["qwen3.6-27b"]


def known_config(model: str | None) -> dict[str, Any] | None:
    """Shapes of a model that the table knows, from its name."""
    name = (model or "").lower()
    return next((shapes for part, shapes in KNOWN.items() if part in name), None)


def state_bytes(config: Mapping[str, Any], speculative_tokens: int = 0) -> float | None:
    """Bytes of one layer's linear-attention state (recurrent part and convolution window); None when there is none."""
    if "linear_num_value_heads" not in config:
        return None
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    recurrent = values * config["linear_key_head_dim"] * BYTES[config.get("mamba_ssm_dtype") or "float32"]
    window = config["linear_conv_kernel_dim"] - 1 + speculative_tokens
    return float(recurrent + (2 * keys + values) * window * BYTES[_dtype(config)])


def hybrid_block_size(config: Mapping[str, Any], kv_cache_dtype: str = "auto", speculative_tokens: int = 0) -> int | None:
    """Tokens of a block in align mode; None when the model is not hybrid or the key/value type is not known.

    Qwen3.6-27B: 784 with bf16 keys and values, 1,568 with fp8.
    """
    text = config.get("text_config") or config
    state = state_bytes(text, speculative_tokens)
    width = BYTES.get(_dtype(text) if kv_cache_dtype == "auto" else kv_cache_dtype)
    if state is None or width is None:
        return None
    token: float = 2 * text["num_key_value_heads"] * text["head_dim"] * width
    return KERNEL_BLOCK * ceil(state / (KERNEL_BLOCK * token))


def is_hybrid(config: Mapping[str, Any]) -> bool:
    """True when some layers keep a recurrent state instead of keys and values."""
    text = config.get("text_config") or config
    kinds = set(text.get("layer_types") or ())
    return "linear_attention" in kinds or "mamba" in kinds or "linear_num_value_heads" in text or "mamba_d_state" in text


def _dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
