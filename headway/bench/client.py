"""One streaming request and what came of it, with the time at which each piece of it arrived.

A time is `time.monotonic()` in seconds, taken when the bytes are handed over, before anything is parsed. A
server that fails does not raise here: the stream keeps what had arrived and says in `error` what went
wrong, because half a measurement is still evidence.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp
import msgspec

from headway.bench.sse import Events
from headway.bench.wire import Broken, post
from headway.errors import UsageError

LONGEST_ERROR = 2**16  # bytes of a body that is no stream


class Event(NamedTuple):
    at: float  # seconds, monotonic
    tokens: float  # a fraction where only the final usage tells how many tokens the chunks carried


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server: its base URL without `/v1`, the model's name and the key, if it wants
    one.
    """

    url: str
    model: str
    key: str | None = None
    continuous: bool = True  # ask for the token count with each chunk (vLLM has it; others ignore it)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True)
class Request:
    """A body without `model`, `stream` and `stream_options`, which the client adds."""

    body: dict[str, Any]
    path: str = "/v1/chat/completions"


@dataclass
class Stream:
    """What one request did. `events` are output events only; the first of them is the first token."""

    submitted: float = 0.0
    due: float | None = None  # when it had to be sent, where a schedule says so (open loop)
    events: list[Event] = field(default_factory=list)
    ended: float = 0.0
    status: int = 0
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    text: str = ""
    error: str | None = None
    error_kind: str | None = None  # down | refused | not_streaming | garbage | broken | timeout | server
    token_source: str = "events"  # continuous | final | events: where the token counts come from

    @property
    def first_output(self) -> float | None:
        return self.events[0].at if self.events else None

    @property
    def last_output(self) -> float | None:
        return self.events[-1].at if self.events else None

    @property
    def ttft(self) -> float | None:
        """Seconds from submission to the first output event."""
        return self.events[0].at - self.submitted if self.events else None

    @property
    def response_s(self) -> float | None:
        """Seconds to the first output from the moment at which it was due: a client that sends late must not hide it."""
        return self.events[0].at - (self.submitted if self.due is None else self.due) if self.events else None

    @property
    def wall(self) -> float:
        return self.ended - self.submitted

    @property
    def tokens(self) -> float:
        return sum(event.tokens for event in self.events)

    @property
    def cached_tokens(self) -> int | None:
        details = (self.usage or {}).get("prompt_tokens_details") or {}
        value = details.get("cached_tokens")
        return value if isinstance(value, int) else None

    @property
    def prompt_tokens(self) -> int | None:
        value = (self.usage or {}).get("prompt_tokens")
        return value if isinstance(value, int) else None


