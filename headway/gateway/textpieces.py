"""Paced prefill where prompts cannot be tokenised: growing beginnings of the prompt's text, through the same endpoint.

Invariants
----------
1. Sizes are planned in tokens and cut in characters; each piece's own usage says how many tokens that were.
2. A piece is judged by what it computed: about what was planned, else it is a strike. Two in a row end the pacing, and the
   request goes on whole. A template's end and a block are computed again each time (docs/engines.md).
3. The last piece ends with the whole text, so the request itself finds it, and so does the next turn.
4. Where the engine keeps whole blocks, pieces are planned to end a little behind one: what lies behind the last is computed
   again by the next.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from headway.core.outcome import Unpaced
from headway.core.textindex import Guess
from headway.core.work import Piece
from headway.gateway.cutting import Cutter
from headway.gateway.desk import Permit
from headway.gateway.pieces import GaveUp, InPieces, shared_headers
from headway.gateway.transport.interface import RequestHead
from headway.gateway.upstream import Upstream

log = logging.getLogger("headway.gateway")

TAIL = 256
"""Tokens at the end of a piece that the next one may not find: the template's end, the answer's token, and what llama.cpp goes
back to the checkpoint of a sliding window for."""
BEHIND = 32
"""Tokens behind a block's end at which a piece is planned to end at least: the template's end is not the next one's text."""
UNSURE, SURE, LOST = 0.06, 0.02, 0.25
"""The same, as a part of what a piece adds: twice what its size in tokens was usually off what its characters said, at first, at
least and at most."""
FINE = 128
"""Tokens of a block up to which it does not matter where in it a piece ends."""
STRIKES = 2
LEAST = 64
"""Tokens that a piece adds at least."""


@dataclass(slots=True)
class TextPacing(InPieces):
    """One prompt on its way through the prefix cache, by its text."""

    upstream: Upstream
    permit: Permit
    cutter: Cutter
    request: RequestHead
    total: float
    """Tokens of the whole prompt, estimated, and corrected by each piece's usage."""
    characters: int = 0
    """Of text, that were sent."""
    at: float = 0.0
    """Tokens up to there."""
    sent: int = 0
    strikes: int = 0
    unsure: float = UNSURE

    @property
    def primed(self) -> int:
        """Tokens that the request itself should find cached."""
        return max(0, int(self.at) - TAIL - 2 * (self.upstream.engine.block or 1)) if self.sent else 0

    @property
    def tokens(self) -> int:
        return int(self.total)

    @property
    def block(self) -> int:
        """Tokens of what the engine keeps whole; 1 where that is little."""
        block = self.upstream.engine.block or 1
        return block if block > FINE else 1

    @property
    def kept(self) -> float:
        """Tokens that the next piece should find."""
        return self.at if self.block == 1 else max(0.0, self.at - BEHIND) // self.block * self.block

    @property
    def uncached(self) -> int:
        return max(1, int(self.total - self.kept))

    async def _piece(self, decision: Piece) -> None:
        left = self.cutter.length - self.characters
        if left <= 0:
            self.permit.release()
            self.permit.prefilled(self.uncached, None)
            return
        planned = max(LEAST, decision.tokens)
        if self.block > 1:
            planned = max(LEAST, int(self.kept + planned + BEHIND + self.unsure * planned - self.at))
        density = left / max(1.0, self.total - self.at)
        end = min(self.cutter.length, self.characters + max(1, int(planned * density)))
        upstream, grants = self.upstream, self.permit.grants
        shared = upstream.controller.in_flight > self.permit.entry.in_flight
        path = self.request.target.partition(b"?")[0]
        beginning, headers = self.cutter.beginning(end), shared_headers(self.request.headers)
        reply, seconds = await self._answer(upstream.post_raw(path, beginning, headers))
        prompt, hit = upstream.usage(reply)
        if hit is not None:
            upstream.engine.reports = True
        elif upstream.engine.reports:
            hit = 0
        before = self.at
        self.at = float(prompt) if prompt else min(self.total, before + planned)
        off = abs(self.at - before - planned) / planned if end < self.cutter.length else 0.5 * self.unsure
        self.unsure = min(LOST, max(SURE, 0.7 * self.unsure + 0.6 * off))
        self.characters = end
        self.total = self.at + (self.cutter.length - end) * self.at / end
        self.sent += 1
        computed = self.at - hit if hit is not None else None
        self._judge(computed, self.at - before, seconds)
        alone = self.permit.grants == grants and not shared
        clean = computed is not None and abs(computed - decision.tokens) <= 0.25 * decision.tokens
        over = end >= self.cutter.length and self.block == 1
        self.permit.prefilled(1 if over else self.uncached, seconds if alone and clean else None)
        upstream.show_model()

    def _judge(self, computed: float | None, added: float, seconds: float) -> None:
        """Whether the piece computed about what it added. Raises GaveUp after STRIKES that did not."""
        if self.sent == 1:
            return  # what was believed to be cached before it may have been wrong
        block = self.upstream.engine.block or 1
        missed = self._too_long(added, seconds) if computed is None else computed > 2 * added + TAIL + 2 * block
        self.strikes = self.strikes + 1 if missed else 0
        if self.strikes >= STRIKES:
            raise self._gave_up(
                Unpaced.MISSED, f"piece {self.sent} added {added:.0f} tokens and computed {computed or self.at:.0f}"
            )

    def _too_long(self, added: float, seconds: float) -> bool:
        """Without any report of hits: whether it took nearer to its whole beginning's time than to its own."""
        model = self.upstream.controller.pacer.model
        if model is None:
            return False
        own = model.piece(int(added), int(self.at - added))
        return seconds > 2.0 * own and seconds > 0.5 * (own + model.piece(int(self.at)))

    def missed(self, seen: int) -> None:
        """The request itself found only `seen` tokens of what the pieces had put there."""


def prepare(upstream: Upstream, permit: Permit, dialect: str, request: RequestHead, body: bytes, guess: Guess) -> TextPacing:
    """Get ready to send a prompt's text in pieces. Raises GaveUp."""
    if upstream.engine.caching is False:
        raise GaveUp(Unpaced.NO_CACHE, "prefix caching is off")
    try:
        cutter = Cutter(dialect, body)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise GaveUp(Unpaced.DIALECT, str(error)) from None
    pacing = TextPacing(upstream, permit, cutter, request, float(guess.tokens))
    pacing.at = float(min(guess.cached, guess.tokens - 1))
    pacing.characters = int(cutter.length * pacing.at / guess.tokens)
    permit.measured(pacing.uncached, int(pacing.at))
    return pacing
