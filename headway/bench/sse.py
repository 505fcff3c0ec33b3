"""Server-sent events, parsed from raw chunks as they arrive.

An event is complete at its blank line, wherever the chunks were cut. Lines may end in LF or CRLF; comment
lines (keep-alives) and fields other than `data` carry nothing that a benchmark counts.
"""

from __future__ import annotations


class Events:
    """Feed bytes, get the `data` of each event that they complete, in order."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        done: list[bytes] = []
        for raw in lines:
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if not line:
                if self._data:
                    done.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return done

    def end(self) -> bytes | None:
        """What is left when the body ends without a last blank line; None when that is nothing."""
        left = [*self._data, self._rest] if self._rest else self._data
        self._rest, self._data = b"", []
        return b"\n".join(left) if left else None
