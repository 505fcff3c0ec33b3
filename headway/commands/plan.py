"""`headway plan`: settings and policy for a target, with their price in advance."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from headway.advisor.plan.measurement import measurement
from headway.advisor.plan.plan import VERDICTS, Plan, chunk, plan
from headway.advisor.plan.rig import MOST, Rig, measured, named
from headway.bench.tables import number, seconds, show
from headway.core.targets import Targets
from headway.errors import UsageError

HEADERS = ("option", "share", "longest gap", "TTFT", "T/T0", "over frontier", "floor", "misses")
PROMPT = 28_623
DEFAULTS = Targets()
FIGURES = (
    ("a", "a step of answers alone", 1e3, "ms"),
    ("e", "what prefill adds to a step", 1e3, "ms"),
    ("b", "a prompt token", 1e6, "us"),
    ("c", "a prompt token, for each 1,000 before it", 1e9, "us"),
    ("h", "what a piece lasts beyond its prefill", 1e3, "ms"),
)
_LOAD = re.compile(r"(\d+(?:\.\d+)?)(t?)")


def rate(text: str, tokens: int) -> float:
    """Long prompts a second of `--load`: a number of them, or of tokens with a t behind it."""
    found = _LOAD.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--load {text}: not a number of prompts a second (0.2), nor of tokens a second (5000t)")
    return float(found[1]) / tokens if found[2] else float(found[1])


def rig_of(sources: list[str], version: str | None, budget: int | None, block: int | None, like: str | None) -> Rig:
    files = [source for source in sources if Path(source).exists() or source.endswith(".json") or "/" in source]
    if files and len(files) < len(sources):
        raise UsageError(f"{sources[0]}, {sources[-1]}: bench files or one profile, not both")
    if files:
        return measured(measurement([Path(source) for source in files]), version, budget, block, like)
    if len(sources) > 1:
        raise UsageError(f"{', '.join(sources)}: one profile at a time")
    if like is not None or block is not None:
        raise UsageError("--like and --block go with bench files; a profile has a cache layout")
    return named(sources[0], version, budget)


def tell(found: Plan) -> None:
    rig = found.rig
    budget = rig.engine.scheduler.max_num_batched_tokens
    print(f"{rig.name}: vLLM {rig.engine.version}, budget {budget}, chunks of {chunk(rig)} tokens")
    print(f"long prompt: {found.tokens:,} uncached tokens, {seconds(found.alone_s)} alone")
    for name, what, scale, unit in FIGURES:
        text = f"  {name}  {what}: {scale * getattr(rig.model, name):.3g} {unit}"
        if rig.estimates is not None:
            figure = rig.estimates.figures[name]
            if figure.low is not None and figure.high is not None:
                text += f", {scale * figure.low:.3g} .. {scale * figure.high:.3g}"
            text += f" ({figure.runs} runs)" if figure.runs else " (assumed)"
        print(text)
    print(f"\nverdict: {found.verdict}: {VERDICTS[found.verdict]}")
    for line in found.reasons:
        print(f"  {line}")
    print()
    rows = []
    for one in found.options:
        over = "-" if one.excess is None else f"{one.excess:+.0%}"
        cells = [number(one.share), seconds(one.gap), seconds(one.ttft), number(one.factor, 1), over, number(one.floor)]
        rows.append([one.option.words, *cells, ", ".join(one.misses) or "none"])
    show(HEADERS, rows)
    for title, lines in (
        ("not offered", [f"{one.option.words}: {one.why}" for one in found.refused]),
        ("would narrow it", list(rig.estimates.measure) if rig.estimates else []),
        ("note", list(rig.notes)),
    ):
        for line in lines:
            print(f"{title}: {line}")


def register(app: typer.Typer) -> None:
    @app.command("plan")
    def plan_command(
        source: Annotated[list[str], typer.Argument(help="bench JSON of one engine (several are put together), or a profile")],
        share: Annotated[float, typer.Option(help="part of its rate that a live answer keeps, 0..1")] = DEFAULTS.share,
        gap: Annotated[float, typer.Option(help="longest gap of a live answer, seconds")] = DEFAULTS.gap,
        wait: Annotated[float, typer.Option(help="longest wait of a newcomer, seconds")] = DEFAULTS.wait,
        stretch: Annotated[float, typer.Option(help="largest (TTFT - T0)/T0 of a newcomer")] = DEFAULTS.stretch,
        prompt: Annotated[int | None, typer.Option(help="uncached tokens of the long prompt; by default as measured")] = None,
        load: Annotated[str | None, typer.Option(help="long prompts a second (0.2), or tokens a second (5000t)")] = None,
        engine_version: Annotated[str | None, typer.Option(help="vLLM's version; else from the file")] = None,
        budget: Annotated[int | None, typer.Option(help="max_num_batched_tokens; else from the file")] = None,
        block: Annotated[int | None, typer.Option(help="tokens of a prefix-cache block, for a dense model")] = None,
        like: Annotated[str | None, typer.Option(help="profile whose cache layout stands for the file's engine")] = None,
        json_file: Annotated[Path | None, typer.Option("--json", help="the plan as headway.plan/1")] = None,
    ) -> None:
        """Engine settings and gateway policy for a target, each with its price. Exit 1 where none keeps it."""
        try:
            targets = Targets(share=share, gap=gap, wait=wait, stretch=stretch)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
        for option, value in (("prompt", prompt), ("budget", budget), ("block", block)):
            if value is not None and not 1 <= value < MOST:
                raise UsageError(f"--{option} {value}: not 1 to {MOST - 1}")
        if json_file is not None and not json_file.resolve().parent.is_dir():
            raise UsageError(f"--json {json_file}: there is no folder {json_file.resolve().parent}")
        rig = rig_of(source, engine_version, budget, block, like)
        tokens = prompt or usual(source) or PROMPT
        if tokens > rig.engine.layout.max_model_len - 16:
            raise UsageError(f"--prompt {tokens}: above the engine's longest, {rig.engine.layout.max_model_len} tokens")
        found = plan(rig, targets, tokens, rate(load, tokens) if load is not None else None)
        if json_file is not None:
            json_file.write_text(json.dumps(found.as_json(), indent=1) + "\n")
        tell(found)
        if found.verdict != "kept":
            raise typer.Exit(1)


def usual(sources: list[str]) -> int | None:
    """The shortest long prompt that was measured; None of a profile."""
    if not Path(sources[0]).exists():
        return None
    return min(one.tokens for one in measurement([Path(source) for source in sources]).alone)
