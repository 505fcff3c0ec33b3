"""A whole measurement: preflight, warm-up, interleaved repetitions, one document. Nothing that was measured is lost
when a later run fails.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headway import __version__
from headway.bench import prompts
from headway.bench.client import Request, Target, session
from headway.bench.overlap import require
from headway.bench.record import compact
from headway.bench.scenarios import SCENARIOS, Context, Run, Settings, intruder_alone
from headway.bench.server import find, version
from headway.bench.window import median
from headway.errors import HeadwayError, ServerError

SCHEMA = "headway.bench/1"
ALONE_AT_LEAST = 3
ENOUGH = 5  # repetitions, below which a spread says little

Say = Callable[[str], None]


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
        then `first_rep` says how many repetitions those have."""
        self.names, self.reps, self.settings, self.url = tuple(names), reps, settings, url
        self.alone, self.first_rep = alone, first_rep
        self.rng = random.Random(seed)
        self.document: dict[str, Any] = {
            "schema": SCHEMA, "headway": __version__, "started_unix": time.time(),
            "server": {"url": url, "model": None, "version": None},
            "settings": {**msgspec.to_builtins(settings), "scenarios": list(names), "reps": reps, "seed": seed},
            "validity": {}, "runs": [], "summary": {}, "error": None,
        }  # fmt: skip
        self.events: list[dict[str, Any]] = []

    async def run(self, model: str | None, key: str | None, say: Say, keep: Callable[[], None]) -> None:
        """Raises what stopped it, after putting that into the document."""
        try:
            async with session() as http:
                target = await find(http, self.url, model, key)
                self.document["server"] |= {"model": target.model, "version": await version(http, self.url)}
                scale = await prompts.calibrate(http, target, self.rng)
                context = Context(http, target, scale, self.rng, self.settings)
                say(f"{target.url}, model {target.model}: warm-up")
                await self._preflight(context, target)
                for rep in range(self.first_rep, self.first_rep + max(self.reps, self.alone)):
                    await self._one("intruder-alone", context, rep, say, keep)
                    if rep < self.first_rep + self.reps:
                        for name in self.names:
                            await self._one(name, context, rep, say, keep)
        except HeadwayError as error:
            self.document["error"] = str(error)
            raise
        finally:
            self._conclude()
            keep()

    async def _preflight(self, context: Context, target: Target) -> None:
        """One short answer: does it stream, is it what the protocol says, does it count?"""
        answer = require(await context.send(context.victim(8)), "warm-up", target)
        if answer.usage is None:
            raise ServerError(f"{target.url} sends no usage in its streams, so tokens cannot be counted")
        half = prompts.chat(self.settings.intruder_in // 2, 4, context.scale, context.rng)
        require(await context.send(Request(half.body)), "warm-up", target)

    async def _one(self, name: str, context: Context, rep: int, say: Say, keep: Callable[[], None]) -> None:
        made = await SCENARIOS.get(name, intruder_alone)(context, rep)
        for run in made:
            self._add(run)
            say(f"  {run.scenario} {rep + 1}: {run.void or _brief(run)}")
        keep()
        for _, answer in (pair for run in made for pair in run.streams):
            if answer.error_kind in ("down", "not_streaming", "garbage"):
                raise ServerError(f"{name} at {context.target.url}: {answer.error}")

    def _add(self, run: Run) -> None:
        index, origin = len(self.document["runs"]), min(answer.submitted for _, answer in run.streams)
        self.document["runs"].append({
            "scenario": run.scenario, "rep": run.rep, "void": run.void, "notes": run.notes, "figures": run.figures,
            "lag_p99_s": run.lag_p99_s,
            "streams": [
                {"class": name} | {k: v for k, v in compact(answer, origin).items() if k not in ("at", "tokens")}
                for name, answer in run.streams
            ],
        })  # fmt: skip
        for number, (name, answer) in enumerate(run.streams):
            for event in answer.events:
                at = round(event.at - origin, 5)
                line = {"run": index, "scenario": run.scenario, "rep": run.rep, "class": name, "stream": number}
                self.events.append(line | {"at_s": at, "tokens": event.tokens})

    def _conclude(self) -> None:
        runs = self.document["runs"]
        self.document["summary"] = summary(runs)
        cached = [r["figures"].get("cached_tokens") for r in runs if r["scenario"] == "intruder-alone"]
        beside = [r for r in runs if r["scenario"] in ("overlap-after", "overlap-together")]
        control = self.document["summary"].get("overlap-control", {}).get("share")
        warnings = []
        if self.reps < ENOUGH:
            warnings.append(f"{self.reps} repetitions: too few to call a difference; {ENOUGH} or more are better")
        if control and control["median"] < 0.8:
            warnings.append(f"control: a short neighbour alone leaves the victim {control['median']:.0%} of its rate")
        t0 = self.document["summary"].get("intruder-alone", {}).get("t0_s")
        if t0 and t0["max"] > 1.3 * t0["min"]:
            warnings.append(f"the intruder alone took {t0['min']:.2f} to {t0['max']:.2f} s: the server was not quiet")
        self.document["validity"] = {
            "overlap": {"runs": len(beside), "valid": sum(not r["void"] for r in beside)},
            "control_share": control["median"] if control else None,
            "cache_defeated": None if not cached or None in cached or self.settings.pieces else max(cached) == 0,
            "lag_p99_s": max((r["lag_p99_s"] for r in runs), default=None),
            "void_runs": sum(bool(r["void"]) for r in runs), "warnings": warnings,
        }  # fmt: skip


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
