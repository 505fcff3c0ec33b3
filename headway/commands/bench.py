"""`headway bench URL`: what a live answer suffers while another prompt is prefilled, on any OpenAI-compatible server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from headway.bench.compare import HEADERS as COMPARED
from headway.bench.compare import as_json, compare, load, row
from headway.bench.tables import show
from headway.commands.arms import arms_command, report_command
from headway.commands.measure import measure
from headway.errors import CheckFailed


class UrlFirst(TyperGroup):
    """`headway bench URL` is `headway bench run URL`."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=UrlFirst, no_args_is_help=True, help="Measure a running server (headway bench URL), or compare two measurements."
)


bench.command("run")(measure)


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
