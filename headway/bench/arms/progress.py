"""What is going on, on stderr: a table that is kept up to date on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.bench.arms.plan import Arm, Plan
from headway.bench.tables import number, seconds
from headway.bench.window import median

LATEST = (("share", number), ("longest_gap_s", seconds), ("intruder_ttft_s", seconds))


class Lines:
    """One line a message."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def state(self, arm: Arm, what: str) -> None:
        pass

    def measured(self, arm: Arm, run: dict[str, Any]) -> None:
        pass


class Table:
    """One row an arm: what it is doing, how far it is, its medians so far. The last message stands below."""

    def __init__(self, plan: Plan, live: Any) -> None:
        self._plan, self._live = plan, live
        self._state = {arm.name: "waiting" for arm in plan.arms}
        self._done: dict[str, int] = {arm.name: 0 for arm in plan.arms}
        self._seen: dict[tuple[str, str], list[float]] = {}
        self._last, self._begun = "", time.monotonic()

    def say(self, text: str) -> None:
        self._last = text.strip()
        if not text.startswith(" "):
            self._live.console.print(text, highlight=False, markup=False)
        self._draw()

    def state(self, arm: Arm, what: str) -> None:
        self._state[arm.name] = what
        self._draw()

    def measured(self, arm: Arm, run: dict[str, Any]) -> None:
        self._done[arm.name] += 1
        for one in run["document"]["runs"]:
            if one["scenario"].startswith("overlap-") and one["scenario"] != "overlap-control" and not one["void"]:
                for key, _ in LATEST:
                    if (value := one["figures"].get(key)) is not None:
                        self._seen.setdefault((arm.name, key), []).append(value)
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table as Rows
        from rich.text import Text

        table = Rows(title=self._plan.title or None, title_justify="left")
        for header in ("arm", "repetitions", "now", "share", "longest gap", "intruder's TTFT"):
            table.add_column(header, justify="left" if header in ("arm", "now") else "right")
        for arm in self._plan.arms:
            state = self._state[arm.name]
            done = self._done[arm.name]
            if done >= self._plan.reps and state == "waiting":
                state = "done"
            latest = [show(median(self._seen.get((arm.name, key), []))) for key, show in LATEST]
            style = {"failed": "red", "refused": "yellow", "done": "green"}.get(state, "")
            table.add_row(arm.name, f"{done}/{self._plan.reps}", Text(state, style=style), *latest)
        spent = time.monotonic() - self._begun
        self._live.update(Group(table, Text(f"{spent / 60:.0f} min  {self._last}", overflow="ellipsis", no_wrap=True)))


@contextmanager
def progress(plan: Plan) -> Iterator[Lines | Table]:
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        table = Table(plan, live)
        yield table
