"""One exchange, from its head to its end: may it be relayed, is it big, its turn, its pieces, its answer.

Invariants
----------
1. A request is sent on as it came: body untouched, headers but a named list untouched (transport/framing.py, `request_headers`).
2. Its whole life lies inside one permit. The client leaving cancels this coroutine, at whatever line it stands, and the way out
   of the two `with` blocks closes the upstream connection and gives the place back.
3. Each exchange is counted once, under one Outcome, which is also what an error body and the log say.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from math import ceil
from urllib.parse import unquote_to_bytes

from headway.core.bounds import queue_seconds
from headway.core.classes import default_classes
from headway.core.controller import QueueFull
from headway.core.outcome import Outcome, Unpaced
from headway.core.policy import HOLDING, PACING
from headway.core.resends import Mode
from headway.core.textindex import Guess, PromptText
from headway.core.work import Why, Work
from headway.gateway import textpieces
from headway.gateway.classify import class_of, keys_of, session_of
from headway.gateway.config import Config
from headway.gateway.desk import Expired, Permit
from headway.gateway.dialects.ask import Ask
from headway.gateway.dialects.table import DIALECTS, Dialect, dialect_of
from headway.gateway.exchange import Exchange
from headway.gateway.fleet import Fleet
from headway.gateway.keepalive import Clock, Keeper
from headway.gateway.learning import learn, shape_of
from headway.gateway.metrics import Metrics
from headway.gateway.pieces import GaveUp, NotByText, Pacing, prepare, shared_headers
from headway.gateway.priority import in_body, in_head
from headway.gateway.resends import Resends
from headway.gateway.stream import ResponseRelay
from headway.gateway.textpieces import TextPacing
from headway.gateway.transport.interface import BodyTooLarge, Downstream, RequestHead, ResponseHead, UpstreamLost
from headway.gateway.upstream import Upstream

log = logging.getLogger("headway.gateway")

RELAYED = frozenset({b"/tokenize", b"/detokenize", b"/health", b"/version"})
"""Relayed beside /v1/*. An engine's administration (/sleep, /reset_prefix_cache, /collective_rpc ...) is not."""
DECODINGS = 3
"""Times that a path may be percent-encoded over and over; each is one pass over it."""
LONGEST_RETRY = 600
"""Seconds of Retry-After at most: a prediction for longer is not worth much, and some clients obey."""
LIMITS = {"queue": "{:,} requests", "queue-tokens": "requests of {:,} tokens"}
"""What waits, by the option that bounds it."""
UNPACED_FOR = frozenset({Why.FREE, Why.SHARE, Why.BOUND, Why.BACKLOG})
"""Reasons for which a big request that goes whole would have gone in pieces, if it could."""
SMALL_BODY = 2048
"""Bytes below which a body is not looked up in the text index: whatever it hits, it is small."""


class Relay:
    def __init__(self, config: Config, fleet: Fleet, metrics: Metrics, clock: Clock | None = None) -> None:
        """`clock`: what keep-alives go by (the event loop, unless a test has another)."""
        self.config = config
        self.fleet = fleet
        self.metrics = metrics
        self._resends = Resends(config.resends) if config.resends is not Mode.OFF else None
        self._keeper = Keeper(config, clock or asyncio.get_running_loop(), metrics)
        self._ids = itertools.count(1)
        self._classes = config.classes or default_classes(config.targets)

    async def __call__(self, down: Downstream) -> None:
        """Handle one exchange. See transport.interface.Handler."""
        path = down.request.target.partition(b"?")[0]
        dialect = dialect_of(path, added=path in self.config.relay)
        if not self.may_relay(path):
            self._answer(down, dialect, 404, "not_found_error", Outcome.REFUSED, f"headway does not relay {printable(path)}")
            return
        outcome = Outcome.CLIENT_LEFT
        try:
            outcome = await self._exchange(down, dialect)
        finally:
            self.metrics.ended(outcome)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s %s: %s", down.request.method.decode("latin-1"), printable(path), outcome)

    def may_relay(self, path: bytes) -> bool:
        """Whether this path goes on. What a server might normalise into another path does not, however often it decodes."""
        if path in DIALECTS:
            return True
        plain = path
        for _ in range(DECODINGS):
            plain = unquote_to_bytes(plain)
        if unquote_to_bytes(plain) != plain:
            return False
        if any(trick in plain for trick in (b"..", b"//", b"/./", b"\\", b"#", b"?", b";", b"\0")):
            return False
        return path.startswith(b"/v1/") or path in RELAYED or path in self.config.relay

    async def _exchange(self, down: Downstream, dialect: Dialect) -> Outcome:
        try:
            body = await down.body()
        except BodyTooLarge:
            message = f"the body is larger than {self.config.max_body} bytes (--max-body)"
            return self._answer(down, dialect, 413, "invalid_request_error", Outcome.REFUSED, message, count=False)
        encoded = down.request.get(b"content-encoding") not in (None, b"identity")
        ask = Ask(size=len(body)) if encoded else dialect.read(body) if body else Ask()
        prompt = PromptText(ask.seed, ask.text, ask.size) if dialect.held and len(ask.text) >= SMALL_BODY else None
        klass = class_of(down.request, ask.model, self.config.class_rules, self._classes)
        exchange = Exchange(down, dialect, ask, prompt, body, klass)
        self._prioritise(exchange)
        try:
            if self._resends is None or not exchange.prefills:
                return await self._anywhere(exchange)
            return await self._resends.run(exchange, client_of(down), self._anywhere)
        finally:
            exchange.close()

    async def _anywhere(self, exchange: Exchange) -> Outcome:
        """The exchange at the best upstream, or at another where that one was lost before it answered."""
        tried: list[Upstream] = []
        upstream = self.fleet.choose(exchange.load)
        while True:
            assert upstream is not None  # a fleet has members
            try:
                return await self._at(upstream, exchange)
            except UpstreamLost as error:
                self._was_lost(upstream, error)
                tried.append(upstream)
                following = self.fleet.choose(exchange.load, tried) if exchange.may_go_again(error) else None
                if following is None:
                    return self._lost(exchange, upstream, error)
                self.metrics.failovers.inc()
                upstream = following

    async def _at(self, upstream: Upstream, exchange: Exchange) -> Outcome:
        """The exchange at one upstream. Raises UpstreamLost."""
        guess = upstream.guess(*exchange.load.prompting)
        work = self._work(upstream, exchange, guess)
        if work.prefills:
            upstream.interrupt_probe()
        permit = upstream.desk.permit(work)
        try:
            with permit:
                exchange.since = permit.entry.arrived
                if self.config.shadow and work.prefills:
                    upstream.shadow(permit.entry)
                if permit.waits:
                    exchange.hold(self._keeper)
                return await self._in_turn(upstream, exchange, guess, permit)
        except QueueFull as full:
            message = f"{LIMITS[full.limit].format(full.allowed)} wait already (--{full.limit})"
            return self._not_now(exchange, 429, "rate_limit_error", Outcome.QUEUE_FULL, message, full.wait)
        except Expired:
            waited = permit.entry.klass.targets.wait
            message = f"waited {waited:g} s for its turn (--wait) under policy {self.config.policy}"
            wait = queue_seconds(upstream.controller)
            return self._not_now(exchange, 503, "overloaded_error", Outcome.WAIT_EXPIRED, message, wait)

    def _work(self, upstream: Upstream, exchange: Exchange, guess: Guess) -> Work:
        ask = exchange.ask
        return Work(
            id=str(next(self._ids)),
            uncached=max(1, guess.tokens - guess.cached),
            cached=guess.cached,
            client=client_of(exchange.down),
            streams=ask.stream is not False,
            paceable=self._may_be_paced(upstream, exchange),
            klass=exchange.klass,
            prefills=exchange.prefills,
            since=exchange.since,
        )

    def _may_be_paced(self, upstream: Upstream, exchange: Exchange) -> bool:
        by_text = self._by_text(upstream, exchange)
        if upstream.is_unpaceable(shape_of(exchange.ask, by_text)):
            return False
        return exchange.has_text if by_text else exchange.ask.render is not None

    @staticmethod
    def _by_text(upstream: Upstream, exchange: Exchange) -> bool:
        """Whether its pieces are cut by text: the engine does not render prompts, or not of this dialect."""
        return not (upstream.engine.renders and exchange.dialect.paced)

    async def _in_turn(self, upstream: Upstream, exchange: Exchange, guess: Guess, permit: Permit) -> Outcome:
        down, dialect, ask = exchange.down, exchange.dialect, exchange.ask
        outcome, pacing = Outcome.PASSED, None
        if not permit.entry.ready:
            outcome, pacing = await self._pieces(upstream, exchange, guess, permit)
        else:
            decision = await permit.grant()
            if decision.why in UNPACED_FOR and permit.entry.big and self.config.policy in PACING:
                outcome = Outcome.WHOLE
                reason = self._unpaced(upstream, exchange)
                self.metrics.unpaced(reason)
                log.info("%s: %d bytes waited %.1f s and are sent whole: %s", dialect.name, ask.size, decision.waited, reason)
            elif decision.waited > 0.001:
                outcome = Outcome.HELD
        relay = ResponseRelay(down, permit, dialect, self.metrics)
        request = self._with_priority(down.request, exchange)
        call = upstream.dialer.send(upstream.forwarded(request, plain=exchange.held is not None), exchange.body, relay)
        upstream.gauges.sent.inc()
        try:
            relay.call = call
            down.on_writable = relay.on_writable
            sent = upstream.desk.now
            await relay.done
            upstream.health.answered()
        finally:
            call.abort()
        learn(upstream, self.metrics, exchange, guess, pacing, relay, sent)
        if relay.status == 200:
            self._keeper.answered(down.request, relay.headers)
        return outcome

    async def _pieces(
        self, upstream: Upstream, exchange: Exchange, guess: Guess, permit: Permit
    ) -> tuple[Outcome, Pacing | TextPacing | None]:
        """A big request that may be paced: render it and send its pieces, until its own turn has come."""
        ask, request = exchange.ask, exchange.down.request
        by_text = self._by_text(upstream, exchange)
        try:
            request = self._with_priority(request, exchange)
            pacing: Pacing | TextPacing | None = None
            if not by_text:
                try:
                    pacing = await prepare(upstream, permit, ask, shared_headers(request.headers))
                except GaveUp as error:
                    if error.reason is not Unpaced.RENDER or isinstance(error, NotByText) or not exchange.has_text:
                        raise
                    by_text = True
                    log.info("a prompt of %d bytes goes in pieces by its text: %s", ask.size, error)
            if pacing is None:
                pacing = textpieces.prepare(upstream, permit, exchange.dialect.name, request, exchange.body, guess)
            await pacing.run()
            if pacing.sent:
                return Outcome.PACED, pacing
            self.metrics.unpaced(Unpaced.SHORT)
            return Outcome.HELD, pacing
        except GaveUp as error:
            self.metrics.unpaced(error.reason)
            log.warning("a prompt of %d bytes is sent whole, not paced: %s", ask.size, error)
            if error.reason is Unpaced.MISSED:
                if exchange.prompt is not None:
                    upstream.texts.deny(exchange.prompt)
                if by_text:
                    upstream.missed(shape_of(ask, by_text))  # nobody said that what is cut so is found again
            if self.config.policy in HOLDING and permit.entry.first_grant is None:
                permit.measured(permit.entry.uncached, permit.entry.at, paceable=False)  # holding needs no pieces
            else:
                permit.release()
            await permit.grant()
            return Outcome.WHOLE, None

    def _prioritise(self, exchange: Exchange) -> None:
        """The class's priority, where the operator gave it one, into the body."""
        priority = self.config.priorities.get(exchange.klass)
        if priority is not None and exchange.prefills and self.config.priority_by == "body":
            exchange.body = in_body(exchange.body, exchange.ask, exchange.dialect.name, priority)

    def _with_priority(self, request: RequestHead, exchange: Exchange) -> RequestHead:
        priority = self.config.priorities.get(exchange.klass)
        if priority is None or not exchange.prefills or self.config.priority_by != "header":
            return request
        return in_head(request, priority)

    # -- on the wire ----------------------------------------------------------------------------------

    def _was_lost(self, upstream: Upstream, error: UpstreamLost) -> None:
        log.warning("upstream %s: %s", upstream.target.origin.url, error)
        upstream.gauges.lost.inc()
        upstream.lost(error)

    def _lost(self, exchange: Exchange, upstream: Upstream, error: UpstreamLost) -> Outcome:
        down = exchange.down
        if not down.started:
            message = f"upstream {upstream.target.origin.url}: {error.detail}"
            return self._answer(down, exchange.dialect, 502, "api_error", Outcome.UPSTREAM_LOST, message, count=False)
        # The status is out already. An answer that breaks off must not look like one that ended.
        down.abort()
        return Outcome.UPSTREAM_LOST

    def _unpaced(self, upstream: Upstream, exchange: Exchange) -> Unpaced:
        """Why a big request was not even rendered."""
        if upstream.controller.capability.obstacle:
            return Unpaced.RANKS if upstream.controller.capability.caching else Unpaced.NO_CACHE
        shape = shape_of(exchange.ask, self._by_text(upstream, exchange))
        return Unpaced.MISSED if upstream.is_unpaceable(shape) else Unpaced.DIALECT

    def _not_now(self, exchange: Exchange, status: int, kind: str, outcome: Outcome, message: str, wait: float) -> Outcome:
        """Refused for now. `wait`: seconds after which it would have had its turn, predicted."""
        down, dialect, retry = exchange.down, exchange.dialect, min(max(1, ceil(wait)), LONGEST_RETRY)
        return self._answer(down, dialect, status, kind, outcome, message, retry=retry, count=False)

    def _answer(
        self,
        down: Downstream,
        dialect: Dialect,
        status: int,
        kind: str,
        outcome: Outcome,
        message: str,
        *,
        retry: int | None = None,
        count: bool = True,
    ) -> Outcome:
        """An error of the gateway's own, in the dialect's form."""
        body = dialect.error(status, kind, message)
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Content-Length", str(len(body)).encode()),
            (b"X-Headway-Outcome", outcome.value.encode()),
        ]
        if retry is not None:
            headers.append((b"Retry-After", b"%d" % retry))
        down.head(ResponseHead(status, b"", headers))
        down.data(body)
        down.eof()
        if count:
            self.metrics.ended(outcome)
        return outcome


def client_of(down: Downstream) -> str:
    """Whose request it is: its key, else its address; and within that the session, where a client names one."""
    who = b"\0".join(keys_of(down.request)) or down.peer.rpartition(":")[0].encode()
    return str(hash((who, session_of(down.request))))


def printable(path: bytes) -> str:
    return path[:100].decode("latin-1").encode("unicode_escape").decode()
