"""What a finished answer says about its upstream: tokens a byte, what was cached, whether pacing was worth it."""

from __future__ import annotations

import logging

from headway.core.outcome import Unpaced
from headway.core.textindex import Guess
from headway.gateway.dialects.ask import Ask
from headway.gateway.exchange import Exchange
from headway.gateway.metrics import Metrics
from headway.gateway.pieces import Pacing
from headway.gateway.stream import ResponseRelay
from headway.gateway.textpieces import TextPacing
from headway.gateway.upstream import Upstream

log = logging.getLogger("headway.gateway")

LEAST_PRIMED = 1024
"""Tokens that must be cached before the time of an answer says whether they were found."""


def shape_of(ask: Ask, by_text: bool) -> bytes:
    """What decides over a rendering, beside the messages; prompts that go by their text are not rendered."""
    return b"\0".join([ask.model.encode(), b"text" if by_text else ",".join(sorted(ask.unrendered)).encode()])


def learn(
    upstream: Upstream,
    metrics: Metrics,
    exchange: Exchange,
    guess: Guess,
    pacing: Pacing | TextPacing | None,
    relay: ResponseRelay,
    sent: float,
) -> None:
    """`guess`: what was believed of the prompt before it was sent. `sent`: when it was, on the event loop's clock."""
    ask, prompt = exchange.ask, exchange.prompt
    if relay.status != 200:
        return
    if relay.prompt_tokens and not ask.media and not ask.partial:
        upstream.estimator.learn(ask.size, relay.prompt_tokens)
    if pacing is not None:
        primed = pacing.primed
        seen = relay.cached_tokens
        if seen is None and upstream.engine.reports and relay.prompt_tokens:
            seen = 0
        missed = seen < primed if seen is not None else _took_too_long(upstream, pacing, relay, sent)
        if missed and primed:
            # The pieces were cached, yet this request did not find them: it was rendered otherwise, or they were evicted.
            pacing.missed(seen or 0)
            if prompt is not None:
                upstream.texts.deny(prompt)
            if pacing.sent:
                _paced_in_vain(upstream, metrics, ask, pacing, seen)
            return
        if pacing.sent:
            upstream.found(shape_of(ask, isinstance(pacing, TextPacing)))
        if prompt is not None:
            upstream.texts.confirm(prompt, relay.prompt_tokens or pacing.tokens, max(primed, seen or 0))
    elif prompt is not None:
        cached = relay.cached_tokens
        if cached is None and upstream.engine.reports and relay.prompt_tokens:
            cached = 0  # vLLM leaves the field out where nothing was hit
        upstream.texts.answered(prompt, guess, relay.prompt_tokens or guess.tokens, cached)


def _paced_in_vain(upstream: Upstream, metrics: Metrics, ask: Ask, pacing: Pacing | TextPacing, seen: int | None) -> None:
    shape = shape_of(ask, isinstance(pacing, TextPacing))
    metrics.unpaced(Unpaced.MISSED)
    upstream.missed(shape)
    log.warning(
        "a paced request hit %s of the %d tokens that its pieces had cached%s",
        "few" if seen is None else seen,
        pacing.primed,
        f": prompts with {', '.join(sorted(ask.unrendered)) or 'this template'} are not paced any more"
        if upstream.is_unpaceable(shape)
        else "",
    )


def _took_too_long(upstream: Upstream, pacing: Pacing | TextPacing, relay: ResponseRelay, sent: float) -> bool:
    """Without cached_tokens in the answer: whether its first output came as late as a whole prefill would have."""
    model = upstream.controller.pacer.model
    if model is None or relay.first_output is None or pacing.primed < LEAST_PRIMED:
        return False
    return relay.first_output - sent > 0.7 * model.prefill(pacing.tokens) + upstream.controller.learner.last_overhead(
        pacing.tokens
    )
