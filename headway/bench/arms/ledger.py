"""What is finished already: a folder with one JSON file a finished repetition, and its events beside it.

A repetition is finished when its file in `runs/` exists; that file is written last and at once, so an interrupted one leaves
none and is done again. It carries the digest of its arm: when the arm file says something else now, it is moved to
`replaced/` and the repetition is done again. Nothing is ever deleted.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.bench.arms.order import Cell
from headway.bench.arms.plan import Arm
from headway.errors import UsageError

SCHEMA = "headway.arms-run/1"


class Ledger:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder. Two runs must not write into one. Raises UsageError."""
        try:
            for name in ("runs", "events", "logs"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {self.folder}: {error.strerror}") from None
        with open(self.folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"--out {self.folder}: another headway bench arms is writing there") from None
            yield

    def _name(self, cell: Cell) -> str:
        return f"{cell.arm.slug}-{cell.rep + 1}"

    def log(self, cell: Cell) -> Path:
        """The log of the server started for this cell (and for those that share its start)."""
        return self.folder / "logs" / f"{self._name(cell)}.log"

    def finished(self, arms: Sequence[Arm]) -> tuple[dict[tuple[str, int], dict[str, Any]], list[str]]:
        """The finished repetitions by (arm, repetition), and what there is to say about others."""
        known = {arm.name: arm for arm in arms}
        out: dict[tuple[str, int], dict[str, Any]] = {}
        changed: dict[str, int] = {}
        strange: dict[str, int] = {}
        notes: list[str] = []
        for path in sorted((self.folder / "runs").glob("*.json")):
            try:
                run = json.loads(path.read_text())
                name, rep, digest = run["arm"], run["rep"], run["digest"]
                if run["schema"] != SCHEMA or not (self.folder / run["events"]).is_file():
                    raise ValueError
            except (OSError, ValueError, KeyError, TypeError):
                notes.append(f"{path} is not a finished repetition: it is done again")
                self._replace(path)
                continue
            if name not in known:
                strange[name] = strange.get(name, 0) + 1
            elif digest != known[name].digest:
                changed[name] = changed.get(name, 0) + 1
                self._replace(path)
            else:
                out[name, rep] = run
        notes += [
            f"arm {name!r} has changed in the arm file: its {n} finished repetitions are done again"
            for name, n in changed.items()
        ]
        notes += [
            f"arm {name!r} is not in the arm file (any more): its {n} repetitions are left out" for name, n in strange.items()
        ]
        return out, notes

    def _replace(self, path: Path) -> None:
        target = self.folder / "replaced" / str(time.time_ns())
        target.mkdir(parents=True)
        for file in (path, self.folder / "events" / f"{path.stem}.jsonl"):
            if file.exists():
                file.rename(target / f"{file.parent.name}-{file.name}")

    def write(self, cell: Cell, seed: int, document: dict[str, Any], events: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A finished repetition, or, where the document has an error, a broken one, which is kept apart and done again."""
        broken = document["error"] is not None
        name = self._name(cell)
        events_path = Path("broken" if broken else "events") / f"{name}.jsonl"
        run = {
            "schema": SCHEMA, "arm": cell.arm.name, "rep": cell.rep, "digest": cell.arm.digest, "seed": seed,
            "events": str(events_path), "document": document,
        }  # fmt: skip
        if broken:
            (self.folder / "broken").mkdir(exist_ok=True)
        whole(self.folder / events_path, "".join(json.dumps(event) + "\n" for event in events))
        whole(self.folder / ("broken" if broken else "runs") / f"{name}.json", json.dumps(run, indent=1) + "\n")
        return run


def whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    with open(part, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
