"""How a request ended. The same word stands in the metrics, in an error's header and in the log."""

from __future__ import annotations

import enum


class Outcome(enum.StrEnum):
    """Each member has exactly one row in REASONS."""

    PASSED = "passed"
    HELD = "held"
    PACED = "paced"
    WHOLE = "whole"
    WAIT_EXPIRED = "wait_expired"
    QUEUE_FULL = "queue_full"
    CLIENT_LEFT = "client_left"
    UPSTREAM_LOST = "upstream_lost"
    REFUSED = "refused"
    REPLACED = "replaced"
    JOINED = "joined"


REASONS: dict[Outcome, str] = {
    Outcome.PASSED: "sent on at once: small, or the policy holds nothing",
    Outcome.HELD: "waited for its turn, then sent on whole",
    Outcome.PACED: "prefilled piece by piece through the prefix cache, then sent on",
    Outcome.WHOLE: "big, but it could not be paced: sent on whole (headway_unpaced_total says why)",
    Outcome.WAIT_EXPIRED: "not sent on: it waited as long as --wait allows",
    Outcome.QUEUE_FULL: "not sent on: as much waits as --queue or --queue-tokens allows",
    Outcome.CLIENT_LEFT: "the client left before the answer was complete",
    Outcome.UPSTREAM_LOST: "the upstream could not be reached, or broke off",
    Outcome.REPLACED: "ended in favour of a resend of the same request, which has its place",
    Outcome.JOINED: "a resend that was given the answer of the request under way",
    Outcome.REFUSED: "not relayed: the path, the method or the body is not one that this gateway passes",
}


class Unpaced(enum.StrEnum):
    """Why a big request went on whole under a policy that would have paced it."""

    DIALECT = "dialect"  # its path has no pieces (responses, messages, images, batches of prompts)
    RENDER = "render"  # the engine could not say the prompt's token ids
    NO_CACHE = "no_cache"  # the engine has no prefix cache, or its block size is not known
    MISSED = "missed"  # pieces did not hit the pieces before them
    RANKS = "ranks"  # several data-parallel ranks, each with a prefix cache of its own
    SHORT = "short"  # once rendered, what was not cached of it was not big
    PIECE_FAILED = "piece_failed"  # the engine refused a piece
