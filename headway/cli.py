"""The command line: `headway COMMAND`. Each command is one file in `headway/commands/` with a
`register(app)`; a new command is one file and one name in COMMANDS.
"""

from __future__ import annotations

import importlib
import os
import sys

import typer

from headway import __version__
from headway.errors import HeadwayError

COMMANDS: tuple[str, ...] = ("serve", "demo", "bench", "diagnose", "lint", "engine", "lab")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True)) -> None:
    """Keeps live LLM answers streaming while long prompts come in."""


def main() -> None:
    for name in COMMANDS:
        importlib.import_module(f"headway.commands.{name}").register(app)
    try:
        app()
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
