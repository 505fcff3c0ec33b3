"""`headway lint`: traps and options that do nothing, before the start."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.advisor.deployment import Deployment
from headway.advisor.lint import Finding, as_json, check_all, failed
from headway.advisor.sarif import as_sarif
from headway.advisor.server import fetch_server_info
from headway.advisor.sources import Load, read_deployments
from headway.advisor.versions import parse_version, show
from headway.errors import UsageError


def _read(source: list[str]) -> list[Deployment]:
    """Deployments of a file, `-` (standard input), a URL, or a command line given as words."""
    first = source[0]
    if first.startswith(("http://", "https://")):
        return read_deployments(json.dumps(asyncio.run(fetch_server_info(first))), first)
    if first == "-":
        return read_deployments(sys.stdin.read(), "standard input")
    if len(source) == 1 and " " not in first:
        try:
            return read_deployments(Path(first).read_text(), first, file=first, load=_beside(Path(first).parent))
        except OSError as error:
            raise UsageError(f"lint: {first}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"lint: {first}: not a text file") from error
    return read_deployments(first if len(source) == 1 else shlex.join(source), "command line", load=_beside(Path()))


def _beside(folder: Path) -> Load:
    """Files that a deployment names: by their own path, else of that name beside the deployment."""

    def load(name: str) -> str | None:
        for path in (folder / name, folder / Path(name).name):
            try:
                return path.read_text()
            except (OSError, UnicodeDecodeError):
                continue
        return None

    return load


def _object(path: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: {path}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{name}: {path}: not a JSON object")
    return found


def _print(deployments: list[Deployment], findings: list[Finding]) -> None:
    for one in deployments:
        block = f", block {one.block} tokens" if one.block else ""
        typer.echo(f"{one.where}: {one.engine} {show(one.version)}{block}")
        for name in one.missing:
            typer.echo(f"  note    {name} could not be read: its options are not checked")
        for f in (f for f in findings if f.where == one.where):
            place = f" (line {f.line})" if f.line else ""
            typer.echo(
                f"  {f.level:7} {f.rule} {f.what}{place}\n          why: {f.why}\n          fix: {f.fix}\n          {f.source}"
            )
    counts = {level: sum(f.level == level for f in findings) for level in ("error", "warning", "note")}
    typer.echo(", ".join(f"{count} {level}{'s' if count != 1 else ''}" for level, count in counts.items()))


def register(app: typer.Typer) -> None:
    @app.command(context_settings={"ignore_unknown_options": True})
    def lint(
        source: Annotated[list[str], typer.Argument(help="File, URL, - for standard input, or the command line after --.")],
        engine_version: Annotated[str | None, typer.Option(help="Version, e.g. 0.25.1; else from the image.")] = None,
        model_config: Annotated[Path | None, typer.Option(help="The model's config.json: gives the block size.")] = None,
        json_file: Annotated[Path | None, typer.Option("--json", help="Findings as headway.lint/1.")] = None,
        sarif_file: Annotated[Path | None, typer.Option("--sarif", help="Findings as SARIF 2.1.0.")] = None,
    ) -> None:
        """Name what an engine's options refuse, ignore or make worse. Exit 1 on an error or a warning."""
        deployments = _read(source)
        told = parse_version(engine_version)
        if engine_version and told is None:
            raise UsageError(f"--engine-version: {engine_version!r} is not a version such as 0.25.1")
        config = _object(model_config, "--model-config") if model_config else None
        for one in deployments:
            one.version, one.config = told or one.version, config
        findings = check_all(deployments)
        if json_file:
            json_file.write_text(json.dumps(as_json(deployments, findings), indent=1) + "\n")
        if sarif_file:
            sarif_file.write_text(json.dumps(as_sarif(findings), indent=1) + "\n")
        _print(deployments, findings)
        if failed(findings):
            raise typer.Exit(1)
