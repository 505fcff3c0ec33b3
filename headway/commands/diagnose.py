"""`headway diagnose`: the cause of a stall, its evidence, and what works in this version."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.advisor.diagnose import Diagnosis, diagnose_report
from headway.advisor.logs import read_log
from headway.advisor.probe import Probe
from headway.advisor.scrapes import read_metrics
from headway.errors import UsageError


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror or error}") from error


def _object(path: Path, option: str) -> dict[str, Any]:
    try:
        found = json.loads(_text(path, option))
    except ValueError as error:
        raise UsageError(f"{option}: {path}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{option}: {path}: not a JSON object")
    return found


def merge(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several: later ones add what earlier ones do not say."""
    whole: dict[str, Any] = {"engine": "", "given": {"config": {}, "observed": {}}}
    for report in reports:
        if not whole["engine"] or (report.get("engine") and report["engine"] not in whole["engine"]):
            whole["engine"] = f"{whole['engine']} {report.get('engine', '')}".strip()
        given = report.get("given", {k: v for k, v in report.items() if k != "engine"})
        if "config" not in given and "observed" not in given:
            given = {"observed": given}
        for group, fields in given.items():
            place = whole["given"].setdefault(group, {})
            for name, value in (fields if isinstance(fields, dict) else {group: fields}).items():
                place.setdefault(name, value)
    return whole


def _print(found: Diagnosis, notes: list[str]) -> None:
    typer.echo(f"verdict: {found.verdict}" + (f" (likely {found.likely})" if found.likely else "") + f"; engine: {found.engine}")
    for title, lines in (
        ("note", notes),
        ("evidence", found.evidence),
        ("numbers", [f"{name} {value:g}" for name, value in found.numbers.items()]),
        ("option", [f"{name} = {value}" for name, value in found.options.items()]),
        ("contradiction", found.contradictions),
        ("not understood", found.unread),
        ("measure", found.measure),
        ("do", [_priced(step) for step in found.do]),
    ):
        for line in lines:
            typer.echo(f"  {title}: {line}")


def _priced(step: dict[str, Any]) -> str:
    price = step["predicted"]
    told = [f"share {price['share']:.0%}"] if price["share"] is not None else []
    told += [f"longest gap {price['gap_s']:.2f} s"] if price["gap_s"] is not None else []
    told += [f"TTFT {price['ttft_s']:.1f} s"] if price["ttft_s"] is not None else []
    what: str = step["what"]
    return f"{what} [{', '.join([*told, step['basis']])}]"


def register(app: typer.Typer) -> None:
    @app.command()
    def diagnose(
        url: Annotated[str | None, typer.Argument(help="Base URL: a short experiment, stops for real traffic.")] = None,
        facts: Annotated[Path | None, typer.Option(help="JSON with `engine` and `given`.")] = None,
        log: Annotated[Path | None, typer.Option(help="Log of vLLM, SGLang or llama.cpp's server.")] = None,
        metrics: Annotated[list[Path] | None, typer.Option(help="/metrics page; twice: before and after.")] = None,
        bench: Annotated[Path | None, typer.Option(help="Saved overlap result, fields as in --facts.")] = None,
        json_file: Annotated[Path | None, typer.Option("--json", help="Verdict as headway.diagnose/1.")] = None,
    ) -> None:
        """Name the cause of a stall with its evidence, and what to do about it in this version."""
        reports = []
        notes: list[str] = []
        if facts:
            reports.append(_object(facts, "--facts"))
        if bench:
            reports.append(_object(bench, "--bench"))
        if log:
            reports.append(read_log(_text(log, "--log")))
        if metrics:
            if len(metrics) > 2:
                raise UsageError("--metrics: at most two pages, before and after")
            reports.append(read_metrics(*[_text(path, "--metrics") for path in metrics]))
        if url:
            if not url.startswith(("http://", "https://")):
                raise UsageError(f"{url}: not a URL; saved material goes to --facts, --log, --metrics or --bench")
            probe = Probe(url, os.environ.get("HEADWAY_API_KEY"))
            reports.append(asyncio.run(probe.run()))
            notes = probe.notes
        if not reports:
            raise UsageError("diagnose: give a URL, or one of --facts, --log, --metrics, --bench")
        found = diagnose_report(reports[0] if len(reports) == 1 else merge(reports))
        if json_file:
            json_file.write_text(json.dumps(found.as_json() | {"notes": notes}, indent=1) + "\n")
        _print(found, notes)
