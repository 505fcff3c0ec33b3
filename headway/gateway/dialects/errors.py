"""Errors in each dialect's own form: as a body, and as the last event of a stream whose 200 is out already.

Invariant: an event is one line of JSON behind `data:`, so a body from elsewhere is decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

QUOTED = 500
"""Characters quoted of an error body that is not of its dialect's form."""

ErrorBody = Callable[[int, str, str], bytes]
"""(status, type, message) -> body."""
LateError = Callable[[int, bytes], bytes]
"""(status, error body) -> what ends a stream, or a padded JSON body, that has begun as a 200."""


def openai_error(status: int, kind: str, message: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def anthropic_error(status: int, kind: str, message: str) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def openai_late(status: int, body: bytes) -> bytes:
    """The error where a chunk would stand, then the end that every reader of this dialect waits for."""
    return b"data: " + msgspec.json.encode({"error": _error(status, body)}) + b"\n\ndata: [DONE]\n\n"


def responses_late(status: int, body: bytes) -> bytes:
    """The `error` event of the Responses API. `error` stands in it too: the SDKs raise for that."""
    error = _error(status, body)
    event = {
        "type": "error",
        "code": str(error.get("code") or status),
        "message": error["message"],
        "param": error.get("param"),
        "sequence_number": 0,
        "error": error,
    }
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


def anthropic_late(status: int, body: bytes) -> bytes:
    error = _error(status, body)
    event = {"type": "error", "error": {"type": error["type"], "message": error["message"]}}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


def json_late(status: int, body: bytes) -> bytes:
    """Behind whitespace the error body itself is the answer."""
    return body or msgspec.json.encode({"error": _error(status, body)})


def _error(status: int, body: bytes) -> dict[str, Any]:
    """The error object of a body, whoever wrote it: `{"error": {...}}`, vLLM's older flat form, or anything."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    found = decoded.get("error", decoded) if isinstance(decoded, dict) else decoded
    error: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    message = error.get("message") or error.get("detail") or (found if isinstance(found, str) else None)
    if not isinstance(message, str):
        message = body[:QUOTED].decode("utf-8", "replace") or f"HTTP {status} without a body"
    kind = error.get("type")
    return error | {
        "message": message,
        "type": kind if isinstance(kind, str) and kind else "api_error" if status >= 500 else "invalid_request_error",
        "param": error.get("param"),
        "code": error.get("code") or status,
    }
