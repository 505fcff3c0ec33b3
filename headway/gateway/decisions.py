"""The decision log on disk: one JSON line a record (core/journal.py), appended by a thread of its own. It is read by
traces/decisions.py.

Invariants
----------
1. The event loop never waits for the disk: it puts records into a bounded queue. What does not fit is counted, and a `lost`
   record in its place tells a reader that the log cannot be replayed beyond it.
2. The file is opened for appending, and opened anew once its name points to another file or to none, so that it may be rotated by
   renaming it; the new file begins with `continues`.
3. A record carries no text of a prompt or an answer.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headway.core.journal import SCHEMA, Record
from headway.errors import UsageError

log = logging.getLogger("headway.gateway")

ROOM = 20_000
"""Records that may wait for the disk: some 5 MB."""
TOGETHER = 512
"""Records written at once at most."""
LINGER_S = 0.2
"""Seconds that a record may wait for others, so that a busy gateway writes now and then and not for each."""
CLOSE_S = 5.0
"""Seconds that closing waits for the disk."""


class DecisionLog:
    """Appends records to `path`. Raises UsageError where it cannot be written at the start; later failures are logged, once."""

    def __init__(self, path: Path, on_lost: Callable[[], None] = lambda: None, room: int = ROOM) -> None:
        self.path = path
        self._on_lost = on_lost
        self._room = room
        self._queue: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._gap = 0
        self._file = -1
        self._identity: tuple[int, int] | None = None
        self._failing = False
        try:
            self._open(first=True)
        except OSError as error:
            raise UsageError(f"--decision-log {path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="headway-decision-log", daemon=True)
        self._thread.start()

    def __call__(self, record: Record) -> None:
        """Take a record; never waits."""
        if self._queue.qsize() >= self._room:
            self._on_lost()
            self._gap += 1
            return
        if self._gap:
            gap, self._gap = self._gap, 0
            self._queue.put({"t": record["t"], "u": record["u"], "e": "lost", "records": gap})
        self._queue.put(record)

    def close(self) -> None:
        """Write what is left, for at most CLOSE_S seconds."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("--decision-log %s: the disk does not keep up, the last records are lost", self.path)

    # -- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        encoder = msgspec.json.Encoder()
        ended = False
        while not ended:
            record = self._queue.get()
            if record is not None:
                time.sleep(LINGER_S if self._queue.qsize() < TOGETHER else 0)
            lines = []
            while record is not None:
                lines.append(encoder.encode(record))
                if len(lines) >= TOGETHER:
                    break
                try:
                    record = self._queue.get_nowait()
                except queue.Empty:
                    break
            ended = record is None
            if lines:
                self._write(b"\n".join(lines) + b"\n")
        if self._file >= 0:
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        try:
            if self._moved():
                self._open(first=False)
            while data:
                data = data[os.write(self._file, data) :]
            self._failing = False
        except OSError as error:
            # What a full disk took is not known: a reader sees a line that is cut, and stops there.
            if not self._failing:
                log.warning("--decision-log %s: %s: records are lost", self.path, error.strerror)
            self._failing = True

    def _moved(self) -> bool:
        try:
            now = os.stat(self.path)
        except OSError:
            return True
        return (now.st_dev, now.st_ino) != self._identity

    def _open(self, first: bool) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        state = os.fstat(self._file)
        self._identity = (state.st_dev, state.st_ino)
        if stat.S_ISREG(state.st_mode) and state.st_size and os.pread(self._file, 1, state.st_size - 1) != b"\n":
            os.write(self._file, b"\n")  # an earlier gateway broke off in the middle of a line
        if not first:
            os.write(self._file, msgspec.json.encode({"e": "continues", "schema": SCHEMA}) + b"\n")
