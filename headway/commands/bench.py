"""`headway bench URL`: what a live answer suffers while another prompt is prefilled, on any OpenAI-compatible server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from headway.bench.compare import HEADERS as COMPARED
from headway.bench.compare import as_json, compare, load, row
from headway.bench.report import HEADERS, page, remarks, rows
from headway.bench.scenarios import DEFAULT, SCENARIOS, Settings
from headway.bench.server import base_url
from headway.bench.suite import Suite
from headway.bench.tables import show
from headway.commands.arms import arms_command, report_command
from headway.errors import CheckFailed, HeadwayError, UsageError
from headway.lab.install import to_stderr
from headway.lab.process import run


class UrlFirst(TyperGroup):
    """`headway bench URL` is `headway bench run URL`."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=UrlFirst, no_args_is_help=True, help="Measure a running server (headway bench URL), or compare two measurements."
)


@bench.command("run")
def run_command(
    url: Annotated[str, typer.Argument(help="the server's base URL, with or without /v1")],
    model: Annotated[str | None, typer.Option(help="its name; needed where a server has several")] = None,
    key: Annotated[str | None, typer.Option(envvar="HEADWAY_BENCH_KEY", help="Authorization: Bearer")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(SCENARIOS)}; may be repeated")] = None,
    reps: Annotated[int, typer.Option(help="repetitions")] = 3,
    victim_in: Annotated[int, typer.Option(help="prompt tokens of the victim")] = 38,
    victim_out: Annotated[int, typer.Option(help="answer tokens of the victim; it must outlive the window")] = 512,
    intruder_in: Annotated[int, typer.Option(help="prompt tokens of the intruder")] = 28623,
    intruder_out: Annotated[int, typer.Option(help="answer tokens of the intruder")] = 58,
    after: Annotated[int, typer.Option(help="the intruder comes after this many of the victim's tokens")] = 16,
    streams: Annotated[int, typer.Option(help="streams of decode-concurrent")] = 4,
    budget: Annotated[int | None, typer.Option(help="the server's max_num_batched_tokens, to be checked")] = None,
    timeout: Annotated[float, typer.Option(help="seconds after which an answer is given up")] = 600.0,
    seed: Annotated[int | None, typer.Option(help="of the prompts; a cache knows them on the second use")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="headway.bench/1; events go to FILE.events.jsonl")] = None,
    markdown: Annotated[Path | None, typer.Option(help="a page to paste into docs")] = None,
) -> None:
    """Measure a running server."""
    names = tuple(scenario or DEFAULT)
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"--scenario {name!r} is unknown; there are {', '.join(SCENARIOS)}")
    numbers = {"reps": reps, "victim-in": victim_in, "intruder-in": intruder_in, "intruder-out": intruder_out}
    for option, value in {**numbers, "after": after, "streams": streams, "victim-out": victim_out}.items():
        if value < 1:
            raise UsageError(f"--{option} {value} must be at least 1")
    if victim_out <= after:
        raise UsageError(f"--victim-out {victim_out} must be above --after {after}: no overlap is possible")
    for option, path in (("--json", json_file), ("--markdown", markdown)):
        if path is not None and not path.resolve().parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.resolve().parent}")
    settings = Settings(
        victim_in, victim_out, intruder_in, intruder_out, after, streams, budget=budget, timeout_s=timeout
    )  # fmt: skip
    suite = Suite(base_url(url), settings, names, reps, seed)

    def keep() -> None:
        if json_file is not None:
            json_file.write_text(json.dumps(suite.document, indent=1) + "\n")
            lines = "".join(json.dumps(event) + "\n" for event in suite.events)
            json_file.with_name(json_file.name + ".events.jsonl").write_text(lines)

    try:
        run(suite.run(model, key, to_stderr, keep))
    except KeyboardInterrupt:
        _print(suite, markdown)
        to_stderr("stopped")
        raise typer.Exit(130) from None
    except HeadwayError:
        if suite.document["runs"]:
            _print(suite, markdown)
        raise
    _print(suite, markdown)
    overlap = suite.document["validity"]["overlap"]
    if overlap["runs"] and not overlap["valid"]:
        raise CheckFailed(f"none of {overlap['runs']} overlap runs at {url} is valid; the reasons stand above")


def _print(suite: Suite, markdown: Path | None) -> None:
    show(HEADERS, rows(suite.document))
    print()
    for text in remarks(suite.document):
        print(text)
    if markdown is not None:
        markdown.write_text(page(suite.document))


@bench.command("compare")
def compare_command(
    a: Annotated[str, typer.Argument(help="headway.bench/1 or headway.arms/1; FILE#ARM for one arm")],
    b: Annotated[str, typer.Argument(help="the same")],
    json_file: Annotated[Path | None, typer.Option("--json", help="headway.compare/1")] = None,
) -> None:
    """Two measurements, figure by figure; a difference is called only when its interval leaves out zero."""
    first, second = load(a), load(b)
    differences = compare(first, second)
    if not differences:
        raise CheckFailed(f"{a} and {b} have no scenario in common with valid runs")
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(first, second, differences), indent=1) + "\n")
    show(COMPARED, [row(difference) for difference in differences])


bench.command("arms")(arms_command)
bench.command("report")(report_command)


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")
