"""The formats by name. A format is known by marks in the file (columns of a table, keys of an object), not by the file's name."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.traces import decisions, documents, tables
from headway.traces.arrange import Cut, arrange
from headway.traces.record import Call, TraceError
from headway.traces.rows import document, lines


@dataclass(frozen=True)
class Format:
    marks: frozenset[str]
    read: Callable[[Path], Iterator[Call]]
    own_clocks: bool = False  # each session's time starts at 0
    folder: bool = False  # one file a session: a folder of them is one trace


#: The first whose marks are all there wins, so the richer of two stands first.
FORMATS: dict[str, Format] = {
    "claude-code": Format(tables.AGENT, tables.agent_sessions, own_clocks=True),
    "azure": Format(tables.AZURE.needed, tables.sizes_only(tables.AZURE)),
    "vidur": Format(tables.VIDUR.needed, tables.sizes_only(tables.VIDUR)),
    "lengths": Format(tables.LENGTHS.needed, tables.sizes_only(tables.LENGTHS)),
    "plain": Format(tables.PLAIN.needed, tables.sizes_only(tables.PLAIN)),
    "decisions": Format(frozenset(("e", "schema")), decisions.calls),
    "mooncake": Format(frozenset(("timestamp", "input_length", "output_length")), documents.mooncake),
    "served": Format(frozenset(("arrival_time", "input_toks", "output_toks")), documents.served),
    "kv-cache-tester": Format(frozenset(("block_size", "requests")), documents.weka, own_clocks=True, folder=True),
    "otel": Format(frozenset(("spans",)), documents.otel, own_clocks=True, folder=True),
}


def read(path: Path, format: str | None = None, cut: Cut | None = None) -> Iterator[Call]:
    """The calls of a file (or of a folder of session files) on one clock, in order of arrival, read as they are asked for.

    Raises TraceError for a file, a row or a format name that cannot be used.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise TraceError(path, None, "no *.json file in this folder")
    if format is None:
        format = detect(files[0])
    if format not in FORMATS:
        raise TraceError(path, None, f"no format {format!r}; there are {', '.join(FORMATS)}")
    kind = FORMATS[format]
    if path.is_dir() and not kind.folder:
        raise TraceError(path, None, f"a {format} trace is a file, this is a folder")
    calls = (call for file in files for call in kind.read(file))
    return arrange(calls, path, cut or Cut(), own_clocks=kind.own_clocks)


def detect(path: Path) -> str:
    """The name of the format of a file. Raises TraceError."""
    marks = _marks(path)
    for name, kind in FORMATS.items():
        if kind.marks <= marks:
            return name
    seen = ", ".join(sorted(marks)[:8])
    raise TraceError(path, None, f"no known trace format has these columns or keys: {seen}; there are {', '.join(FORMATS)}")


def _marks(path: Path) -> set[str]:
    first = next(lines(path), None)
    if first is None:
        raise TraceError(path, None, "the file is empty")
    if not first[1].lstrip().startswith("{"):
        return {field.strip() for field in next(csv.reader([first[1]]))}
    try:
        return set(msgspec.json.decode(first[1], type=dict))
    except msgspec.DecodeError:
        return set(document(path))  # one object over many lines
