"""Paced prefill: growing prefixes of one prompt, each a request of one output token, through the engine's prefix cache.

Invariants
----------
1. A piece ends at k*block + 1 tokens: with k*block the engine would keep one block less (docs/engines.md).
2. The last piece ends at the last whole block before the prompt's end, so the real request, which is never altered, finds it,
   and so does the next turn of the conversation.
3. A piece is believed when the engine says so: by cached_tokens, else by the growth of its hit counter while nothing else was
   sent, else by its time. When hits fall short, pacing stops and the real request goes on whole.
4. Pieces carry the client's own Authorization, model, cache_salt and priority.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

import msgspec

from headway.core.outcome import Unpaced
from headway.core.prefix import block_keys
from headway.core.work import Go, Piece
from headway.gateway.calls import Reply
from headway.gateway.desk import Permit
from headway.gateway.dialects.ask import Ask, TokenId
from headway.gateway.transport.framing import end_to_end
from headway.gateway.transport.interface import Headers, UpstreamLost
from headway.gateway.upstream import Upstream

log = logging.getLogger("headway.gateway")

NOT_SHARED = frozenset(
    {b"host", b"content-length", b"content-type", b"content-encoding", b"accept-encoding", b"accept", b"x-request-id", b"expect"}
)
"""Headers of the client's request that its pieces do not carry: they belong to that one message."""
LEAST_RENDER_S = 1.0
"""Seconds that a prompt's rendering may take even where --wait is shorter."""
LEAST_EXCESS_S = 0.1
"""Seconds by which a piece must be late to be taken for one that missed: less is a busy host, or costs little."""
CHECKED = 3
"""Pieces in a row that are checked by the hit counter on an engine without cached_tokens; after that their time is enough."""


class _Tokens(msgspec.Struct):
    tokens: list[TokenId]
    max_model_len: int | None = None


_tokens = msgspec.json.Decoder(_Tokens)


