"""What to do about each verdict, for the engine and version at hand, with the price from the step-time model.

ACTIONS is ordered by effect within a verdict; `choose` keeps those that this engine and version can do,
prices them and returns at most three. A price that the facts do not give is None, never a guess.
"""

# ruff: noqa: E501  (one row of a table a line)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.advisor.derived import Derived
from headway.advisor.facts import Facts
from headway.advisor.versions import Range, show
from headway.core import frontier
from headway.core.steps import StepModel

#: Share that `pace` is asked for and the longest gap (seconds) that its pieces are sized by, when nothing
#: else is told.
SHARE = 0.5
GAP = 0.25
#: A piece from outside lasts this much longer than its chunk (seconds; the step under way, HTTP, one short
#: step).
PIECE_EXTRA = 0.085
INTERVAL = 8
#: Uncached tokens of a turn when the prefix cache works: the median of 49,334 recorded calls of a coding agent.
SUFFIX = 728

Price = dict[str, float | None]
Pricing = Callable[[StepModel | None, Facts, Derived], Price]


def _ttft(d: Derived, share: float) -> float | None:
    return None if d.work is None else frontier.ttft(d.work, share)


def _none(m: StepModel | None, f: Facts, d: Derived) -> Price:
    return {"share": None, "gap_s": None, "ttft_s": None}


def _pace(m: StepModel | None, f: Facts, d: Derived) -> Price:
    ttft = _ttft(d, SHARE)
    if m is None:
        return {"share": SHARE, "gap_s": None, "ttft_s": ttft}
    piece = max(m.tokens_within(GAP), 256)
    return {"share": SHARE, "gap_s": m.gap(piece) + PIECE_EXTRA, "ttft_s": ttft}


def _hold(m: StepModel | None, f: Facts, d: Derived) -> Price:
    return {"share": 1.0, "gap_s": m.a if m else None, "ttft_s": 30.0 + d.work if d.work else None}


def _interval(m: StepModel | None, f: Facts, d: Derived) -> Price:
    now = f.chunk or d.chunk_counted or d.chunk_seen
    if m is None or now is None:
        return _none(m, f, d)
    chunk = int(min(now, smaller_chunk(f, d)) if f.engine.family == "vllm" else now)
    share = frontier.share_of_cycle(m.a, m.gap(chunk), INTERVAL - 1)
    return {"share": share, "gap_s": m.gap(chunk), "ttft_s": _ttft(d, share)}


