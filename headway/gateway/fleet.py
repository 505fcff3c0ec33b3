"""The upstreams together: which one a request goes to, and what becomes of those that are configured no more.

Invariants
----------
1. An upstream that is removed or drained gets no new request; it is closed when the last one there has ended.
2. Requests that wait for an upstream which went down are given back, to be sent to another; with one upstream they stay, and
   meet its error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headway.core.estimate import TokenEstimator
from headway.core.journal import Sink
from headway.core.routing import Candidate, backlog, choose, seconds
from headway.core.steps import StepModel
from headway.core.textindex import PromptText
from headway.gateway.config import Config, UpstreamConfig
from headway.gateway.metrics import Metrics
from headway.gateway.transport.dialer import dial
from headway.gateway.transport.interface import LostReason, UpstreamLost
from headway.gateway.upstream import Upstream

log = logging.getLogger("headway.gateway")


@dataclass(slots=True, frozen=True)
class Load:
    """What a request would be to an upstream."""

    size: int
    """Bytes that stand for its prompt; 0 for one that prefills nothing."""
    tokens: int | None
    """Prompt tokens where they are known."""
    prompt: PromptText | None
    """For the text index."""
    model: str = ""

    @property
    def prompting(self) -> tuple[PromptText | None, int, int | None]:
        """Arguments of Upstream.guess."""
        return self.prompt, self.size, self.tokens


class Fleet:
    def __init__(self, config: Config, metrics: Metrics, journal: Sink | None = None) -> None:
        self.config = config
        self._journal = journal
        self.metrics = metrics
        self.members: list[Upstream] = []
        self._leaving: dict[Upstream, asyncio.Task[None]] = {}
        self._turn = 0
        for target in config.upstreams:
            self._add(target)

    @property
    def all(self) -> list[Upstream]:
        """Members, and those that are leaving."""
        return [*self.members, *self._leaving]

    def start(self) -> None:
        for upstream in self.members:
            upstream.start()

    async def close(self) -> None:
        for task in self._leaving.values():
            task.cancel()
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        for upstream in self.all:
            await upstream.close()

    # -- choosing -----------------------------------------------------------------------------------

    def choose(self, load: Load, tried: Collection[Upstream] = ()) -> Upstream | None:
        """The best upstream that was not tried; None when all were."""
        members = self.members
        if len(members) == 1:
            return members[0] if not tried else None
        self._turn += 1
        # What one upstream has not learned yet is taken from another: a difference of knowledge is none of speed.
        estimator = next((upstream.estimator for upstream in members if upstream.estimator.learned), members[0].estimator)
        model = next((m for upstream in members if (m := upstream.controller.pacer.model) is not None), None)
        candidates = [self._candidate(upstream, load, estimator, model) for upstream in members]
        index = choose(
            candidates,
            [n for n, upstream in enumerate(members) if upstream in tried],
            self.config.policy == "route",
            self._turn,
        )
        return members[index] if index is not None else None

    def _candidate(self, upstream: Upstream, load: Load, estimator: TokenEstimator, model: StepModel | None) -> Candidate:
        controller, now = upstream.controller, upstream.desk.now
        pacer, model = controller.pacer, controller.pacer.model or model
        estimator = upstream.estimator if upstream.estimator.learned else estimator
        guess = upstream.guess(*load.prompting, estimator.ratio)
        tokens, cached = guess.tokens, guess.cached
        known = upstream.models is not None and bool(load.model)
        serves = (
            not known or load.model in (upstream.models or ()) or not any(load.model in (m.models or ()) for m in self.members)
        )
        return Candidate(
            role=upstream.target.role,
            standing=upstream.health.at(now),
            takes=upstream.health.takes(now, len(controller.entries)) and controller.waiting < self.config.targets.queue,
            draining=upstream.draining,
            serves=serves,
            big=pacer.is_big(tokens - cached, cached),
            ahead=backlog(controller.entries.values(), model),
            own=seconds(tokens - cached, cached, model),
            seen=seconds(max(0, guess.matched - cached), cached, model),
            in_engine=controller.in_engine,
        )

    # -- coming and going -----------------------------------------------------------------------------

    def _add(self, target: UpstreamConfig) -> Upstream:
        dialer = dial(target.origin.host, target.origin.port, tls=target.origin.tls)
        upstream = Upstream(self.config, target, dialer, self.metrics, self._journal)
        upstream.on_down = self._went_down
        self.members.append(upstream)
        return upstream

    def _went_down(self, upstream: Upstream) -> None:
        if any(other.health.takes(other.desk.now, 0) and not other.draining for other in self.members if other is not upstream):
            error = UpstreamLost(LostReason.CONNECT, f"{upstream.target.origin.url} went down while the request waited")
            upstream.desk.give_back(error)

    def change(self, targets: Sequence[UpstreamConfig]) -> None:
        """Take over another list of upstreams: those that stay keep what they learned, those that are gone are drained."""
        have = {(upstream.target.origin, upstream.target.label): upstream for upstream in self.members}
        self.members = []
        for target in targets:
            upstream = have.pop((target.origin, target.label), None)
            if upstream is None:
                upstream = self._add(target)
                upstream.start()
                log.info("upstream %s: added, role %s", target.label, target.role)
                continue
            if (upstream.target.role, upstream.draining) != (target.role, target.drain):
                log.info("upstream %s: role %s%s", target.label, target.role, ", draining" if target.drain else "")
            upstream.target, upstream.draining = target, target.drain
            self.members.append(upstream)
        for upstream in have.values():
            upstream.draining = True
            log.info("upstream %s: removed, %d requests under way", upstream.target.label, len(upstream.controller.entries))
            self._leaving[upstream] = asyncio.create_task(self._leave(upstream))

    async def _leave(self, upstream: Upstream) -> None:
        await upstream.desk.empty()
        await upstream.close()
        del self._leaving[upstream]
        upstream.gauges.remove()
        log.info("upstream %s: drained", upstream.target.label)