class GaveUp(Exception):
    def __init__(self, reason: Unpaced, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class InPieces:
    """What pieces of ids and pieces of text have in common: their grants, their failures, their end."""

    __slots__ = ()
    permit: Permit

    @property
    def uncached(self) -> int:
        """Tokens that are still to be prefilled."""
        raise NotImplementedError

    async def run(self) -> None:
        """Send pieces as they are granted, until the request itself is. Raises GaveUp, Expired."""
        while True:
            decision = await self.permit.grant()
            if isinstance(decision, Go):
                return
            await self._piece(decision)

    async def _piece(self, decision: Piece) -> None:
        raise NotImplementedError

    async def _answer(self, sent: Awaitable[Reply]) -> tuple[Reply, float]:
        """A piece's answer and the seconds that it took. Raises GaveUp."""
        started = time.monotonic()
        try:
            reply = await sent
        except UpstreamLost as error:
            raise self._gave_up(Unpaced.PIECE_FAILED, str(error)) from None
        seconds = time.monotonic() - started
        if reply.status != 200:
            log.debug("a piece was answered: %r", reply.body[:500])
            raise self._gave_up(Unpaced.PIECE_FAILED, f"HTTP {reply.status}")
        return reply, seconds

    def _gave_up(self, reason: Unpaced, detail: str) -> GaveUp:
        # Released first: the turn that `prefilled` gives must not be for one more piece.
        self.permit.release()
        self.permit.prefilled(self.uncached, None)
        return GaveUp(reason, detail)


class NotByText(GaveUp):
    """Nor would it go in pieces by its text: the engine will refuse it, or it has waited long enough."""


def shared_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The client's headers that its pieces carry too."""
    return [(name, value) for name, value in end_to_end(headers) if name.lower() not in NOT_SHARED]


class GrowingList:
    """The JSON of ever longer beginnings of one list of token ids: each id is encoded once."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._done = 0
        self._text = bytearray(b"[")

    def beginning(self, count: int) -> bytes:
        """Of the first `count` ids, more than in any call before, and at least one."""
        if self._done:
            self._text += b","
        self._text += msgspec.json.encode(self._ids[self._done : count])[1:-1]
        self._done = count
        return bytes(self._text) + b"]"


@dataclass(slots=True)
class Pacing(InPieces):
    """One prompt on its way through the prefix cache."""

    upstream: Upstream
    permit: Permit
    ask: Ask
    headers: Headers
    ids: list[int]
    keys: list[int]
    block: int
    done: int = 0
    """Blocks known to be cached."""
    sent: int = 0
    lists: GrowingList = field(init=False)

    def __post_init__(self) -> None:
        self.lists = GrowingList(self.ids)

    @property
    def last(self) -> int:
        """Blocks of the last piece."""
        return (len(self.ids) - 1) // self.block

    @property
    def uncached(self) -> int:
        return len(self.ids) - self.done * self.block

    @property
    def primed(self) -> int:
        """Tokens that the request itself should find cached."""
        return max(0, self.done - self.upstream.engine.lost) * self.block

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def missed(self, seen: int) -> None:
        """The request itself found only `seen` tokens of what the pieces had put there."""
        self.upstream.blocks.deny(self.keys, seen // self.block)

    async def _piece(self, decision: Piece) -> None:
        end = min(self.last, self.done + max(1, decision.tokens // self.block))
        if end <= self.done:
            # The engine's block was learned anew meanwhile, and what is left is less than one of those known here.
            self.permit.release()
            self.permit.prefilled(self.uncached, None)
            return
        count = end * self.block + 1
        prompt = msgspec.Raw(self.lists.beginning(count))
        upstream, grants = self.upstream, self.permit.grants
        shared = upstream.controller.in_flight > self.permit.entry.in_flight
        counted = not upstream.engine.reports and self.sent < CHECKED
        before = await upstream.scrape() if counted else None
        reply, seconds = await self._answer(
            upstream.post(
                b"/v1/completions",
                {**self.ask.piece, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": False},
                self.headers,
            )
        )
        hit = upstream.cached_tokens(reply)
        if hit is not None:
            upstream.engine.reports = True
        elif upstream.engine.reports:
            hit = 0  # vLLM leaves the field out where nothing was hit
        elif before is not None and before.hits is not None:
            after = await upstream.scrape()
            if after is not None and after.hits is not None and self.permit.grants == grants:
                hit = int(after.hits - before.hits)  # nothing else was sent, so they are this piece's
        expected = self.primed
        if hit is None and self.sent and self._too_long(seconds, count, end):
            hit = 0
        fell_short = hit is not None and hit < expected
        self.sent += 1
        first = self.sent == 1
        if fell_short and not first:
            upstream.blocks.deny(self.keys, 0)
            raise self._gave_up(Unpaced.MISSED, f"piece {self.sent} hit {hit} tokens where {expected} were cached")
        if fell_short:
            upstream.blocks.deny(self.keys, (hit or 0) // self.block)
        self.done = end
        upstream.blocks.confirm(self.keys, end)
        # A piece that computed more than was granted says nothing about how long a piece of that size takes.
        # Nor does one beside which anything else was prefilled.
        alone = self.permit.grants == grants and not shared
        self.permit.prefilled(self.uncached, seconds if alone and not fell_short else None)
        upstream.show_model()

    def _too_long(self, seconds: float, computed_whole: int, end: int) -> bool:
        """Without any report of hits: whether a piece took nearer to its whole prefix's time than to its own."""
        model = self.upstream.controller.pacer.model
        if model is None:
            return False
        own = model.piece((end - self.done) * self.block, self.done * self.block)
        too_long = seconds > 2.0 * own and seconds > 0.5 * (own + model.piece(computed_whole))
        return too_long and seconds - own > LEAST_EXCESS_S


async def render(upstream: Upstream, ask: Ask, headers: Headers) -> list[int]:
    """Token ids of a prompt, as the engine itself renders it. Raises GaveUp, at the latest after --wait."""
    if ask.ids is not None:
        return ask.ids
    limit = max(LEAST_RENDER_S, upstream.config.targets.wait)
    try:
        async with asyncio.timeout(limit), upstream.rendering:
            reply = await upstream.post(b"/tokenize", ask.render, headers)
    except UpstreamLost as error:
        raise GaveUp(Unpaced.RENDER, str(error)) from None
    except TimeoutError:
        raise NotByText(Unpaced.RENDER, f"no answer of /tokenize within {limit:g} s") from None
    if reply.status != 200:
        log.debug("/tokenize answered: %r", reply.body[:500])
        raise GaveUp(Unpaced.RENDER, f"/tokenize answers HTTP {reply.status}")
    try:
        rendered = _tokens.decode(reply.body)
    except msgspec.DecodeError as error:
        raise GaveUp(Unpaced.RENDER, f"/tokenize: {error}") from None
    if rendered.max_model_len is not None and len(rendered.tokens) >= rendered.max_model_len:
        raise NotByText(Unpaced.RENDER, f"{len(rendered.tokens)} tokens are more than the model takes ({rendered.max_model_len})")
    return rendered.tokens


async def prepare(upstream: Upstream, permit: Permit, ask: Ask, headers: Headers) -> Pacing:
    """Render a big request and report what is uncached of it. Raises GaveUp."""
    block = upstream.engine.block
    if block is None or upstream.engine.caching is False:
        why = "prefix caching is off" if upstream.engine.caching is False else "its block size is not known"
        raise GaveUp(Unpaced.NO_CACHE, why)
    ids = await render(upstream, ask, headers)
    upstream.estimator.learn(ask.size, len(ids))
    keys = block_keys(ask.block_seed, ids, block)
    pacing = Pacing(upstream, permit, ask, headers, ids, keys, block)
    # The last block is left to a piece even where all is cached, unless all is: hits end before the last token.
    pacing.done = min(upstream.blocks.cached(keys), pacing.last)
    permit.measured(pacing.uncached, pacing.done * block)
    upstream.show_front_end(len(ids))
    return pacing
