"""`headway bench arms FILE.toml`: one measurement on several servers or settings, side by side."""

from __future__ import annotations

import inspect
import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.bench.arms.document import compose
from headway.bench.arms.file import read
from headway.bench.arms.ledger import Ledger, whole
from headway.bench.arms.plan import Plan
from headway.bench.arms.progress import Lines, progress
from headway.bench.arms.report import difference_headers, difference_rows, explanation, headers, remarks, rows, scenarios
from headway.bench.arms.runner import Runner
from headway.bench.pictures.report import FRONTIER, TIMELINE, drawings, html, markdown, save
from headway.bench.pictures.source import load
from headway.bench.pictures.svg import svg
from headway.bench.tables import show
from headway.commands.serve import serve
from headway.errors import CheckFailed, ServerError, UsageError
from headway.lab.install import to_stderr
from headway.lab.process import run

EXAMPLES = files("headway.bench.arms") / "examples"


def examples() -> list[str]:
    return sorted(one.name.removesuffix(".toml") for one in EXAMPLES.iterdir() if one.name.endswith(".toml"))


def _vars(told: list[str]) -> dict[str, str]:
    out = {}
    for one in told:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {one!r} is not NAME=VALUE")
        out[name] = value
    return out


def arms_command(
    file: Annotated[Path | None, typer.Argument(help="the arm file (docs/bench-arms.md)")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the results [default: FILE without .toml, in this folder]")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="a copy of the document (headway.arms/1) there")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the file's vars; may be repeated")] = None,
    reps: Annotated[int | None, typer.Option(help="repetitions, instead of the file's; more can be added later")] = None,
    example: Annotated[str | None, typer.Option(help=f"print a ready-made arm file: {', '.join(examples())}")] = None,
    check: Annotated[bool, typer.Option("--check", help="read and lint the file, say what would be done, start nothing")] = False,
) -> None:
    """Measure several arms, interleaved, each on a server started for it. Goes on where an earlier run stopped."""
    if example is not None:
        if example not in examples():
            raise UsageError(f"--example {example!r} is unknown; there are {', '.join(examples())}")
        print((EXAMPLES / f"{example}.toml").read_text(), end="")
        return
    if file is None:
        raise UsageError("Missing argument 'FILE'; headway bench arms --example report prints one")
    options = {name.replace("_", "-") for name in inspect.signature(serve).parameters}
    plan = read(file, options, _vars(set_ or []), reps)
    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise UsageError(f"--json {json_file}: there is no folder {json_file.resolve().parent}")
    ledger = Ledger(out or Path(file.stem))
    if check:
        runner = Runner(plan, ledger, Lines())
        runner.check()
        _say_plan(plan, runner)
        return
    interrupted = False
    with ledger.held(), progress(plan) as told:
        runner = Runner(plan, ledger, told)
        runner.check()
        try:
            run(runner.run())
        except KeyboardInterrupt:
            interrupted = True
    document = compose(
        plan, runner.finished, refused=runner.refused, failures=runner.failures, traps=runner.traps, notes=runner.notes,
        started_unix=runner.started_unix, interrupted=interrupted,
    )  # fmt: skip
    _write(document, ledger, json_file)
    _print(document)
    to_stderr(f"results: {ledger.folder}/")
    if interrupted:
        to_stderr("stopped; the same command goes on from here")
        raise typer.Exit(130)
    _judge(document)


def _say_plan(plan: Plan, runner: Runner) -> None:
    for arm in plan.arms:
        what = f"{plan.reps} repetitions of {', '.join(arm.scenarios)}"
        if why := runner.refused.get(arm.name):
            what = f"not started: {why}"
        kept = sum(name == arm.name for name, _ in runner.finished)
        print(f"{arm.name}: {what}" + (f", {kept} finished" if kept else ""))
        for text in runner.traps.get(arm.name, ()):
            print(f"  {text}")


def _write(document: dict[str, Any], ledger: Ledger, json_file: Path | None) -> None:
    folder = ledger.folder
    text = json.dumps(document, indent=1) + "\n"
    whole(folder / "arms.json", text)
    if json_file is not None:
        json_file.write_text(text)
    pictures = drawings(document, folder)
    for name, picture in pictures.items():
        whole(folder / f"{name}.svg", svg(picture))
    whole(folder / "report.md", markdown(document, [(one.title, f"{name}.svg") for name, one in pictures.items()]))
    whole(folder / "report.html", html(document, list(pictures.values())))
    try:
        for name, picture in pictures.items():
            save(picture, folder / f"{name}.png")
    except UsageError as error:  # everything else is there already
        to_stderr(f"no PNG: {error}")


def report_command(
    path: Annotated[Path, typer.Argument(help="headway.bench/1, headway.arms/1 or a folder of bench arms; its events beside it")],
    html_file: Annotated[Path | None, typer.Option("--html", help="one page that holds everything")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="a page to paste into docs")] = None,
    timeline: Annotated[Path | None, typer.Option(help="picture: .svg, .png or .pdf")] = None,
    frontier: Annotated[Path | None, typer.Option(help="picture: .svg, .png or .pdf")] = None,
) -> None:
    """Pages and pictures of a saved measurement."""
    document, folder = load(path)
    told = [one for one in (html_file, markdown_file, timeline, frontier) if one is not None]
    if not told:
        raise UsageError("say what to write: --html, --markdown, --timeline or --frontier")
    for one in told:
        if not one.resolve().parent.is_dir():
            raise UsageError(f"{one}: there is no folder {one.resolve().parent}")
    pictures = drawings(document, folder)
    for name, file in ((TIMELINE, timeline), (FRONTIER, frontier)):
        if file is not None:
            if name not in pictures:
                raise CheckFailed(f"{path}: no run in it has what the {name} shows (an overlap scenario)")
            save(pictures[name], file)
    if html_file is not None:
        html_file.write_text(html(document, list(pictures.values())))
    if markdown_file is not None:
        markdown_file.write_text(markdown(document))


def _print(document: dict[str, Any]) -> None:
    for name in scenarios(document):
        show(headers(document, name), rows(document, name))
        print()
        if found := difference_rows(document, name):
            show(difference_headers(document, name), found)
            print()
    for text in [*explanation(document), *remarks(document)]:
        print(text)


def _judge(document: dict[str, Any]) -> None:
    """Raises what the exit code is for: 3 where an arm's server failed, 1 where an arm's runs do not mean what they claim."""
    broken = [arm["name"] for arm in document["arms"] if arm["state"] in ("failed", "unfinished")]
    if broken:
        reason = document["failures"][-1]["reason"] if document["failures"] else "see above"
        raise ServerError(f"{len(broken)} of {len(document['arms'])} arms are not complete ({', '.join(broken)}): {reason}")
    invalid = [f"{arm['name']}: {text}" for arm in document["arms"] if arm["validity"] for text in arm["validity"]["failures"]]
    if invalid:
        raise CheckFailed("; ".join(invalid))
