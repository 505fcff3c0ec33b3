"""The command line: `headway COMMAND`. Each command is one file in `headway/commands/` with a
`register(app)`; a new command is one file and one name in COMMANDS.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer

from headway import __version__
from headway.errors import HeadwayError

COMMANDS: tuple[str, ...] = ("serve", "demo", "bench", "diagnose", "lint", "plan", "replay", "engine", "lab")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_UsageError: Any = typer.BadParameter.__base__
"""Whatever is wrong with a command line, in a typer with or without a click of its own."""


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
        # Not standalone: what is wrong with a command line is one line too, and no box of several.
        sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            print(f"headway: {error.format_message()}", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(1)
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
