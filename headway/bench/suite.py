"""A whole measurement: preflight, warm-up, interleaved repetitions, one document. Nothing that was measured is lost
when a later run fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from headway import __version__
from headway.bench.context import Run, Say, Settings
from headway.bench.generator import ALONE
from headway.bench.population import Windows
from headway.bench.process import GeneratorProcess, generator
from headway.bench.record import compact
from headway.bench.server import Server
from headway.bench.validity import validity
from headway.bench.window import median
from headway.errors import HeadwayError, ServerError

SCHEMA = "headway.bench/1"
ALONE_AT_LEAST = 3
UNUSABLE = ("down", "not_streaming", "garbage")  # what ends a measurement; other failures make one run void


class Suite:
    """`document` grows with every run; `events` are the lines of its side file, one an output event."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        names: Sequence[str],
        reps: int,
        seed: int | None = None,
        *,
        alone: int = ALONE_AT_LEAST,
        first_rep: int = 0,
    ) -> None:
        """`alone`: the intruder is measured alone this often, at least; fewer only where other suites add theirs, and
        then `first_rep` says how many repetitions those have.
        """
        self.names, self.reps, self.settings, self.url, self.seed = tuple(names), reps, settings, url, seed
        self.alone, self.first_rep = alone, first_rep
        self.document: dict[str, Any] = {
            "schema": SCHEMA, "headway": __version__, "started_unix": time.time(),
            "server": {"url": url, "model": None, "version": None, "context": None},
            "settings": {**msgspec.to_builtins(settings), "scenarios": list(names), "reps": reps, "seed": seed},
            "validity": {}, "runs": [], "summary": {}, "error": None,
        }  # fmt: skip
        self.events: list[dict[str, Any]] = []

    async def run(self, model: str | None, key: str | None, say: Say, keep: Callable[[], None]) -> None:
        """Raises what stopped it, after putting that into the document."""
        try:
            async with generator(say) as load:
                server: Server = await load.call("open", self.url, model, key, self.settings, self.seed)
                self.document["server"] |= {
                    "model": server.target.model, "version": server.version, "context": server.context,
                }  # fmt: skip
                for name, rep in self._order():
                    await self._one(load, name, rep, say, keep)
        except HeadwayError as error:
            self.document["error"] = str(error)
            raise
        except asyncio.CancelledError:
            self.document["error"] = "interrupted"
            raise
        finally:
            self._conclude()
            keep()

    def _order(self) -> Iterator[tuple[str, int]]:
        """Every repetition has the intruder alone and then each scenario: a server's speed drifts."""
        for rep in range(self.first_rep, self.first_rep + max(self.reps, self.alone)):
            yield ALONE, rep
            if rep < self.first_rep + self.reps:
                for name in self.names:
                    yield name, rep

    async def _one(self, load: GeneratorProcess, name: str, rep: int, say: Say, keep: Callable[[], None]) -> None:
        made: list[Run] = await load.call("run", name, rep)
        for run in made:
            self._add(run)
            say(f"  {run.scenario} {rep + 1}: {run.void or _brief(run)}")
        keep()
        for _, answer in (pair for run in made for pair in run.streams):
            if answer.error_kind in UNUSABLE:
                raise ServerError(f"{name} at {self.url}: {answer.error}")

    def _add(self, run: Run) -> None:
        index = len(self.document["runs"])
        origin = min((answer.submitted for _, answer in run.streams), default=0.0)
        self.document["runs"].append({
            "scenario": run.scenario, "rep": run.rep, "void": run.void, "notes": run.notes, "figures": run.figures,
            "lag_p99_s": run.lag_p99_s, "lag_max_s": run.lag_max_s, "saturation": run.saturation, "text": run.text,
            "windows_s": [[round(tag.start - origin, 5), round(tag.end - origin, 5)] for tag in run.windows],
            "stalls": msgspec.to_builtins(run.stalls),
            "streams": [
                {"class": name} | {k: v for k, v in compact(answer, origin).items() if k not in ("at", "tokens")}
                for name, answer in run.streams
            ],
        })  # fmt: skip
        windows = Windows(run.windows)
        for number, (name, answer) in enumerate(run.streams):
            before: float | None = None
            for event in answer.events:
                line = {
                    "run": index, "scenario": run.scenario, "rep": run.rep, "class": name, "stream": number,
                    "at_s": round(event.at - origin, 5), "tokens": event.tokens,
                    "gap_s": None if before is None else round(event.at - before, 5),
                    "in_window": before is not None and windows.inside(before, event.at) > 0,
                }  # fmt: skip
                self.events.append(line)
                before = event.at

    def _conclude(self) -> None:
        self.document["summary"] = summary(self.document["runs"])
        self.document["validity"] = validity(self.document["runs"], self.settings, self.reps)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Per scenario and figure: median, min, max and the number of valid runs."""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for name in dict.fromkeys(run["scenario"] for run in runs):
        valid = [run["figures"] for run in runs if run["scenario"] == name and not run["void"]]
        out[name] = {}
        for key in dict.fromkeys(key for figures in valid for key in figures):
            values = [figures[key] for figures in valid if figures.get(key) is not None]
            if values:
                middle = median(values)
                assert middle is not None
                out[name][key] = {"median": middle, "min": min(values), "max": max(values), "n": len(values)}
    return out


def _brief(run: Run) -> str:
    shown = [f"{key.removesuffix('_s')} {value:.3g}" for key, value in run.figures.items() if value is not None]
    return ", ".join(shown[:5])
