"""One request as the core sees it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headway.core.classes import INTERACTIVE, TrafficClass


class Phase(enum.Enum):
    """Where a request is. QUEUED <-> PIECE (as often as needed) -> WHOLE -> DECODE, or QUEUED -> EXPIRED, and gone from
    anywhere."""

    QUEUED = "queued"
    PIECE = "piece"
    WHOLE = "whole"
    DECODE = "decode"
    EXPIRED = "expired"


@dataclass(slots=True)
class Work:
    """What is known of a request before the engine saw it."""

    id: str
    uncached: int
    """Prompt tokens that the engine would have to compute: an estimate until `Controller.measured`."""
    cached: int = 0
    """Prompt tokens believed to be cached: those before the uncached ones."""
    client: str = ""
    """Whose request it is: clients take turns (fairness.py)."""
    streams: bool = True
    """Its answer comes as a stream, so that it is a live decode from its first output."""
    paceable: bool = True
    """Its dialect can be sent piece by piece."""
    since: float | None = None
    """When its client first asked for it, where this is a resend that inherits the place; None: now."""
    klass: str = INTERACTIVE
    """Its traffic class (classes.py)."""
    prefills: bool = True
    """It asks for prefill. One that does not (a health check, a list of models) never waits and is not in the engine; if it
    streams, it is a live decode all the same."""


@dataclass(slots=True)
class Entry:
    """A request's state inside the controller."""

    work: Work
    arrived: float
    uncached: int
    klass: TrafficClass
    at: int = 0
    """Tokens of the prompt that are cached, before the uncached ones."""
    phase: Phase = Phase.QUEUED
    ready: bool = True
    """False while a big request is being rendered: nothing may be granted to it yet."""
    in_flight: int = 0
    """Uncached tokens granted and not yet prefilled."""
    first_grant: float | None = None
    granted: float = 0.0
    """Time of the latest grant."""
    whole_by: float | None = None
    """When a request without a stream is taken to have ended its prefill."""
    big: bool = False
    """Sent whole it would make a gap above the target."""
    paced: bool = False
    """It was granted a piece."""
    released: bool = False
    """Pacing it was given up: it goes whole, whatever is owed."""
    alone: float = 0.0
    """Estimated seconds of its whole prefill alone, from when it was classified."""
    yielded: bool = False
    """A bound of this newcomer overruled the share at least once."""
    held: bool = False
    """The policy kept it waiting although it could have been paced, or because it could not: `stretch` counts from the first
    grant."""
    passed: int = 0
    """Tokens that long requests of its client that came later were granted before it."""

    @property
    def rank(self) -> int:
        return self.klass.rank


class Why(enum.StrEnum):
    """Why a request was granted something: a label of the metrics and a field of the decision log."""

    POLICY = "policy"  # the policy holds nothing, or it was its turn in a policy without shares
    ASIDE = "aside"  # the engine paces prefill by itself
    EXEMPT = "exempt"  # its class is never held
    SMALL = "small"  # it costs no more than a decode step
    FREE = "free"  # no protected answer is live
    SHARE = "share"  # live answers have had their share
    BOUND = "bound"  # it reached `wait` or `stretch`: the share yields
    BACKLOG = "backlog"  # with the share kept, those that wait would reach their bounds: the share yields before they do
    UNPACED = "unpaced"  # pacing it was given up
    NO_PREFILL = "no_prefill"  # it asks for no prefill


YIELDS = frozenset({Why.BOUND, Why.BACKLOG})
"""Reasons that overrule the share."""


@dataclass(slots=True, frozen=True)
class Go:
    """Send the request on, whole."""

    id: str
    waited: float
    why: Why
    yielded: bool = False


@dataclass(slots=True, frozen=True)
class Piece:
    """Prefill at most `tokens` uncached tokens of the request through the prefix cache, then report `Controller.prefilled`."""

    id: str
    tokens: int
    waited: float
    why: Why
    yielded: bool = False


@dataclass(slots=True, frozen=True)
class Expire:
    """The request waited as long as it may and is not sent on."""

    id: str
    waited: float


Decision = Go | Piece | Expire
