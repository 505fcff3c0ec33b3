"""Lines of a trace file one at a time, with their numbers, and numbers out of their fields."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from headway.traces.record import TraceError

LONGEST_LINE = 2**26  # bytes: a line (or a one-document file) above this is not a trace


def open_text(path: Path) -> io.TextIOWrapper:
    """A file, or a gzipped one by its name. Raises TraceError."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="")


def open_bytes(path: Path) -> BinaryIO:
    """The same, undecoded."""
    try:
        return cast("BinaryIO", gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb"))
    except OSError as error:
        raise TraceError(path, None, error.strerror or str(error)) from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line without its end) of each line that is not blank."""
    with open_text(path) as file:
        number = 0
        try:
            while text := file.readline(LONGEST_LINE):
                number += 1
                if len(text) == LONGEST_LINE:
                    raise TraceError(path, number, f"a line of more than {LONGEST_LINE >> 20} MiB is no row of a trace")
                if text.strip():
                    yield number, text.rstrip("\r\n")
        except UnicodeDecodeError:
            raise TraceError(path, number + 1, "not UTF-8 text") from None
        except (OSError, EOFError) as error:  # a broken gzip
            raise TraceError(path, number + 1, str(error)) from None


def table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, fields by column) of a CSV with a header."""
    header: list[str] | None = None
    for number, text in lines(path):
        fields = next(csv.reader([text]))
        if header is None:
            header = [field.strip() for field in fields]
        elif len(fields) != len(header):
            raise TraceError(path, number, f"{len(fields)} fields where the header has {len(header)}")
        else:
            yield number, dict(zip(header, fields, strict=True))


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSONL file."""
    for number, text in lines(path):
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(path, number, f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise TraceError(path, number, "not a JSON object")
        yield number, value


def document(path: Path) -> dict[str, Any]:
    """A file that is one JSON object."""
    with open_text(path) as file:
        try:
            text = file.read(LONGEST_LINE)
            value = msgspec.json.decode(text) if len(text) < LONGEST_LINE else None
        except (UnicodeDecodeError, msgspec.DecodeError, OSError, EOFError) as error:
            raise TraceError(path, None, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        what = "not a JSON object" if len(text) < LONGEST_LINE else f"more than {LONGEST_LINE >> 20} MiB in one document"
        raise TraceError(path, None, what)
    return value


def whole(path: Path, line: int | None, name: str, value: Any, least: int = 0) -> int:
    """A whole number of tokens, from text or JSON."""
    try:
        number = float(value)
        if isinstance(value, bool) or number != int(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise TraceError(path, line, f"{name} {value!r} is not a whole number") from None
    if number < least:
        raise TraceError(path, line, f"{name} {value!r} is below {least}")
    return int(number)


def seconds(path: Path, line: int | None, name: str, value: Any) -> float:
    try:
        number = float(value)
        if isinstance(value, bool):
            raise ValueError
    except (TypeError, ValueError):
        raise TraceError(path, line, f"{name} {value!r} is not a time") from None
    if not math.isfinite(number):
        raise TraceError(path, line, f"{name} {value!r} is not a time")
    return number


def ids(path: Path, line: int | None, name: str, value: Any, tokens: int, block: int) -> tuple[int, ...]:
    """Block ids of a prompt of `tokens` tokens: at most one a block, begun blocks counted."""
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        raise TraceError(path, line, f"{name} is not a list of whole numbers")
    if len(value) > -(-tokens // block):
        raise TraceError(path, line, f"{len(value)} {name} are more than {tokens} tokens in blocks of {block}")
    return tuple(value)
