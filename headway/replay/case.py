"""One cell of a sweep: a policy with its targets over an engine with its settings, and what came of it. Plain data, so that it
travels to other processes and machines; each reads the trace itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.targets import Targets
from headway.errors import UsageError
from headway.replay.prompts import Prompts
from headway.replay.tally import Limits, Tally
from headway.simulator.engine import SettingsError
from headway.simulator.profiles import PROFILES, configure
from headway.simulator.replay import Replay, Story
from headway.traces import Cut, read

#: What `--sweep` may vary, and what it is read as: targets of the gateway, then options of the engine.
TARGETS = {"share": float, "gap": float, "wait": float, "stretch": float, "queue": int}
ENGINE = {
    "max-num-batched-tokens": int, "max-num-seqs": int, "long-prefill-token-threshold": int, "prefill-schedule-interval": int,
    "prefill-decode-interval": int, "num-gpu-blocks": int, "block-size": int, "max-model-len": int, "mtp": int,
    "tokens-per-step": float,
    "version": str, "family": str,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    trace: Path
    policy: str
    profile: str = "demo"
    format: str | None = None
    cut: Cut = field(default_factory=Cut)
    targets: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    #: What sets this case apart from the others of its policy.
    swept: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    classes: tuple[int, ...] = (1024, 8192)
    overhead: float = 0.01
    #: Calls of one thread wait for each other's answers.
    threads: bool = True


def simulate(case: Case) -> dict[str, Any]:
    """Run a case to its end. Seconds of the trace's clock, tokens. Raises UsageError for a case that cannot run."""
    options = {name.replace("-", "_"): value for name, value in case.engine.items()}
    try:
        profile = configure(PROFILES[case.profile], **options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    prompts = Prompts(profile.engine.layout.block_size, case.classes, case.threads)
    tallies: dict[str, Tally] = {label: Tally(case.limits) for label in [*prompts.labels, "all"]}

    def ended(story: Story) -> None:
        tallies[story.arrival.label].add(story)
        tallies["all"].add(story)

    steps, block = profile.engine.steps, profile.engine.layout.block_size
    # What a probe would have timed: pieces of one, two and four blocks.
    warm = [(block * n, case.overhead + steps.step_seconds([(0, block * n)], [])) for n in (1, 2, 4)]
    try:
        replay = Replay(profile.engine, case.policy, Targets(**case.targets), overhead=case.overhead, warm=warm, on_end=ended)
    except SettingsError as error:
        raise UsageError(f"{error.option}: {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    began = time.process_time()
    replay.run(prompts.arrivals(read(case.trace, case.format, case.cut)))
    cpu = time.process_time() - began
    counters = replay.engine.counters
    return {
        "policy": case.policy,
        "swept": case.swept,
        "targets": case.targets,
        "engine": case.engine,
        "span_s": replay.now,
        "busy_share": replay.busy / replay.now if replay.now > 0 else 0.0,
        "cpu_s": cpu,
        "unfinished": len(replay.stories),
        "steps": counters.steps,
        "preemptions": counters.preemptions,
        "hit_share": counters.cache_hits / counters.cache_queries if counters.cache_queries else None,
        "classes": {label: tally.summary(replay.now) for label, tally in tallies.items()},
        "curves": {
            label: {"ttft_s": tally.ttft.curve(), "gap_s": tally.gap.curve()}
            for label, tally in tallies.items()
            if tally.answered
        },
    }