def smaller_chunk(f: Facts, d: Derived) -> int:
    """The next sensible step bound in tokens: never between the block and the block plus the decodes."""
    block = f.options.get("block_size")
    if isinstance(block, int | float) and f.engine.hybrid and block > 256:
        return 2048 if block < 2048 - 64 else int(block) + 512
    now = f.chunk or d.chunk_counted or d.chunk_seen or 4096
    return max(256, int(now // 4)) if now <= 1.25 * 2048 else 2048


def _chunk(m: StepModel | None, f: Facts, d: Derived) -> Price:
    if m is None:
        return _none(m, f, d)
    gap = m.gap(smaller_chunk(f, d))
    share = frontier.share_of_cycle(m.a, gap)
    return {"share": share, "gap_s": gap, "ttft_s": _ttft(d, share)}


def _hits(m: StepModel | None, f: Facts, d: Derived) -> Price:
    return {"share": None, "gap_s": m.gap(SUFFIX) if m else None, "ttft_s": SUFFIX / d.prefill_rate if d.prefill_rate else None}


def _alone(m: StepModel | None, f: Facts, d: Derived) -> Price:
    return {"share": 1.0, "gap_s": 1 / d.solo if d.solo else None, "ttft_s": d.work}


def _once(m: StepModel | None, f: Facts, d: Derived) -> Price:
    return {"share": None, "gap_s": None, "ttft_s": d.work}


#: What a price rests on; said beside it.
BASIS: dict[Pricing, str] = {
    _none: "no schedule: what it brings has to be measured",
    _pace: "T = W/(1 - share); gap = a + e + b x piece + 85 ms",
    _hold: "the whole wait of 30 s, then the prefill alone",
    _interval: f"{INTERVAL} steps a cycle, one of them with a chunk; T = W/(1 - share)",
    _chunk: "share = a/(a + e + b x chunk); T = W/(1 - share)",
    _hits: f"{SUFFIX} uncached tokens a turn, the median of recorded agent calls",
    _alone: "one stream at a time",
    _once: "one copy: the prefill alone",
}
ANY = Range()


@dataclass(frozen=True, slots=True)
class Action:
    verdicts: tuple[str, ...]
    what: str
    price: Pricing = _none
    family: str | None = None
    versions: Range = ANY
    hybrid: bool | None = None
    gateway: bool | None = None


STALLS = ("chunk-arithmetic", "prefill-first", "running-order", "no-op-option", "mixed-step-cost")
PACED = ("chunk-arithmetic", "no-op-option", "prefill-first", "running-order")

ACTIONS: tuple[Action, ...] = (
    Action(("mixed-step-cost",), "put headway in front with policy `hold`: no mixed step is run while a protected answer streams, for at most 30 s", _hold),
    Action(("mixed-step-cost",), "pace with the largest piece that the longest gap allows ({piece} tokens) and decode-only time between: the fixed cost is then paid seldom", _pace),
    Action(("mixed-step-cost",), "do not shrink the chunk; let CUDA graphs cover the mixed step (--max-cudagraph-capture-size up to the chunk) and measure again", family="vllm"),
    Action(PACED, "headway is in front already: choose another point with its --share and --gap; T = W/(1 - share) is what one engine can give", _pace, gateway=True),
    Action(PACED, "put headway in front with policy `pace`: long prompts go in pieces of about {piece} tokens through the prefix cache, and live answers keep {share:.0%}", _pace),
    Action(PACED, "set --prefill-schedule-interval {interval} with --max-num-batched-tokens {chunk}: {interval_less} decode-only steps between chunks", _interval, "vllm", Range("0.33")),
    Action(PACED, "upgrade to vLLM 0.33 and set --prefill-schedule-interval {interval} with --max-num-batched-tokens {chunk}; in {version} the interval is unknown or does nothing on one engine", _interval, "vllm", Range(None, "0.33")),
    Action(PACED, "set --prefill-decode-interval {interval}: {interval} decode rounds after each prefill batch", _interval, "sglang"),
    Action(("running-order",), "set --long-prefill-token-threshold to half of the step budget, so that a second request fits beside a long prefill", _none, "vllm", hybrid=False),
    Action(PACED, "set --max-num-batched-tokens {chunk}; in {version} a threshold under the block is refused and a budget equal to the block silently serialises", _chunk, "vllm", Range(None, "0.27"), hybrid=True),
    Action(PACED, "set --max-num-batched-tokens {chunk}", _chunk, "vllm"),
    Action(PACED, "start the server with -b {chunk} -ub {ubatch}: the gap follows the batch, the prefill gets slower", _chunk, "llama.cpp"),
    Action(PACED, "set --chunked-prefill-size {chunk}", _chunk, "sglang"),
    Action(PACED, "put headway in front with policy `hold`: a long prompt waits while a protected answer streams, for at most 30 s", _hold),
    Action(("decode-concurrent",), "lower the batch limit (--max-num-seqs, -np, --max-running-requests) until each stream keeps its rate; no prefill policy helps", _alone),
    Action(("decode-concurrent",), "compare with speculation off and with another attention backend at batch 2: one of them falls off its fast path"),
    Action(("cache-miss",), "log two successive rendered prompts and compare: the first token that differs is where the cache ends (dates, tool order, thinking blocks)", _hits),
    Action(("cache-miss",), "switch prefix caching on explicitly (--enable-prefix-caching): for hybrid models it is off by default before 0.26", _hits, "vllm", Range(None, "0.26")),
    Action(("cache-miss",), "set --prefix-match-unit 16 so that hits are finer than the block, and --prefix-cache-retention-interval to the block to keep more states", _hits, "vllm", Range("0.30")),
    Action(("cache-miss",), "set --prefix-match-unit 16 so that hits are finer than the block", _hits, "vllm", Range("0.26", "0.30")),
    Action(("cache-miss",), "check that the radix cache is on (no --disable-radix-cache) and look at #cached-token of a second turn", _hits, "sglang"),
    Action(("cache-miss",), "give each conversation its own slot (-np at least the number of clients, id_slot) and check `cached n_tokens` in the log", _hits, "llama.cpp"),
    Action(("preemption",), "lower --max-num-seqs (or --max-running-requests) until preemptions stay at 0"),
    Action(("preemption",), "give the KV cache more room: fp8 keys and values, higher memory utilisation, shorter maximum length"),
    Action(("host",), "give the engine's processes their own cores (two for the front end, one a worker) and stop what else runs on them"),
    Action(("host",), "switch swap off for the engine's processes and leave memory for the page cache"),
    Action(("resend",), "raise the client's limit above the longest wait for a first token, and stream", _once),
    Action(("resend",), "put headway in front: it keeps silent streams alive with comments and joins or cancels the copies of a request", _once),
    Action(("serialised-trap",), "set --max-num-batched-tokens to at least the block plus all decode tokens ({above}), or below the block from 0.27 on", _chunk, "vllm"),
    Action(("serialised-trap",), "then put headway in front with policy `pace` to choose the share", _pace),
    Action(("no-overlap",), "raise the slot limit by one and measure again: this measurement says nothing of interference"),
    Action(("overshoot",), "bound the hold: headway's `wait` (30 s) ends it and goes on as `pace`", _pace),
    Action(("overshoot",), "lower --prefill-schedule-interval, to 2 first: the price is paid by every burst", family="vllm", versions=Range("0.24")),
    Action(("corruption",), "report it to the engine with both texts at temperature 0; run prefills alone (headway policy `hold`) until it is fixed", _hold),
)  # fmt: skip


def choose(verdict: str, f: Facts, d: Derived) -> list[dict[str, Any]]:
    """At most three actions for this verdict, engine and version, most effective first."""
    m = d.model()
    piece = max(m.tokens_within(GAP), 256) if m else 1024
    block = f.options.get("block_size")
    words = {
        "version": show(f.engine.version),
        "piece": piece,
        "share": SHARE,
        "interval": INTERVAL,
        "interval_less": INTERVAL - 1,
        "chunk": smaller_chunk(f, d),
        "ubatch": min(512, smaller_chunk(f, d)),
        "above": f"{int(block) + 64} or more" if isinstance(block, int | float) else "block + live streams",
    }
    found: list[dict[str, Any]] = []
    for action in ACTIONS:
        fits = verdict in action.verdicts and action.family in (None, f.engine.family)
        if not fits or action.versions.holds(f.engine.version) is False:
            continue
        if action.hybrid is not None and action.hybrid != f.engine.hybrid:
            continue
        behind = str(f.options.get("gateway", "")).startswith("headway")
        if behind is not (action.gateway or False) and (action.gateway or "headway in front" in action.what):
            continue
        what = action.what.format(**words)
        if action.versions.holds(f.engine.version) is None:
            what = f"if the version is {action.versions}: {what}"
        if action.price is _chunk and any(entry["_kind"] is _chunk for entry in found):
            continue
        if action.price is _chunk and f.chunk and smaller_chunk(f, d) >= f.chunk and verdict != "serialised-trap":
            continue
        found.append({"what": what, "predicted": action.price(m, f, d), "_kind": action.price})
    if verdict in PACED:
        # `hold` gives the whole share and takes the newcomer's whole wait: offered last, as the blunt tool.
        found.sort(key=lambda entry: -(entry["predicted"]["share"] or 0) if entry["_kind"] is not _hold else 1)
    return [{"what": e["what"], "predicted": _rounded(e["predicted"]), "basis": BASIS[e["_kind"]]} for e in found[:3]]


def _rounded(price: Price) -> Price:
    return {name: None if value is None else round(value, 3) for name, value in price.items()}
