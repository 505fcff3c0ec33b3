"""Runs a plan: start after start, cell after cell. One arm that fails leaves the others alone; what is finished is kept."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from headway.bench.arms.ledger import Ledger
from headway.bench.arms.order import Cell, order
from headway.bench.arms.plan import Arm, Plan
from headway.bench.arms.refusal import findings, refusal, traps
from headway.bench.arms.server import Life, Lost, serving
from headway.bench.client import session
from headway.bench.suite import ALONE_AT_LEAST, Suite
from headway.errors import CheckFailed, HeadwayError, UsageError
from headway.lab.gateway import learned
from headway.lab.process import headway

LEARN_S = 30.0
FAILURES_AT_MOST = 2  # of one arm in a row while it is measured; a server that does not come up is not tried again


class Progress(Protocol):
    def say(self, text: str) -> None: ...

    def state(self, arm: Arm, what: str) -> None:
        """What the arm is doing: one or two words."""

    def measured(self, arm: Arm, run: dict[str, Any]) -> None:
        """A repetition is finished."""


class Runner:
    """`finished` holds the repetitions, `failures` what went wrong ({arm, rep, stage, reason}), `refused` the arms that were
    not started and why, `traps` what lint says of those that are, `notes` what else there is to say."""

    def __init__(self, plan: Plan, ledger: Ledger, progress: Progress) -> None:
        self.plan, self.ledger, self.progress = plan, ledger, progress
        self.started_unix = time.time()
        self.failures: list[dict[str, Any]] = []
        self.refused: dict[str, str] = {}
        self.traps: dict[str, list[str]] = {}
        self.finished, self.notes = ledger.finished(plan.arms)
        self._lost: set[str] = set()
        self._in_a_row: dict[str, int] = {}

    def check(self) -> None:
        """Lint every arm. Raises UsageError when none is left."""
        for arm in self.plan.arms:
            found = findings(arm)
            if (why := refusal(found)) is not None:
                self.refused[arm.name] = why
                self.progress.state(arm, "refused")
                self.progress.say(f"arm {arm.name!r} is refused: {why}")
            elif told := traps(found):
                self.traps[arm.name] = told
        if len(self.refused) == len(self.plan.arms):
            raise UsageError("every arm is refused, nothing to measure")

    async def run(self) -> None:
        for text in self.notes:
            self.progress.say(text)
        kept = sum(rep < self.plan.reps for _, rep in self.finished)
        if kept:
            self.progress.say(f"{kept} finished repetitions in {self.ledger.folder} are kept")
        for (name, _), run in sorted(self.finished.items()):
            self.progress.measured(next(arm for arm in self.plan.arms if arm.name == name), run)
        for start in order(self.plan.arms, self.plan.reps, self.plan.reps_per_start, self.plan.seed or 0):
            todo = [cell for cell in start.cells if self._open(cell)]
            while todo:  # again with a new server when one is lost on the way
                todo = [cell for cell in await self._life(todo) if self._open(cell)]

    def _open(self, cell: Cell) -> bool:
        name = cell.arm.name
        return (name, cell.rep) not in self.finished and name not in self.refused and name not in self._lost

    async def _life(self, todo: list[Cell]) -> list[Cell]:
        """One start of a server, and the cells in it. Returns those that are left when the server is lost on the way."""
        arms = list(dict.fromkeys(cell.arm for cell in todo))
        for arm in arms:
            self.progress.state(arm, "starting")
        left = list(todo)
        try:
            async with serving(todo[0].arm.server, self.ledger.log(todo[0]), self.progress.say) as life:
                while left:
                    if self._open(left[0]):
                        await self._cell(left[0], life)
                    left.pop(0)
        except Lost as error:
            if error.stage == "run":
                self._fail(left[0], error.stage, str(error))
            else:  # it will not come up the next time either
                for arm in arms:
                    self._fail(next(cell for cell in todo if cell.arm == arm), error.stage, str(error))
                    self._lost.add(arm.name)
        for arm in arms:
            self.progress.state(arm, "failed" if arm.name in self._lost else "waiting")
        return left

    def _fail(self, cell: Cell, stage: str, reason: str) -> None:
        self.failures.append({"arm": cell.arm.name, "rep": cell.rep, "stage": stage, "reason": reason})
        self.progress.say(f"arm {cell.arm.name!r}, repetition {cell.rep + 1}: {reason}")
        self._in_a_row[cell.arm.name] = self._in_a_row.get(cell.arm.name, 0) + 1
        if self._in_a_row[cell.arm.name] >= FAILURES_AT_MOST:
            self._lost.add(cell.arm.name)

    async def _cell(self, cell: Cell, life: Life) -> None:
        """Raises Lost when the server is gone; other failures are this cell's own."""
        arm, server = cell.arm, cell.arm.server
        self.progress.state(arm, f"repetition {cell.rep + 1}")
        self.progress.say(f"{arm.name}, repetition {cell.rep + 1} of {self.plan.reps}")
        key = os.environ.get(server.key_env) if server.key_env else None
        seed = random.SystemRandom().getrandbits(48)  # never the same prompts twice: a server may have them cached
        alone = math.ceil(ALONE_AT_LEAST / self.plan.reps)
        suite: Suite | None = None
        try:
            async with self._front(arm, life.url) as url:
                suite = Suite(url, arm.settings, arm.scenarios, 1, seed, alone=alone, first_rep=cell.rep)
                await suite.run(server.model, key, self.progress.say, lambda: None)
        except Lost as error:
            self._fail(cell, error.stage, str(error))
        except CheckFailed as error:
            self._fail(cell, "check", str(error))
        except HeadwayError as error:
            if suite is not None and suite.document["runs"]:
                self.ledger.write(cell, seed, suite.document, suite.events)
            if (died := await life.death()) is not None:
                raise Lost("run", f"{error}; {died}") from None
            self._fail(cell, "run", str(error))
        else:
            run = self.ledger.write(cell, seed, suite.document, suite.events)
            self.finished[arm.name, cell.rep] = run
            self._in_a_row.pop(arm.name, None)
            self.progress.measured(arm, run)
        self.progress.state(arm, "waiting")
        if life.died is not None:
            raise Lost("run", life.died)

    @asynccontextmanager
    async def _front(self, arm: Arm, url: str) -> AsyncIterator[str]:
        """The gateway's URL, a fresh gateway for every repetition, or the server's own."""
        if arm.gateway is None:
            yield url
            return
        up = False
        try:
            async with headway(["serve", "--upstream", url, "--listen", "127.0.0.1:0", *arm.gateway]) as served:
                up = True
                if arm.settings.pieces:
                    async with session() as http:
                        if not await learned(http, served, LEARN_S):
                            self.progress.say(f"  the gateway has not learned the engine within {LEARN_S:.0f} s; going on")
                yield served.url
        except HeadwayError as error:
            if up:
                raise
            raise Lost("gateway", str(error)) from None
