"""Starts vLLM's server, with matrix products in float32 where this CPU has no bfloat16. Run by vLLM's own
Python.

Without AVX-512 or AMX torch multiplies bfloat16 in a scalar loop (6 GFLOP/s on a core that does 60 in
float32), and the model cannot be float32 as a whole: vLLM's linear-attention kernel for CPUs takes bfloat16
only. Weights stay bfloat16; only large products are computed in float32 and rounded back. Nothing of vLLM's
own is changed.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

SMALL = 16  # rows: below this, converting the weights costs more than it saves


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    return bool(flags & {"amx_bf16", "avx512_bf16", "avx512f"})


def multiply_in_float32() -> None:
    import torch  # type: ignore[import-not-found]

    plain = torch.nn.functional.linear

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        if x.dtype != torch.bfloat16 or x.numel() < SMALL * x.shape[-1]:
            return plain(x, weight, bias)
        return plain(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)

    torch.nn.functional.linear = linear


# Not only as the main module: vLLM's engine and worker are processes that import this file again
if __name__ in ("__main__", "__mp_main__") and not has_bfloat16():
    multiply_in_float32()

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