def session() -> aiohttp.ClientSession:
    """For what is not measured: models, versions, tokenizers, metrics."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trust_env=False,
    )


async def stream(
    target: Target,
    request: Request,
    *,
    on_tokens: Callable[[float], None] | None = None,
    timeout: float = 600.0,
    due: float | None = None,
) -> Stream:
    """Send `request` as a stream and follow it to its end. `on_tokens` gets the tokens so far at each
    output event.
    """
    result = Stream(due=due)
    options: dict[str, Any] = {"include_usage": True}
    if target.continuous:
        options["continuous_usage_stats"] = True
    body = {**request.body, "model": target.model, "stream": True, "stream_options": options}
    payload = msgspec.json.encode(body)
    headers = {**target.headers, "Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
    if any(mark in value for value in headers.values() for mark in "\r\n"):
        raise UsageError("the key has a line break in it")
    reading = _Reading(result, on_tokens)
    result.submitted = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            await post(target.url + request.path, headers, payload, reading)
        reading.end()
    except TimeoutError:
        _fail(result, "timeout", f"no end of the answer after {timeout:.0f} s")
    except Broken as error:
        _fail(result, "broken", f"the connection broke: {error}")
    except OSError as error:
        _fail(result, "down", f"cannot connect to {target.url}: {reason(error)}")
    result.ended = time.monotonic()
    _spread_final_usage(result)
    return result


class _Reading:
    """Turns an answer into a Stream's fields."""

    def __init__(self, result: Stream, on_tokens: Callable[[float], None] | None) -> None:
        self._result = result
        self._on_tokens = on_tokens
        self._total = 0.0
        self._events = Events()
        self._other: bytes | None = b""  # the body of an answer that is no stream of events
        self._content_type = ""

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._result.status = status
        self._content_type = headers.get("content-type", "nothing").partition(";")[0].strip()
        if status == 200 and self._content_type == "text/event-stream":
            self._other = None

    def body(self, data: bytes, now: float) -> None:
        if self._other is not None:
            if len(self._other) < LONGEST_ERROR:
                self._other += data
            return
        for event in self._events.feed(data):
            self.event(now, event)

    def end(self) -> None:
        result = self._result
        if self._other is not None:
            if result.status != 200:
                _fail(result, "refused", f"HTTP {result.status}: {_error_text(self._other)}")
            else:
                _fail(result, "not_streaming", f"the server did not stream: it answered with {self._content_type}")
            return
        left = self._events.end()
        if left and not left.startswith(b":"):
            self.event(time.monotonic(), left.removeprefix(b"data:").strip())
        if result.error is None and result.finish_reason is None:
            _fail(result, "broken", "the stream ended without a finish reason")

    def event(self, now: float, data: bytes) -> None:
        result = self._result
        if data == b"[DONE]":
            return
        try:
            message = msgspec.json.decode(data)
            if not isinstance(message, dict):
                raise msgspec.DecodeError("not an object")
        except (msgspec.DecodeError, UnicodeDecodeError):
            _fail(result, "garbage", f"an event is not a JSON object: {data[:60]!r}")
            return
        if message.get("error"):
            _fail(result, "server", f"the server reported an error mid-stream: {_error_text(data)}")
            return
        usage = message.get("usage")
        if isinstance(usage, dict):
            result.usage = usage
        choices = message.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        choice = choices[0]
        text, output = _output(choice)
        if choice.get("finish_reason"):
            result.finish_reason = choice["finish_reason"]
        tokens = 1.0 if output else 0.0
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            result.token_source = "continuous"
            tokens = usage["completion_tokens"] - self._total
        if text:
            result.text += text
        if tokens > 0:
            self._total += tokens
            result.events.append(Event(now, tokens))
            if self._on_tokens is not None:
                self._on_tokens(self._total)


def _output(choice: dict[str, Any]) -> tuple[str, bool]:
    """The text of one choice, and whether the chunk carries any output: text, reasoning or a piece of a
    tool call.
    """
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return (text, True) if isinstance(text, str) and text else ("", False)
    for part in ("content", "reasoning_content", "reasoning"):
        text = delta.get(part)
        if isinstance(text, str) and text:
            return text, True
    return "", bool(delta.get("tool_calls"))


def reason(error: OSError) -> str:
    """In the system's words: asyncio's own text for a refused connection is a tuple."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__


def _fail(result: Stream, kind: str, what: str) -> None:
    if result.error is None:  # the first thing that went wrong is the cause of the rest
        result.error_kind, result.error = kind, what


def _error_text(body: bytes) -> str:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:200].decode(errors="replace").strip() or "no body"
    error = message.get("error") if isinstance(message, dict) else None
    if isinstance(error, dict):
        return str(error.get("message") or error)[:300]
    if isinstance(message, dict) and (error or message.get("message")):
        return str(error or message["message"])[:300]
    return body[:200].decode(errors="replace").strip()


def _spread_final_usage(result: Stream) -> None:
    """Without counts per chunk, the final usage says how many tokens there were: each chunk gets its part."""
    if result.token_source == "continuous" or not result.events or result.error:
        return
    total = (result.usage or {}).get("completion_tokens")
    if isinstance(total, int) and total > 0:
        part = total / len(result.events)
        result.events = [Event(event.at, part) for event in result.events]
        result.token_source = "final"
