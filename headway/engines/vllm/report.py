"""What the scheduler class tells: log lines, and Prometheus counters where they can reach vLLM's /metrics.

The scheduler runs in the engine's process, /metrics is served by another. prometheus_client carries numbers across only by
files, when PROMETHEUS_MULTIPROC_DIR names an empty directory at the start of the server.

Invariant: nothing is logged unless prefill met live answers since the last line, and at most once in `EVERY` seconds.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Protocol

from headway.engines.vllm.cadence import StepPacer, Tally

EVERY = 10.0
"""Seconds between two lines."""


class Log(Protocol):
    def info(self, message: str, *values: object) -> None: ...

    def warning(self, message: str, *values: object) -> None: ...


class Report:
    def __init__(self, log: Log, pacer: StepPacer, asynchronous: bool) -> None:
        self._log = log
        self._pacer = pacer
        self._asynchronous = asynchronous
        self._next = 0.0
        self._told = Tally()
        self._counters: dict[str, Any] = {}

    def start(self, version: str) -> None:
        targets, rule = self._pacer.targets, self._pacer.rule
        self._log.info(
            "Headway scheduler: share %.2f, gap %.0f ms, wait %.0f s; %s, vLLM %s, budget %d tokens, block %d%s",
            self._pacer.share, 1000 * targets.gap, targets.wait, "async" if self._asynchronous else "sync", version,
            rule.budget, rule.block, " (align)" if rule.align else "",
        )  # fmt: skip
        if rule.whole_blocks and rule.budget <= rule.block:
            self._log.warning(
                "Headway scheduler: a budget of %d tokens has no room for a block of %d beside a decode: prompts will wait "
                "until no one decodes. Raise --max-num-batched-tokens", rule.budget, rule.block,
            )  # fmt: skip
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            self._counters = _counters(self._pacer)

    def tick(self, now: float) -> None:
        """There is or was prefill work."""
        if now < self._next:
            return
        self._next = now + EVERY
        self.end()

    def end(self) -> None:
        line = self.line()
        if line is not None:
            self._log.info("%s", line)

    def line(self) -> str | None:
        """What happened since the last one, or None when nothing did."""
        tally, told = self._pacer.tally, self._told
        seconds = tally.overlap_s - told.overlap_s
        chunks = tally.chunks - told.chunks
        if seconds <= 0:
            return None
        kept = (tally.turns_s - told.turns_s) / seconds
        model = self._pacer.model()
        cost = "" if model is None else f"; a {1e3 * model.a:.1f} ms, e {1e3 * model.e:.1f} ms, b {1e6 * model.b:.1f} us/token"
        text = (
            f"Headway: {seconds:.1f} s of prefill beside live answers, which kept {kept:.2f} (target {self._pacer.share:.2f}); "
            f"longest gap {1e3 * tally.longest_gap:.0f} ms (target {1e3 * self._pacer.targets.gap:.0f}); {chunks} chunks of "
            f"{(tally.tokens - told.tokens) / max(chunks, 1):.0f} tokens, {tally.held - told.held} steps held, "
            f"{tally.yields - told.yields} yields{cost}"
        )
        for name, counter in self._counters.items():
            counter.inc(max(0.0, getattr(tally, name) - getattr(told, name)))
        tally.longest_gap = 0.0
        self._told = replace(tally)
        return text


def _counters(pacer: StepPacer) -> dict[str, Any]:
    """Counters by the names of Tally's fields; and the target, by which a gateway can tell that the engine paces itself."""
    from prometheus_client import Counter, Gauge

    share = Gauge("headway_scheduler_share_target", "Share that the scheduler class keeps", multiprocess_mode="mostrecent")
    share.set(pacer.share)
    helps = {
        "overlaps": "Times that prefill met live answers",
        "overlap_s": "Seconds of steps with live answers beside prefill work",
        "turns_s": "Of these, what the live answers' turns are worth at their solo rate",
        "held": "Steps in which prefill was held",
        "chunks": "Steps with prefill",
        "tokens": "Tokens prefilled in them",
        "yields": "Times that the share yielded to a newcomer",
    }
    names = {"overlap_s": "overlap_seconds", "turns_s": "turns_seconds", "held": "held_steps", "tokens": "chunk_tokens"}
    return {field: Counter(f"headway_scheduler_{names.get(field, field)}", text) for field, text in helps.items()}
