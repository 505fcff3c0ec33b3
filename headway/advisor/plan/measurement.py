"""Bench documents in, what was measured of one engine out. One reader for each schema in READERS."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import UsageError


@dataclass(frozen=True, slots=True)
class Alone:
    """A long prompt alone: uncached tokens and seconds to its first token."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Direct:
    """A long prompt sent whole beside a live answer: tokens, longest gap and TTFT in seconds, share of the solo rate kept."""

    tokens: int
    gap: float
    ttft: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Learned:
    """The step model that a gateway had learned at the end of a run, in seconds (core.steps)."""

    a: float
    e: float
    b: float
    c: float
    h: float


@dataclass(slots=True)
class Measurement:
    """Of one engine, of one file or of several."""

    sources: list[str] = field(default_factory=list)
    version: str | None = None
    model: str | None = None
    budget: int | None = None
    solo: list[float] = field(default_factory=list)
    """Tokens a second of an answer alone."""
    alone: list[Alone] = field(default_factory=list)
    direct: list[Direct] = field(default_factory=list)
    learned: list[Learned] = field(default_factory=list)
    overlaps: int = 0
    """Runs in which a long prompt met a live answer, valid or not."""
    void: list[str] = field(default_factory=list)
    """Why runs of those are void."""


def measurement(paths: list[Path]) -> Measurement:
    """UsageError, in one line, for a file that is no bench document or from which nothing follows."""
    out = Measurement()
    for path in paths:
        _read(path, out)
    where = ", ".join(out.sources)
    if not out.overlaps:
        raise UsageError(f"{where}: no run in which a long prompt met a live answer; measure one: headway bench URL")
    if len(out.void) == out.overlaps:
        raise UsageError(f"{where}: all {out.overlaps} runs with an overlap are void ({out.void[0]})")
    for found, what in ((out.solo, "an answer alone"), (out.alone, "the long prompt alone")):
        if not found:
            raise UsageError(f"{where}: no valid run of {what}, so nothing can be predicted")
    return out


def _read(path: Path, out: Measurement) -> None:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path}: not JSON, so no bench document") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    reader = READERS.get(schema) if isinstance(schema, str) else None
    if reader is None:
        told = f"its schema is {schema!r}" if schema else "it names no schema"
        raise UsageError(f"{path}: not a bench document ({told}); known: {', '.join(READERS)}")
    before = out.version
    try:
        reader(document, out)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path}: not a whole {schema} document ({type(error).__name__}: {error})") from None
    out.sources.append(path.name)
    if before and out.version != before:
        raise UsageError(f"{path}: measured on version {out.version}, the file before it on {before}: plan one engine at a time")


def _bench(document: dict[str, Any], out: Measurement) -> None:
    server, settings = document["server"], document["settings"]
    out.version = server.get("version") or out.version
    out.model = server.get("model") or out.model
    out.budget = settings.get("budget") or out.budget
    for run in document["runs"]:
        name, figures, void = run["scenario"], run["figures"], run["void"]
        beside = name in ("overlap-after", "overlap-together")
        if beside:
            out.overlaps += 1
            if void:
                out.void.append(void)
        if void:
            continue
        if name == "victim-alone":
            _add(out.solo, figures.get("victim_tokens_per_s"))
        elif name == "intruder-alone" and figures.get("t0_s"):
            uncached = int(figures.get("prompt_tokens") or settings["intruder_in"]) - int(figures.get("cached_tokens") or 0)
            out.alone.append(Alone(uncached, figures["t0_s"]))
        elif name == "overlap-after":
            tokens = next((s["usage"]["prompt_tokens"] for s in run["streams"] if s["class"] == "intruder" and s.get("usage")), 0)
            out.direct.append(
                Direct(
                    tokens or settings["intruder_in"], figures["longest_gap_s"], figures["intruder_ttft_s"], figures.get("share")
                )
            )


def _share_matrix(document: dict[str, Any], out: Measurement) -> None:
    out.version = document["engine"].get("version") or out.version
    for run in document["runs"]:
        out.overlaps += 1
        if run["void"]:
            out.void.append(run["void"])
            continue
        usage = run["streams"][-1].get("usage") or {}
        tokens = int(usage.get("prompt_tokens") or run["intruder_tokens"])
        if run["victims"] == 1:
            _add(out.solo, run["solo_tokens_per_s"])
        alone = Alone(tokens, run["t0_s"] / run["intruders"]) if run["t0_s"] else None
        if alone is not None and all(alone.seconds != other.seconds for other in out.alone):  # arms may share one
            out.alone.append(alone)
        if run["arm"] == "passthrough":
            out.direct.append(Direct(tokens, run["longest_gap_s"], run["ttft_s"], run["share"]))
        model = run.get("model") or {}
        if model.get("h") and run["arm"].startswith("pace"):
            out.learned.append(Learned(*(float(model[name]) for name in ("a", "e", "b", "c", "h"))))


def _cpu_overlap(document: dict[str, Any], out: Measurement) -> None:
    """The arms with a victim first; solo rate and T0 straight at the engine stand in every run."""
    out.version = document["engine"].get("version") or out.version
    words = document["engine"].get("arguments", [])
    if "--max-num-batched-tokens" in words:
        out.budget = int(words[words.index("--max-num-batched-tokens") + 1])
    for run in document["runs"]:
        if run["part"] not in ("overlap", "tools", "nodetails"):
            continue
        out.overlaps += 1
        if run["void"]:
            out.void.append(run["void"])
            continue
        tokens = int((run["intruder"].get("usage") or {}).get("prompt_tokens") or document["intruder_tokens"])
        _add(out.solo, run["solo_tokens_per_s"])
        if all(run["t0_direct_s"] != other.seconds for other in out.alone):
            out.alone.append(Alone(tokens, run["t0_direct_s"]))
        if run["arm"] == "passthrough":
            out.direct.append(Direct(tokens, run["longest_gap_s"], run["intruder_ttft_s"], run["share"]))


def _add(to: list[float], value: float | None) -> None:
    if value:
        to.append(value)


READERS: dict[str, Callable[[dict[str, Any], Measurement], None]] = {
    "headway.bench/1": _bench,
    "headway.share-matrix/1": _share_matrix,
    "headway.cpu-overlap/1": _cpu_overlap,
}
