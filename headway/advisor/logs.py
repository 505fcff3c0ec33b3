"""Server logs, as people paste them, to a report: {"engine": .., "given": {"config": .., "observed": ..}}.

Reads vLLM's interval lines, SGLang's batch lines and llama.cpp's timings; anything before the message
(container names, timestamps, process ids) is ignored, because every pattern is searched for inside the
line. Colours go, a line that a terminal or a ticket has wrapped is joined again, and the lines of several
engines or ranks are added up. What a log cannot tell is left out, so the verdict may be "undetermined".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from headway.errors import UsageError

Report = dict[str, Any]

_VLLM = re.compile(
    r"Avg prompt throughput:\s*([\d.]+)\s*tokens/s,\s*Avg generation throughput:\s*([\d.]+)\s*tokens/s,\s*Running:\s*(\d+)"
    r"(?:.*?(?:Waiting|Pending):\s*(\d+))?(?:.*?KV cache usage:\s*([\d.]+)%)?(?:.*?hit rate:\s*([\d.]+)%)?"
)
_VLLM_VERSION = re.compile(r"(?:vLLM.*version|\bversion)\s+v?(\d+\.\d+[\w.+-]*)", re.IGNORECASE)
_VLLM_ARGS = re.compile(r"non-default args:\s*(\{.*\})")
_VLLM_BLOCK = re.compile(r"Setting attention block size to (\d+) tokens")
_CHUNK = re.compile(r"max_num_batched_tokens\s*=\s*(\d+)")
_PREEMPT = re.compile(r"preempt(?:ed|ing) request|is preempted by|Sequence group .* preempted", re.IGNORECASE)

_SGL_PREFILL = re.compile(
    r"Prefill batch.*?#new-token:\s*(\d+),\s*#cached-token:\s*(\d+).*?#running-req:\s*(\d+)(?:.*?#queue-req:\s*(\d+))?"
)
_SGL_DECODE = re.compile(r"Decode batch.*?#running-req:\s*(\d+).*?gen throughput \(token/s\):\s*([\d.]+)")
_SGL_RETRACT = re.compile(r"retract", re.IGNORECASE)
_SGL_ARG = re.compile(
    r"\b(chunked_prefill_size|enable_mixed_chunk|prefill_decode_interval|speculative_algorithm|max_running_requests)=([\w'.-]+)"
)

_LCPP_PROMPT = re.compile(r"prompt eval time\s*=\s*([\d.]+)\s*ms\s*/\s*(\d+)\s*tokens")
_LCPP_EVAL = re.compile(r"(?<!prompt )eval time\s*=\s*([\d.]+)\s*ms\s*/\s*(\d+)\s*(?:tokens|runs)")
_LCPP_REDO = re.compile(r"forcing full prompt re-?processing|cache_n\s*=\s*0\b")
_LCPP_OPTION = re.compile(r"\b(n_batch|n_ubatch|n_slots|n_parallel)\s*=\s*(\d+)")

#: A stream below this part of the best rate in the log counts as disturbed.
_DISTURBED = 0.5


def read_log(text: str) -> Report:
    """Report of one log; UsageError when no line of a known server is in it."""
    lines = unwrap(text)
    for reader, mark in (
        (_vllm, _VLLM),
        (_sglang, _SGL_PREFILL),
        (_sglang, _SGL_DECODE),
        (_llama, _LCPP_EVAL),
        (_llama, _LCPP_PROMPT),
    ):
        if any(mark.search(line) for line in lines):
            return reader(lines)
    raise UsageError("log: no interval line of vLLM, batch line of SGLang or timing of llama.cpp in it")


#: Colours and cursor movements, and what a terminal's log leaves of them.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|\[(?:\d{1,3})(?:;\d{1,3})*m|\r(?!\n)")
#: How a log line begins, behind a container's name: a level, a date, a clock, a bracket, or a program's word.
_BEGINS = re.compile(
    r"^(?:[\w.-]+\s*\|\s*)?(?:\(\w[^)]{0,60}\)\s*)*(?:INFO|WARN|ERROR|DEBUG|CRITICAL|\[?\d{4}-\d\d-\d\d|\[?\d{1,2}:\d\d|\[|\d+\.\d+\."
    r"|slot|srv|main:|prompt eval|\s+(?:prompt )?eval|[A-Z][a-z]{2} +\d+ |\{\")"
)
#: A line that holds one of these is a message of its own, whatever stands before it.
_WHOLE = re.compile(
    r"Avg prompt throughput:|Prefill batch|Decode batch|eval time\s*=|[Pp]reempt|retract|non-default args|version"
)
_CONTAINER = re.compile(r"^[a-z][\w.-]*\s*\|\s?")
#: A record of a log is seldom wrapped into more lines than this.
_WRAPPED = 6


def unwrap(text: str) -> list[str]:
    """Lines without colours; a line that continues the one before it (wrapped by a terminal) is joined to it."""
    lines: list[str] = []
    joined = 0
    for raw in _ESCAPES.sub("", text).splitlines():
        if lines and raw.strip() and joined < _WRAPPED and not _BEGINS.match(raw) and not _WHOLE.search(raw):
            rest = _CONTAINER.sub("", raw).strip()
            lines[-1] = f"{lines[-1].rstrip()} {rest}"
            joined += 1
        else:
            lines.append(raw)
            joined = 0
    return lines


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str | None:
    return next((hit.group(1) for line in lines if (hit := pattern.search(line))), None)


def _vllm(lines: list[str]) -> Report:
    rows = _added_up(lines)
    version = _first(_VLLM_VERSION, lines)
    old = version is None and any("metrics.py" in line and "Swapped" in line for line in lines)
    name = f"vllm {version}" if version else ("vllm v0" if old else "vllm")
    config: dict[str, Any] = {}
    if args := _first(_VLLM_ARGS, lines):
        try:
            config |= {k: v for k, v in ast.literal_eval(args).items() if isinstance(v, int | float | str | bool)}
            if "speculative_config" in args:
                name += ", speculative decoding"
        except (ValueError, SyntaxError):
            pass  # a cut line: the options are then not known
    if chunk := _first(_CHUNK, lines):
        config.setdefault("max_num_batched_tokens", int(chunk))
    if block := _first(_VLLM_BLOCK, lines):
        config["block_size"] = int(block)
        name += ", hybrid"
    observed = _vllm_observed(rows)
    evicted = sum(bool(_PREEMPT.search(line)) for line in lines)
    if evicted:
        observed["preemptions"] = evicted
    return {"engine": name, "given": {"config": config, "observed": observed}}


_RANK = re.compile(r"Engine (\d{3})\b")
#: Prompt rate, generation rate, running, waiting, KV usage, hit rate of one interval; None where a version does not say.
Row = tuple[float | None, ...]


def _added_up(lines: list[str]) -> list[Row]:
    """One row an interval: lines of different engines (`Engine 000`, `Engine 001`, ..) that follow each other are one interval.

    Rates and counts are summed, usages are the highest.
    """
    rows: list[Row] = []
    ranks: set[str] = set()
    for line in lines:
        hit = _VLLM.search(line)
        if not hit:
            continue
        row = tuple(float(x) if x else None for x in hit.groups())
        rank = _RANK.search(line)
        if rank and ranks and rank.group(1) not in ranks:
            ranks.add(rank.group(1))
            rows[-1] = tuple(_join(at, a, b) for at, (a, b) in enumerate(zip(rows[-1], row, strict=True)))
            continue
        ranks = {rank.group(1)} if rank else set()
        rows.append(row)
    return rows


def _join(at: int, a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return a if b is None else b
    return a + b if at < 4 else max(a, b)


def _vllm_observed(rows: list[Row]) -> dict[str, Any]:
    """Solo rate from calm lines, and the worst interval: the one with the fewest tokens for each decoding stream."""
    calm = [(g or 0) / r for p, g, r, *_ in rows if r and not p and g]
    observed: dict[str, Any] = {}
    solo = max(calm, default=None)
    busy = [row for row in rows if row[2] and row[2] >= 2 and row[0]]
    crowd = [row for row in rows if row[2] and row[2] >= 2 and not row[0]]
    worst = min(busy, key=lambda row: (row[1] or 0) / (row[2] or 1), default=None)
    if worst is None or (solo and (worst[1] or 0) / (worst[2] or 1) > _DISTURBED * solo):
        slow = min(crowd, key=lambda row: (row[1] or 0) / (row[2] or 1), default=None)
        if slow and (not solo or (slow[1] or 0) / (slow[2] or 1) <= _DISTURBED * solo or not busy):
            worst = slow
    if worst is None:
        worst = next((row for row in rows if row[0]), None)
    if worst is None:
        return observed
    observed |= {"prompt_tps": worst[0], "gen_tps": worst[1], "running": worst[2]}
    observed |= {"waiting": worst[3]} if worst[3] is not None else {}
    observed |= {"kv_usage_pct": worst[4]} if worst[4] is not None else {}
    if solo and solo > 0:
        observed["solo_tps"] = round(solo, 2)
    # A cumulative rate near 0 means cold turns only when there were several of them.
    bouts = sum(1 for before, after in pairwise(rows) if not before[0] and after[0])
    rate = rows[-1][5]
    if rate is not None and rate < 1 and bouts >= 5 and worst[2] == 1:
        observed["hit_rate"] = rate / 100
    return observed


def _sglang(lines: list[str]) -> Report:
    prefills = [tuple(int(x or 0) for x in hit.groups()) for line in lines if (hit := _SGL_PREFILL.search(line))]
    decodes = [(int(hit.group(1)), float(hit.group(2))) for line in lines if (hit := _SGL_DECODE.search(line))]
    config: dict[str, Any] = {}
    for line in lines:
        for name, value in _SGL_ARG.findall(line):
            word = value.strip("'")
            config[name] = (
                int(word) if word.lstrip("-").isdigit() else {"True": True, "False": False, "None": None}.get(word, word)
            )
    spec = config.pop("speculative_algorithm", None) or any("accept len" in line for line in lines)
    observed: dict[str, Any] = {}
    beside = [p for p in prefills if p[2] > 0]
    # SGLang writes one decode line for 40 steps, so the counts are compared as steps.
    observed |= {"prefill_batches": len(beside), "decode_batches": len(decodes)} if beside or decodes else {}
    if decodes:
        rates = [rate / max(n, 1) for n, rate in decodes]
        observed |= {
            "solo_tps": max(rates),
            "worst_stream_tps": min(rates),
            "running": max(n for n, _ in decodes),
        }
    cold = [p for p in prefills if p[0] > 1000]
    if len(cold) >= 5 and not beside and sum(p[1] for p in cold) < 0.05 * sum(p[0] for p in cold):
        observed |= {"cached_tokens": sum(p[1] for p in cold), "prompt_tokens": sum(p[0] for p in cold)}
    retracted = sum(bool(_SGL_RETRACT.search(line)) for line in lines)
    if retracted:
        observed["retracted"] = retracted
    name = "sglang, speculative decoding" if spec else "sglang"
    version = next(
        (hit.group(1) for line in lines if (hit := re.search(r"sglang[ =v:-]*(\d+\.\d+[\w.]*)", line, re.IGNORECASE))),
        None,
    )
    return {
        "engine": f"{name} {version}" if version else name,
        "given": {"config": config, "observed": observed},
    }


def _llama(lines: list[str]) -> Report:
    config: dict[str, Any] = {name: int(value) for line in lines for name, value in _LCPP_OPTION.findall(line)}
    for name in ("n_slots", "n_parallel"):
        if name in config:
            config["parallel"] = config.pop(name)
    prompts = [(float(h.group(1)) / 1e3, int(h.group(2))) for line in lines if (h := _LCPP_PROMPT.search(line))]
    evals = [(float(h.group(1)) / 1e3, int(h.group(2))) for line in lines if (h := _LCPP_EVAL.search(line))]
    observed: dict[str, Any] = {}
    rates = [n / t for t, n in evals if t > 0 and n > 1]
    if rates:
        observed["solo_tps"] = round(max(rates), 3)
    if len(rates) >= 2:
        observed["worst_stream_tps"] = round(min(rates), 3)
    long = [(t, n) for t, n in prompts if n >= 256 and t > 0]
    if long:
        t, n = max(long, key=lambda row: row[1])
        observed |= {"prefill_tps": round(n / t, 1), "prompt_tokens": n}
    redone = sum(bool(_LCPP_REDO.search(line)) for line in lines)
    if redone >= 2:
        observed["text"] = f"the log says {redone} times that the whole prompt is processed again"
    config.setdefault("n_batch", 2048)
    return {"engine": "llama.cpp server", "given": {"config": config, "observed": observed}}
