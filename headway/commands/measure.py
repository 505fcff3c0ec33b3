"""`headway bench run URL`, which is also `headway bench URL`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway.bench.context import Settings, unfit
from headway.bench.report import HEADERS, page, remarks, rows
from headway.bench.scenarios import DEFAULT, SCENARIOS
from headway.bench.server import base_url
from headway.bench.suite import Suite
from headway.bench.tables import show
from headway.errors import CheckFailed, HeadwayError, UsageError
from headway.lab.install import to_stderr
from headway.lab.process import run
from headway.traces import FORMATS

D = Settings()


def measure(
    url: Annotated[str, typer.Argument(help="the server's base URL, with or without /v1")],
    model: Annotated[str | None, typer.Option(help="its name; needed where a server has several")] = None,
    key: Annotated[str | None, typer.Option(envvar="HEADWAY_BENCH_KEY", help="Authorization: Bearer")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(SCENARIOS)}; may be repeated")] = None,
    reps: Annotated[int, typer.Option(help="repetitions")] = 3,
    victim_in: Annotated[int, typer.Option(help="prompt tokens of the victim")] = D.victim_in,
    victim_out: Annotated[int, typer.Option(help="answer tokens of the victim; it must outlive the window")] = D.victim_out,
    intruder_in: Annotated[int, typer.Option(help="prompt tokens of the intruder")] = D.intruder_in,
    intruder_out: Annotated[int, typer.Option(help="answer tokens of the intruder")] = D.intruder_out,
    after: Annotated[int, typer.Option(help="the intruder comes after this many of the victim's tokens")] = D.after,
    lead: Annotated[
        float, typer.Option(help="overlap-together: s that it is ahead, at most; 0 to this over repetitions")
    ] = D.lead_s,
    lengthen: Annotated[int, typer.Option(help="how often a victim that ended too early is doubled")] = D.lengthen,
    neighbour_out: Annotated[int, typer.Option(help="answer tokens of the control's short neighbour")] = D.neighbour_out,
    streams: Annotated[int, typer.Option(help="live streams of decode-concurrent and mixed")] = D.streams,
    ramp: Annotated[float, typer.Option(help="s between the starts of two of them")] = D.ramp_s,
    newcomer_at: Annotated[float, typer.Option(help="part of T0 after which the newcomer comes")] = D.newcomer_at,
    newcomer_out: Annotated[int, typer.Option(help="its answer tokens")] = D.newcomer_out,
    burst: Annotated[int, typer.Option(help="prompts of burst")] = D.burst,
    turn_in: Annotated[int, typer.Option(help="multi-turn: new tokens of the second turn")] = D.turn_in,
    turn_out: Annotated[int, typer.Option(help="multi-turn: answer tokens of the second turn")] = D.turn_out,
    load: Annotated[float, typer.Option(help="mixed: s of prefill that arrive a second; 1 is saturation")] = D.load,
    rate: Annotated[float | None, typer.Option(help="mixed: long prompts a second, in place of --load")] = D.rate,
    duration: Annotated[float, typer.Option(help="mixed: s for which they arrive")] = D.duration_s,
    baseline: Annotated[float, typer.Option(help="mixed: s of live streams alone before that")] = D.baseline_s,
    trace: Annotated[str | None, typer.Option(help="trace: file or folder")] = D.trace,
    trace_format: Annotated[str | None, typer.Option(help=f"of {', '.join(FORMATS)}; else as its marks say")] = D.trace_format,
    trace_speed: Annotated[float, typer.Option(help="2: twice as fast as recorded")] = D.trace_speed,
    trace_every: Annotated[float, typer.Option(help="s of the trace between the starts of two sessions")] = D.trace_every_s,
    trace_idle: Annotated[
        float | None, typer.Option(help="pauses in a session are cut to this, s of the trace")
    ] = D.trace_idle_s,
    trace_start: Annotated[float, typer.Option(help="s of the trace to leave out")] = D.trace_start_s,
    trace_end: Annotated[float | None, typer.Option(help="s of the trace at which to stop")] = D.trace_end_s,
    trace_limit: Annotated[int, typer.Option(help="calls; 0: all")] = D.trace_limit,
    trace_longest: Annotated[
        int | None, typer.Option(help="leave out longer calls; else what the server holds")
    ] = D.trace_longest,
    trace_open: Annotated[
        bool, typer.Option("--trace-open", help="calls of a session do not wait for its answers")
    ] = D.trace_open,
    trace_big: Annotated[int, typer.Option(help="uncached tokens that make a call an intruder")] = D.trace_big,
    budget: Annotated[int | None, typer.Option(help="the server's max_num_batched_tokens, to be checked")] = None,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="a gateway sends prompts in pieces: cached tokens are its own")
    ] = D.pieces,
    kept_back: Annotated[
        bool, typer.Option("--kept-back", help="the server serialises: the victim cannot outlive")
    ] = D.kept_back,
    warmup: Annotated[int, typer.Option(help="rounds that are not measured; 0: one short answer only")] = D.warmup,
    cooldown: Annotated[float, typer.Option(help="s between two runs, and then until the engine is idle")] = D.cooldown_s,
    lag_limit: Annotated[float, typer.Option(help="s that this client may be late (p99) before a run is void")] = D.lag_limit_s,
    timeout: Annotated[float, typer.Option(help="s after which an answer is given up")] = D.timeout_s,
    seed: Annotated[int | None, typer.Option(help="of prompts and arrivals; a cache knows the prompts on the second use")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="headway.bench/1; events go to FILE.events.jsonl")] = None,
    markdown: Annotated[Path | None, typer.Option(help="a page to paste into docs")] = None,
) -> None:
    """Measure a running server."""
    names = tuple(dict.fromkeys(scenario or DEFAULT))
    settings = Settings(
        victim_in=victim_in, victim_out=victim_out, intruder_in=intruder_in, intruder_out=intruder_out, after=after,
        lead_s=lead, lengthen=lengthen, neighbour_out=neighbour_out, streams=streams, ramp_s=ramp, newcomer_at=newcomer_at,
        newcomer_out=newcomer_out, burst=burst, turn_in=turn_in, turn_out=turn_out, load=load, rate=rate,
        duration_s=duration, baseline_s=baseline, trace=trace, trace_format=trace_format, trace_speed=trace_speed,
        trace_every_s=trace_every, trace_idle_s=trace_idle, trace_start_s=trace_start, trace_end_s=trace_end,
        trace_limit=trace_limit, trace_longest=trace_longest, trace_open=trace_open, trace_big=trace_big, budget=budget,
        pieces=pieces, kept_back=kept_back, warmup=warmup, cooldown_s=cooldown, lag_limit_s=lag_limit, timeout_s=timeout,
    )  # fmt: skip
    _check(names, reps, settings)
    for option, path in (("--json", json_file), ("--markdown", markdown)):
        if path is not None and not path.resolve().parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.resolve().parent}")
    suite = Suite(base_url(url), settings, names, reps, seed)
    try:
        run(suite.run(model, key, to_stderr, _Keeper(suite, json_file)))
    except KeyboardInterrupt:
        _print(suite, markdown)
        to_stderr("stopped")
        raise typer.Exit(130) from None
    except HeadwayError:
        if suite.document["runs"]:
            _print(suite, markdown)
        raise
    _print(suite, markdown)
    if failures := suite.document["validity"]["failures"]:
        raise CheckFailed(f"{url}: {'; '.join(failures)}")


def _check(names: tuple[str, ...], reps: int, settings: Settings) -> None:
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"--scenario {name!r} is unknown; there are {', '.join(SCENARIOS)}")
    if reps < 1:
        raise UsageError(f"--reps {reps} must be at least 1")
    if wrong := unfit(settings):
        raise UsageError(f"--{wrong[0].removesuffix('_s').replace('_', '-')} {wrong[1]}")
    if "trace" in names:
        if settings.trace is None:
            raise UsageError("--scenario trace needs --trace PATH")
        if not Path(settings.trace).exists():
            raise UsageError(f"--trace {settings.trace}: no such file or folder")
    if settings.trace_format is not None and settings.trace_format not in FORMATS:
        raise UsageError(f"--trace-format {settings.trace_format!r} is unknown; there are {', '.join(FORMATS)}")


class _Keeper:
    """Writes what there is after every run: the document anew, the events that are new."""

    def __init__(self, suite: Suite, file: Path | None) -> None:
        self._suite, self._file, self._written = suite, file, 0

    def __call__(self) -> None:
        if self._file is None:
            return
        self._file.write_text(json.dumps(self._suite.document, indent=1) + "\n")
        with self._file.with_name(self._file.name + ".events.jsonl").open("a" if self._written else "w") as lines:
            for event in self._suite.events[self._written :]:
                lines.write(json.dumps(event) + "\n")
        self._written = len(self._suite.events)


def _print(suite: Suite, markdown: Path | None) -> None:
    show(HEADERS, rows(suite.document))
    print()
    for text in remarks(suite.document):
        print(text)
    if markdown is not None:
        markdown.write_text(page(suite.document))
