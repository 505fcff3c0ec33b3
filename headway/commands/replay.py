"""`headway replay TRACE`: recorded traffic under several policies, in virtual time."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.bench.tables import show
from headway.core.policy import POLICIES
from headway.errors import CheckFailed, UsageError
from headway.replay.case import ENGINE, TARGETS, Case
from headway.replay.report import SCHEMA, headings, rows, text, write_csv
from headway.replay.sweep import grid, run_all
from headway.replay.tally import Limits
from headway.replay.verify import SCHEMA as VERIFY_SCHEMA
from headway.replay.verify import document, read_back
from headway.simulator.profiles import PROFILES
from headway.simulator.rules import rules_for
from headway.traces import FORMATS, Cut, TraceError


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    trace: Annotated[Path, typer.Argument(help="a file, or a folder with one file a session (docs/traces.md)")],
    policy: Annotated[str, typer.Option(help=f"one or more of {', '.join(POLICIES)}, with commas")] = "passthrough,pace",
    profile: Annotated[str, typer.Option(help=f"the engine: {', '.join(PROFILES)}")] = "demo",
    trace_format: Annotated[
        str | None, typer.Option("--format", help=f"if not told by its columns: {', '.join(FORMATS)}")
    ] = None,
    share: Annotated[float, typer.Option(help="part of its solo rate that a live answer keeps")] = 0.5,
    gap: Annotated[float, typer.Option(help="longest gap of a live answer, seconds")] = 0.25,
    wait: Annotated[float, typer.Option(help="longest wait of a newcomer for its first prefill, seconds")] = 30.0,
    stretch: Annotated[float, typer.Option(help="largest (TTFT - W)/W of a newcomer")] = 20.0,
    vllm_version: Annotated[str | None, typer.Option(help="vLLM version whose rules hold")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="token budget of a step")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="most requests in the running list")] = None,
    long_prefill_token_threshold: Annotated[int | None, typer.Option(min=0, help="0: none")] = None,
    prefill_schedule_interval: Annotated[int | None, typer.Option(min=1, help="from vLLM 0.33")] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(min=2, help="KV blocks of the cache")] = None,
    every: Annotated[float, typer.Option(help="seconds between two sessions, where each has its own clock")] = 60.0,
    seed: Annotated[int | None, typer.Option(help="let sessions start at random, --every apart on average")] = None,
    max_idle: Annotated[float | None, typer.Option(help="cut a session's pauses to this, seconds")] = None,
    start: Annotated[float, typer.Option(help="begin here, seconds of the trace")] = 0.0,
    end: Annotated[float | None, typer.Option(help="leave out what comes later, seconds of the trace")] = None,
    speed: Annotated[float, typer.Option(help="2: arrivals twice as fast")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="first so many calls")] = None,
    open_loop: Annotated[
        bool, typer.Option("--open-loop", help="send at the recorded time, even if the session's call before has not ended")
    ] = False,
    overhead: Annotated[float, typer.Option(min=0.0, help="what HTTP and the gateway add to a request, seconds")] = 0.01,
    classes: Annotated[str, typer.Option(help="bounds of the classes, new prompt tokens")] = "1024,8192",
    good_ttft: Annotated[float, typer.Option(help="goodput counts answers with a TTFT up to this, seconds")] = 30.0,
    good_gap: Annotated[float, typer.Option(help="and no gap above this, seconds")] = 1.0,
    sweep: Annotated[
        list[str] | None, typer.Option(help="NAME=V,V: every combination; may be repeated, or several in one")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="parallel processes")] = 1,
    ray: Annotated[str | None, typer.Option(help="address of a Ray cluster that runs the cases; 'local' starts one")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="TRACE is a decision log: make its decisions again and compare; simulates nothing")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help=f"{SCHEMA}; with --verify {VERIFY_SCHEMA}")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="the table")] = None,
    html: Annotated[Path | None, typer.Option(help="the table and plots, one file")] = None,
) -> None:
    """Recorded traffic under several policies, in virtual time: what each would have cost whom."""
    if verify:
        _verify(trace, json_file)
        return
    engine = {
        "version": vllm_version, "max-num-batched-tokens": max_num_batched_tokens, "max-num-seqs": max_num_seqs,
        "long-prefill-token-threshold": long_prefill_token_threshold,
        "prefill-schedule-interval": prefill_schedule_interval, "num-gpu-blocks": num_gpu_blocks,
    }  # fmt: skip
    if profile not in PROFILES:
        raise UsageError(f"--profile: no profile {profile!r}; known: {', '.join(PROFILES)}")
    names = list(dict.fromkeys(name.strip() for name in policy.split(",")))
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"--policy: {name!r} is not one of {', '.join(POLICIES)}")
    longest = PROFILES[profile].engine.layout.max_model_len
    cut = _cut(every=every, max_idle=max_idle, start=start, end=end, speed=speed, limit=limit, seed=seed)
    cases = []
    for swept in grid([axis for given in sweep or () for axis in given.split()]):
        for name in names:
            targets = {"share": share, "gap": gap, "wait": wait, "stretch": stretch, "queue": 100_000}
            options = {key: value for key, value in engine.items() if value is not None}
            targets |= {key: value for key, value in swept.items() if key in TARGETS}
            options |= {key: value for key, value in swept.items() if key in ENGINE}
            _check_version(swept.get("version", vllm_version))
            cases.append(
                Case(
                    trace,
                    name,
                    profile,
                    trace_format,
                    cut,
                    targets,
                    options,
                    swept,
                    Limits(good_ttft, good_gap, _stall(profile)),
                    _bounds(classes),
                    overhead,
                    not open_loop,
                )
            )
    began = time.monotonic()
    results = list(run_all(cases, jobs, ray, lambda line: print(f"replay: {line}", file=sys.stderr)))
    wall = time.monotonic() - began
    if not any(result["classes"]["all"]["requests"] for result in results):
        raise TraceError(trace, None, "no call is left to replay: see --start, --end, --limit")
    show(headings(), [[text(cell) for cell in row] for row in rows(results)])
    lead = [_lead(trace, profile, results[0], longest), _limits(cases[0].limits)]
    print("\n" + "\n".join(lead))
    if json_file is not None:
        told = {"schema": SCHEMA, "trace": str(trace), "profile": profile, "wall_s": wall, "cases": results}
        json_file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if csv_file is not None:
        write_csv(results, csv_file)
    if html is not None:
        from headway.replay.pictures import write_html

        write_html(results, lead, html)


def _verify(log: Path, json_file: Path | None) -> None:
    replayers = read_back([log])
    told = document(log, replayers)
    if json_file is not None:
        json_file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    names = ["upstream", "turns", "decisions", "differing turns", "complete"]
    counts = ("turns", "decisions", "differing_turns")
    show(
        names,
        [
            [
                upstream or "-",
                *(f"{one[key]:,}" for key in counts),
                "no" if one["lost"] else "yes",
            ]
            for upstream, one in told["upstreams"].items()
        ],
    )
    for upstream, one in told["upstreams"].items():
        if one["differences"]:
            first = one["differences"][0]
            where = f"{log}: {upstream or 'upstream'}: at {first['at']:.6f} s"
            raise CheckFailed(f"{where} the log decided {first['recorded']}, this version decides {first['made']}")


def _cut(**options: Any) -> Cut:
    for name, good, allowed in (
        ("every", options["every"] >= 0, "0 or more"),
        ("speed", options["speed"] > 0, "above 0"),
        ("start", options["start"] >= 0, "0 or more"),
        ("max_idle", options["max_idle"] is None or options["max_idle"] >= 0, "0 or more"),
    ):
        if not good:
            raise UsageError(f"--{name.replace('_', '-')}: {options[name]:g} is not {allowed}")
    if options["end"] is not None and options["end"] <= options["start"]:
        raise UsageError(f"--end: {options['end']:g} is not above --start {options['start']:g}")
    return Cut(**options)


def _bounds(classes: str) -> tuple[int, ...]:
    try:
        bounds = tuple(int(part) for part in classes.split(","))
    except ValueError:
        raise UsageError(f"--classes: {classes!r} is not a list of token counts") from None
    if list(bounds) != sorted(set(bounds)) or bounds[0] < 0:
        raise UsageError(f"--classes: {classes!r} does not grow")
    return bounds


def _check_version(version: str | None) -> None:
    if version is not None:
        try:
            rules_for(version)
        except ValueError as error:
            raise UsageError(f"vLLM version: {error}") from None


def _stall(profile: str) -> float:
    """Seconds, as `bench` has it: three solo gaps, at least 0.1 s."""
    engine = PROFILES[profile].engine
    return max(3 * engine.steps.decode_seconds(1, 0) / engine.tokens_per_step, 0.1)


def _lead(trace: Path, profile: str, first: dict[str, Any], longest: int) -> str:
    whole = first["classes"]["all"]
    unanswered = whole["requests"] - whole["answered"]
    return (
        f"{whole['requests']:,} calls of {trace.name} over {first['span_s']:,.0f} s, simulated on {profile}. "
        f"Under {first['policy']} the engine was busy {first['busy_share']:.0%} of the time, "
        f"{first['hit_share'] or 0:.0%} of prompt tokens were cached, and {unanswered:,} calls got no answer "
        f"(a prompt of {longest:,} tokens or more gets none)."
    )


def _limits(limits: Limits) -> str:
    return (
        f"good: TTFT up to {limits.ttft:g} s and no gap above {limits.gap:g} s; stalled: time in gaps above "
        f"{limits.stall:.3g} s. "
        "new tokens: prompt tokens that no earlier call of the trace had."
    )
