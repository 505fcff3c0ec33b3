"""Streams as JSON, small enough to keep every event: times in seconds since the stream was submitted."""

from __future__ import annotations

from typing import Any

from headway.bench.client import Event, Stream


def compact(answer: Stream, origin: float) -> dict[str, Any]:
    """`origin`: the time (monotonic) that is zero in this run, so that streams of one run can be laid side by side.

    `at` are the output events' times since submission, to 0.1 ms; `tokens` is left out where each event is one.
    """
    out: dict[str, Any] = {
        "submitted_s": round(answer.submitted - origin, 4),
        "ended_s": round(answer.ended - answer.submitted, 4),
        "at": [round(event.at - answer.submitted, 4) for event in answer.events],
        "usage": answer.usage,
        "finish_reason": answer.finish_reason,
        "token_source": answer.token_source,
    }
    if any(event.tokens != 1 for event in answer.events):
        out["tokens"] = [round(event.tokens, 4) for event in answer.events]
    if answer.error:
        out["error"], out["error_kind"] = answer.error, answer.error_kind
    return out


def restore(data: dict[str, Any], origin: float = 0.0) -> Stream:
    """The Stream again (without its text), for anyone who wants to compute a figure anew."""
    submitted = origin + data["submitted_s"]
    tokens = data.get("tokens") or [1.0] * len(data["at"])
    return Stream(
        submitted=submitted,
        events=[Event(submitted + at, n) for at, n in zip(data["at"], tokens, strict=True)],
        ended=submitted + data["ended_s"],
        usage=data.get("usage"),
        finish_reason=data.get("finish_reason"),
        token_source=data.get("token_source", "events"),
        error=data.get("error"),
        error_kind=data.get("error_kind"),
    )
