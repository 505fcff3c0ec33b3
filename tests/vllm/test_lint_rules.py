"""The lint table against the engine that is installed: its own parser, defaults, scheduler and state shapes.

HEADWAY_VLLM_PYTHON is the Python of an environment with vLLM. What is checked follows that version, so the same test runs
against any release; one engine process answers all questions.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from headway.advisor.blocks import KNOWN, hybrid_block_size
from headway.advisor.rules import KNOWN_SINCE, RULES
from headway.advisor.versions import Range, parse_version

PYTHON = os.environ.get("HEADWAY_VLLM_PYTHON")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="HEADWAY_VLLM_PYTHON is not set: no engine to check against"),
]

ASK = r"""
import json, sys
from types import SimpleNamespace as N
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes
from vllm.v1.core.sched.scheduler import Scheduler

parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
known = {word: action.default for action in parser._actions for word in action.option_strings}
plain = lambda v: v if isinstance(v, (int, float, str, bool, type(None))) else str(v)

def chunk(budget, block, left, threshold=0, prompt=28623):
    # Only what the split reads; a new field of a later release fails loudly here.
    engine = N(cache_config=N(block_size=block), block_size=block, hash_block_size=block, max_num_scheduled_tokens=budget,
               scheduler_config=N(long_prefill_token_threshold=threshold), mamba_partial_cache_hit=False,
               mamba_shared_prefix_checkpoint=False, use_eagle=False, use_eagle_block_drop=False,
               mamba_has_prefill_checkpoint_blocks=False, mamba_prefill_checkpoint_alignment=block)
    request = N(num_computed_tokens=0, num_prompt_tokens=prompt, num_tokens=prompt, shared_prefix_boundary=0)
    return Scheduler._mamba_block_aligned_split(engine, request, left)

def state(tokens):
    conv, recurrent = Shapes.gated_delta_net_state_shape(1, 16, 48, 128, 128, 4, tokens)
    size = lambda shape: __import__("math").prod(shape)
    return size(conv) * 2 + size(recurrent) * 4

def refused(*words):
    try:
        parser.parse_args(["--model", "m", *words])
    except BaseException as error:
        return type(error).__name__
    return None

print("ANSWER" + json.dumps({
    "version": vllm.__version__,
    "defaults": {word: plain(default) for word, default in known.items()},
    "chunks": {f"{budget}-{left}-{cap}": chunk(budget, 1568, left, cap) for budget, left, cap in
               ((1568, 1567, 0), (1600, 1599, 0), (1600, 1560, 0), (1567, 1566, 0), (1024, 1023, 0), (2048, 2047, 0), (8192, 1024, 1024))},
    "state": [state(0), state(2)],
    "refused": {"partial": refused("--max-num-partial-prefills", "2"), "interval": refused("--prefill-schedule-interval", "4"),
                "all": refused("--mamba-cache-mode", "all"), "align": refused("--mamba-cache-mode", "align")},
}))
"""  # noqa: E501


@pytest.fixture(scope="module")
def engine() -> dict[str, Any]:
    assert PYTHON
    quiet = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    quiet.pop("PYTHONPATH", None)
    done = subprocess.run([PYTHON, "-c", ASK], capture_output=True, text=True, timeout=110, env=quiet, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("ANSWER"))
    return found


@pytest.mark.parametrize(("option", "since", "until"), KNOWN_SINCE)
def test_the_parser_knows_exactly_what_the_table_says(
    engine: dict[str, Any], option: str, since: str | None, until: str | None
) -> None:
    expected = Range(since, until).holds(parse_version(engine["version"]))
    assert ("--" + option.replace("_", "-") in engine["defaults"]) is expected


def test_every_option_of_the_rules_exists_or_is_in_the_table(engine: dict[str, Any]) -> None:
    """A rule about an option that no parser knows would never fire."""
    for option in ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "scheduling_policy", "kv_cache_dtype",  # noqa: E501
                   "enable_prefix_caching", "enable_chunked_prefill", "mamba_cache_mode", "speculative_config", "data_parallel_size", "block_size"):  # fmt: skip  # noqa: E501
        assert "--" + option.replace("_", "-") in engine["defaults"], option


def test_defaults(engine: dict[str, Any]) -> None:
    defaults, version = engine["defaults"], parse_version(engine["version"])
    assert defaults["--long-prefill-token-threshold"] == 0
    assert defaults["--scheduling-policy"] == "fcfs"
    if Range("0.24").holds(version):
        assert defaults["--prefill-schedule-interval"] == 1
    if Range("0.30").holds(version):
        assert defaults["--prefix-cache-retention-interval"] == 0


def test_what_is_refused(engine: dict[str, Any]) -> None:
    version = parse_version(engine["version"])
    assert bool(engine["refused"]["partial"]) is Range("0.27").holds(version)
    assert bool(engine["refused"]["interval"]) is Range(None, "0.24").holds(version)
    rule = next(r for r in RULES if r.id == "HV013")
    assert bool(engine["refused"]["all"]) is rule.versions.holds(version)
    assert engine["refused"]["align"] is None


def test_a_budget_at_the_block_serialises(engine: dict[str, Any]) -> None:
    """HV002: beside one decode token nothing of a block of 1,568 is left, in every release so far."""
    chunks = engine["chunks"]
    assert chunks["1568-1567-0"] == 0
    assert chunks["1600-1599-0"] == 1568
    assert chunks["1600-1560-0"] == 0
    assert chunks["2048-2047-0"] == 1568


def test_a_budget_below_the_block_works_from_0_27(engine: dict[str, Any]) -> None:
    """HV001 ends at 0.27: chunks then advance inside a block."""
    if not Range("0.27").holds(parse_version(engine["version"])):
        pytest.skip("before 0.27 the start refuses it")
    assert engine["chunks"]["1567-1566-0"] == 1566
    assert engine["chunks"]["1024-1023-0"] == 1023
    assert engine["chunks"]["8192-1024-1024"] == 1024


def test_state_sizes_give_the_block(engine: dict[str, Any]) -> None:
    """The bytes behind 784 and 1,568, and the larger window that speculation needs."""
    config = KNOWN["qwen3.6-27b"]
    for tokens, size in zip((0, 2), engine["state"], strict=True):
        for dtype, width in (("auto", 2), ("fp8", 1)):
            token = 2 * 4 * 256 * width
            block = hybrid_block_size(config, dtype, tokens)
            assert block and block * token >= size > (block - 16) * token
