"""The policies by name. A policy answers one question: may this waiting request have the engine now?

To add one: a function with the signature of `Rule`, and a row in POLICIES.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.work import Entry


@dataclass(slots=True, frozen=True)
class View:
    """What a rule may look at."""

    live: int
    """Live decodes that are protected."""
    in_engine: int
    """Requests in the engine, pieces included."""
    overdue: bool
    """The request's own bound has passed."""
    paces: bool = False
    """The engine paces prefill by itself."""
    overloaded: bool = False
    """So many wait that all of them would reach their bounds."""


class Say(enum.Enum):
    SEND = "send"  # whole, at once
    SHARE = "share"  # as much as the share allows (pace)
    STAY = "stay"  # keep waiting, until its bound or until anything changes
    EXPIRE = "expire"  # give up


Rule = Callable[[Entry, View], Say]


def passthrough(entry: Entry, view: View) -> Say:
    return Say.SEND


def serialize(entry: Entry, view: View) -> Say:
    if view.in_engine == 0:
        return Say.SEND
    return Say.EXPIRE if view.overdue else Say.STAY


def hold(entry: Entry, view: View) -> Say:
    """A big prefill waits while an answer is live; at its bound, once begun, or where too many wait, it goes on as pace."""
    waiting = entry.big and view.live > 0 and not (view.overdue or view.overloaded) and entry.first_grant is None
    return Say.STAY if waiting else Say.SHARE


def pace(entry: Entry, view: View) -> Say:
    return Say.SHARE


def auto(entry: Entry, view: View) -> Say:
    """Passes what is below the gap target, paces the rest, holds what cannot be paced, and steps aside where the engine paces by
    itself: two controllers on one share would each leave their own idle time."""
    if view.paces:
        return Say.SEND
    return Say.SHARE if entry.work.paceable else hold(entry, view)


POLICIES: dict[str, Rule] = {
    "passthrough": passthrough,
    "serialize": serialize,
    "hold": hold,
    "pace": pace,
    "auto": auto,
    "route": auto,  # and big prompts go to bulk upstreams (routing.py)
}
"""Each by the name that --policy takes."""

ASIDE = frozenset({"auto", "route"})
"""Policies that step aside where the engine paces by itself."""

PACING = frozenset({"hold", "pace", "auto", "route"})
"""Policies that may send a request in pieces, and so need it rendered."""

HOLDING = frozenset({"hold", "auto", "route"})
"""Policies that hold a big request which turns out not to be paceable; the others send it on."""
