"""`headway demo`: what a long prompt does to a live answer, under every policy of the gateway, in one
table.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from headway.bench.tables import number, seconds, show
from headway.errors import UsageError
from headway.lab.demo import Options, Outcome, demo
from headway.lab.install import to_stderr
from headway.lab.process import run

HEADERS = ("policy", "victim tokens/s", "share kept", "longest gap", "intruder's TTFT", "frontier's TTFT")


def rows(outcome: Outcome) -> list[list[str]]:
    out = [["victim alone", number(outcome.alone.rate, 1), "1.00", seconds(outcome.alone.gap_s), "-", "-"]]
    out.append(["intruder alone", "-", "-", "-", seconds(outcome.intruder_alone_s), "-"])
    for name, arm in outcome.arms.items():
        out.append([
            name + (" (void)" if arm.void else ""), number(arm.victim_tokens_per_s, 1), number(arm.share),
            seconds(arm.longest_gap_s), seconds(arm.intruder_ttft_s), seconds(arm.frontier_ttft_s),
        ])  # fmt: skip
    return out


def meaning(outcome: Outcome) -> str:
    """What the table says, in sentences; nothing is said of an arm that is void."""
    parts = []
    direct, pace = outcome.arms["passthrough"], outcome.arms["pace"]
    if not direct.void and direct.share is not None:
        parts.append(
            f"Sent straight through, a prompt of {outcome.options.intruder_tokens:,} tokens leaves a live "
            f"answer {direct.share:.0%} of its speed, with holes of {seconds(direct.longest_gap_s)}."
        )
    if not pace.void and pace.share is not None:
        best = (
            f" (the frontier, what scheduling on one engine can do at this share: {seconds(pace.frontier_ttft_s)})"
            if pace.frontier_ttft_s
            else ""
        )
        parts.append(
            f"Paced, the answer keeps {pace.share:.0%} (asked: {outcome.options.share:.0%}), no hole is "
            f"longer than {seconds(pace.longest_gap_s)}, and the newcomer's first token comes after "
            f"{seconds(pace.intruder_ttft_s)}{best}."
        )
    parts.append("serialize and hold keep the answer whole and let the newcomer wait for its end.")
    return " ".join(parts)


def command(
    engine: str = typer.Option("simulated", help="simulated, or vllm: a real vLLM on this CPU"),
    share: float = typer.Option(0.5, help="part of its speed that a live answer keeps, 0..1"),
    gap: float = typer.Option(0.1, help="longest gap in a live answer, seconds"),
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures there (headway.demo/1)")] = None,
) -> None:
    """One live answer, one long prompt, four policies, one table."""
    if engine not in ("simulated", "vllm"):
        raise UsageError(f"--engine {engine!r} is unknown; there are simulated and vllm")
    if not 0 <= share < 1:
        raise UsageError(f"--share {share:g} is outside 0..1 (1 itself would shut every newcomer out)")
    if gap <= 0:
        raise UsageError(f"--gap {gap:g} must be above 0 s")
    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise UsageError(f"--json {json_file}: there is no folder {json_file.resolve().parent}")
    begun = time.monotonic()
    try:
        outcome = run(demo(Options(engine, share, gap), to_stderr))
    except KeyboardInterrupt:
        to_stderr("stopped")
        raise typer.Exit(130) from None
    to_stderr(f"done in {time.monotonic() - begun:.0f} s")
    if json_file is not None:
        json_file.write_text(json.dumps(outcome.document(), indent=1) + "\n")
    show(HEADERS, rows(outcome))
    print()
    if engine == "simulated":
        print(
            f"The engine is SIMULATED (version {outcome.engine_version}): vLLM's scheduling rules and a model "
            "of step times, no weights.\nThe gateway, HTTP and the clock are real. "
            "On a real engine: make demo ENGINE=vllm"
        )
    else:
        print(f"The engine is a real vLLM {outcome.engine_version} on this CPU; its weights are random.")
    print(meaning(outcome))
    for name, arm in outcome.arms.items():
        if arm.void:
            print(f"{name}: {arm.void}")


def register(app: typer.Typer) -> None:
    app.command("demo")(command)
