"""How fast virtual time runs: an engine alone against a trace, single steps beside leaps; and a whole replay with its controller.

    python benchmarks/simulator_speed.py claude_code_traces_requests.csv --every 640 --json FILE

Times real is the trace's span (first arrival to last output) over CPU seconds of this one process, reading the trace included
and also without it. The span depends on how many sessions are open at once, which `--every` sets; the page says how many
calls were in the engine on average. Single steps are timed on the first `--compare` calls only, leaps on the same ones beside.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.core.targets import Targets
from headway.replay.prompts import Prompts
from headway.simulator.engine import Engine, EngineSettings
from headway.simulator.leap import Stretch
from headway.simulator.profiles import profile_named
from headway.simulator.replay import Arrival, Replay
from headway.simulator.request import Request
from headway.simulator.virtual import run
from headway.traces import Cut, read


@dataclass
class Reader:
    """Arrivals of the trace, and the CPU seconds that reading and naming them took."""

    trace: Path
    cut: Cut
    block: int
    seconds: float = 0.0
    calls: int = 0

    def arrivals(self) -> Iterator[Arrival]:
        calls = Prompts(self.block).arrivals(read(self.trace, None, self.cut))
        while True:
            began = time.process_time()
            arrival = next(calls, None)
            self.seconds += time.process_time() - began
            if arrival is None:
                return
            self.calls += 1
            yield arrival

    def requests(self) -> Iterator[tuple[float, Request]]:
        for one in self.arrivals():
            yield one.at, Request(one.id, prompt_tokens=one.tokens, keys=one.keys or (), max_tokens=one.max_tokens)


def engine_alone(settings: EngineSettings, reader: Reader, leap: bool) -> dict[str, Any]:
    engine = Engine(settings)
    began = time.process_time()
    end = busy = present = 0.0
    for at, made in run(engine, reader.requests(), leap=leap):
        if isinstance(made, Stretch):
            end = at + made.duration
            busy += made.duration
            present += made.duration * len(made.rows)
        else:
            end = at
    return _figures(reader, time.process_time() - began, end, engine) | {"mean_decoding": present / end if leap else None}


def whole_replay(settings: EngineSettings, reader: Reader, policy: str) -> dict[str, Any]:
    block, steps = settings.layout.block_size, settings.steps
    warm = [(block * n, 0.04 + steps.step_seconds([(0, block * n)], [])) for n in (1, 2, 4)]
    replay = Replay(settings, policy, Targets(queue=100_000), overhead=0.04, warm=warm, on_end=lambda story: None)
    began = time.process_time()
    replay.run(reader.arrivals())
    return _figures(reader, time.process_time() - began, replay.now, replay.engine) | {"policy": policy}


def _figures(reader: Reader, cpu: float, span: float, engine: Engine) -> dict[str, Any]:
    counters = engine.counters
    return {
        "calls": reader.calls, "span_s": span, "steps": counters.steps, "output_tokens": counters.generation_tokens,
        "hit_share": counters.cache_hits / max(counters.cache_queries, 1), "cpu_s": cpu, "reading_s": reader.seconds,
        "times_real": span / cpu, "times_real_without_reading": span / (cpu - reader.seconds),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--profile", default="h200-qwen3.6-27b")
    parser.add_argument("--every", type=float, default=640.0, help="seconds between the starts of two sessions")
    parser.add_argument("--max-model-len", type=int, help="tokens; calls with longer prompts are left out")
    parser.add_argument("--limit", type=int, help="first so many calls")
    parser.add_argument("--compare", type=int, default=1000, help="calls on which single steps are timed too; 0: none")
    parser.add_argument("--policy", default="pace", help="of the whole replay; empty: none")
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    settings = profile_named(told.profile).engine
    if told.max_model_len:
        settings = replace(settings, layout=replace(settings.layout, max_model_len=told.max_model_len))
    layout = settings.layout
    # Longer prompts are refused by this engine: 20,000 tokens are left for the answer.
    cut = Cut(every=told.every, limit=told.limit, longest=layout.max_model_len - 20_000)

    def reader(limit: int | None) -> Reader:
        return Reader(told.trace, replace(cut, limit=limit), layout.block_size)

    results: dict[str, Any] = {}
    if told.compare:
        results["single steps"] = engine_alone(settings, reader(told.compare), leap=False)
        results["leaps, same calls"] = engine_alone(settings, reader(told.compare), leap=True)
    results["leaps"] = engine_alone(settings, reader(told.limit), leap=True)
    if told.policy:
        results["whole replay"] = whole_replay(settings, reader(told.limit), told.policy)
    for name, figures in results.items():
        print(
            f"{name:18} {figures['calls']:6,} calls, span {figures['span_s']:9,.0f} s, {figures['steps']:10,} steps, "
            f"CPU {figures['cpu_s']:6.1f} s (reading {figures['reading_s']:.1f}): {figures['times_real']:8,.0f} x real time, "
            f"{figures['times_real_without_reading']:8,.0f} x without reading; peak {figures['peak_rss_mib']:.0f} MiB"
        )
    print(f"mean requests decoding: {results['leaps']['mean_decoding']:.2f}")
    if told.compare:
        ratio = results["single steps"]["cpu_s"] - results["single steps"]["reading_s"]
        ratio /= results["leaps, same calls"]["cpu_s"] - results["leaps, same calls"]["reading_s"]
        print(f"leaping over stepping, engine alone: {ratio:.1f} x")
    if told.json:
        told.json.write_text(
            json.dumps({"schema": "headway.simulator-speed/1", "every_s": told.every, **results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
