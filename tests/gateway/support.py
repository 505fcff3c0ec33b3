"""What the gateway's tests share: a fast engine, a gateway in front of it, an upstream that answers as told, a tap, and a client
that sees bytes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from headway.core.targets import Targets
from headway.engines.families import FAMILIES
from headway.gateway.config import Address, Config, UpstreamConfig, parse_origin
from headway.gateway.server import Gateway, start
from headway.gateway.status import snapshot
from headway.gateway.upstream import Upstream
from headway.simulator.engine import EngineSettings
from headway.simulator.holdings import CacheLayout
from headway.simulator.profiles import FrontEnd, Profile
from headway.simulator.scheduler import SchedulerSettings
from headway.simulator.server import RunningServer
from headway.simulator.server import start as start_engine
from headway.simulator.steps import StepModel

BLOCK = 64

FAST = Profile(
    name="fast",
    summary="100 tokens/s alone, 0.4 s for a prompt of 4,000 tokens",
    engine=EngineSettings(
        version="0.32.0",
        layout=CacheLayout(blocks=4096, block_size=BLOCK, state_groups=3, max_model_len=32768),
        scheduler=SchedulerSettings(max_num_batched_tokens=2048, max_num_seqs=256),
        steps=StepModel(a=0.010, b=100e-6, e=0.005),
    ),
    front_end=FrontEnd(request_s=0.0005, text_token_s=0.0, id_token_s=0.0),
)


class ManualClock:
    """In the place of an event loop's timers: time passes when `advance` says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def call_later(self, delay: float, callback: Callable[[], None], /) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (self.now + delay, next(_order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()
        self.now = end

    @property
    def pending(self) -> int:
        return sum(1 for _, _, timer in self._timers if not timer.cancelled)


_order = itertools.count()


@dataclass
class ManualTimer:
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


def run(main: Coroutine[Any, Any, None], limit_s: float = 30.0) -> None:
    """asyncio.run with a bound; fails when the test leaves a task behind."""

    async def guarded() -> None:
        await asyncio.wait_for(main, limit_s)
        end = time.monotonic() + 2.0
        while (left := asyncio.all_tasks() - {asyncio.current_task()}) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not left, f"tasks left behind: {left}"

    asyncio.run(guarded())


@asynccontextmanager
async def engine(profile: Profile = FAST, **options: Any) -> AsyncIterator[RunningServer]:
    server = await start_engine(profile, **options)
    try:
        yield server
    finally:
        await server.close()


def settings(url: str, policy: str = "pace", **options: Any) -> Config:
    """A Config on free ports, without a probe unless asked for. Target options go into Targets."""
    targets = {name: options.pop(name) for name in ("share", "gap", "wait", "stretch", "queue") if name in options}
    options.setdefault("probe", False)
    return Config(
        upstreams=(UpstreamConfig(parse_origin(url)),),
        listen=Address("127.0.0.1", 0),
        status=Address("127.0.0.1", 0),
        policy=policy,
        targets=Targets(**{"gap": 0.1, **targets}),
        **options,
    )


@asynccontextmanager
async def gateway(url: str, policy: str = "pace", clock: ManualClock | None = None, **options: Any) -> AsyncIterator[Gateway]:
    served = await start(settings(url, policy, **options), clock)
    try:
        yield served
        assert not served.upstream.desk._permits.keys() - served.upstream.controller.entries.keys()
    finally:
        await served.close()
        assert not served.upstream.controller.entries, "a permit outlived the gateway"


async def until(condition: Callable[[], bool], limit_s: float = 5.0, what: str = "the condition") -> float:
    """Wait for it; seconds that it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < limit_s, f"{what} did not come about within {limit_s} s"
        await asyncio.sleep(0.002)
    return time.monotonic() - begun


def now(served: Gateway) -> dict[str, int]:
    """The `now` part of /status."""
    return dict(snapshot(served.config, served.fleet)["now"])


def idle(served: Gateway) -> bool:
    return not any(now(served).values())


async def probed(served: Gateway, limit_s: float = 10.0) -> None:
    """The probe is over and a step model is there."""
    upstream = served.upstream
    await until(lambda: upstream.engine.probed and upstream._probing is None, limit_s, "the probe's end")
    assert upstream.controller.pacer.model is not None


def teach(served: Gateway, block: int = BLOCK, upstream: Upstream | None = None) -> None:
    """What a probe of FAST would have found, without the time that it takes."""
    upstream = upstream or served.upstream
    upstream.engine.caching, upstream.engine.reports, upstream.engine.probed = True, True, True
    upstream.engine.family = FAMILIES["vllm"]
    upstream._set_block(block, confirmed=True)
    for tokens in (64, 128, 256, 512, 64, 128, 256, 512, 1024):
        upstream.controller.timed(upstream.desk.now, tokens, 0.014 + 100e-6 * tokens)


def metric(served: Gateway, sample: str) -> float:
    """Value of a line of the gateway's own /metrics, by its full name and labels; 0 where there is none."""
    for line in served.metrics.page().decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name in (sample, f'{sample}{{upstream="{served.upstream.target.label}"}}'):
            return float(value)
    return 0.0


# -- prompts ------------------------------------------------------------------------------------------


def text(tokens: int, seed: str = "a") -> str:
    """A prompt of about `tokens` tokens of the embedded engine (four bytes each); another seed, another prompt."""
    unit = f"{seed} tells of the sea and of the ships that went out. "
    return (unit * (tokens * 4 // len(unit) + 1))[: tokens * 4]


def chat(prompt: str, *, stream: bool = False, max_tokens: int = 4, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "stream": stream}
    return body | more


# -- clients ------------------------------------------------------------------------------------------


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=40)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        yield http


@dataclass
class Answer:
    """What a client saw of one streamed answer. Times are time.monotonic()."""

    status: int
    sent: float
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    done: bool = False

    @property
    def ttft(self) -> float:
        return self.events[0][0] - self.sent

    @property
    def text(self) -> str:
        choices = [choice for _, event in self.events for choice in event.get("choices", ())]
        return "".join(choice.get("delta", choice).get("content", choice.get("text", "")) or "" for choice in choices)

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((event["usage"] for _, event in reversed(self.events) if event.get("usage")), None)

    def count(self, since: float, till: float) -> int:
        return sum(1 for at, _ in self.events if since < at <= till)

    def longest_gap(self, since: float, till: float) -> float:
        times = [at for at, _ in self.events if since - 0.05 <= at <= till + 0.05]
        return max((b - a for a, b in pairwise(times)), default=0.0)


async def read_stream(
    http: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    answer: Answer | None = None,
    path: str = "/v1/chat/completions",
    headers: dict[str, str] | None = None,
) -> Answer:
    """POST and read the events; `answer` is filled as they come."""
    answer = answer if answer is not None else Answer(0, 0.0)
    answer.sent = time.monotonic()
    async with http.post(url + path, json=body, headers=headers) as response:
        answer.status = response.status
        async for line in response.content:
            if line.startswith(b"data: [DONE]"):
                answer.done = True
            elif line.startswith(b"data: "):
                answer.events.append((time.monotonic(), json.loads(line[6:])))
    return answer


@dataclass
class Message:
    """One HTTP message as it was on the wire. `complete` is False where it broke off."""

    start: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    complete: bool = True

    @property
    def status(self) -> int:
        return int(self.start.split()[1])

    @property
    def target(self) -> bytes:
        return self.start.split()[1]

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Hangup(Exception):
    """The peer closed where a message should have begun."""


async def read_message(reader: asyncio.StreamReader, *, bodyless: bool = False) -> Message:
    """Read one message by its framing, written without any HTTP library. A response without framing ends with the connection;
    a request without framing has no body."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        raise Hangup from None
    start, *lines = head[:-4].split(b"\r\n")
    headers = [(line.partition(b":")[0], line.partition(b":")[2].strip()) for line in lines]
    message = Message(start, headers)
    response = start.startswith(b"HTTP/")
    if bodyless or (response and message.status in (204, 304)):
        return message
    parts: list[bytes] = []
    try:
        if (message.get(b"transfer-encoding") or b"").lower() == b"chunked":
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readuntil(b"\r\n")
        elif (length := message.get(b"content-length")) is not None:
            parts.append(await reader.readexactly(int(length)))
        elif response:
            while part := await reader.read(65536):
                parts.append(part)
    except asyncio.IncompleteReadError as error:
        parts.append(error.partial)
        message.complete = False
    except ConnectionError:
        message.complete = False
    message.body = b"".join(parts)
    return message


def raw_request(method: str, path: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = ()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway.test"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body and not any(name.lower() in ("transfer-encoding", "content-length") for name, _ in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def exchange(port: int, request: bytes, *, bodyless: bool = False) -> Message:
    """Send raw bytes, read one response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await read_message(reader, bodyless=bodyless)
    finally:
        await close(writer)


async def post(port: int, path: str, body: Any, headers: Sequence[tuple[str, str]] = ()) -> Message:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await exchange(port, raw_request("POST", path, data, [("Content-Type", "application/json"), *headers]))


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


# -- upstreams ----------------------------------------------------------------------------------------

Script = Callable[[Message, asyncio.StreamWriter], Awaitable[None]]


def reply(raw: bytes) -> Script:
    """Answer every request with these bytes."""

    async def script(request: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return script


class Scripted:
    """An upstream that answers as told and keeps what it was sent. What a gateway asks for itself, /metrics and pages about the
    configuration, is not there and is not kept, unless with `metrics`."""

    OWN = (b"/metrics", b"/get_server_info", b"/server_info?config_format=text", b"/version", b"/props")

    def __init__(self, script: Script, metrics: bool = False) -> None:
        self.metrics = metrics
        self.script = script
        self.requests: list[Message] = []
        self.left = 0
        """Connections that have ended."""
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        script: asyncio.Future[None] | None = None
        try:
            while True:
                request = await read_message(reader)
                if not self.metrics and request.target.endswith(self.OWN):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.requests.append(request)
                script = asyncio.ensure_future(self.script(request, writer))
                gone = asyncio.ensure_future(_hangup(reader))
                await asyncio.wait({script, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done() and not script.done():
                    script.cancel()
                gone.cancel()
                with suppress(asyncio.CancelledError):
                    await gone
                with suppress(asyncio.CancelledError, ConnectionError):
                    await script
                if writer.is_closing():
                    return
        except Hangup:
            pass
        finally:
            self.left += 1
            self.open -= 1
            await close(writer)


async def _hangup(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@asynccontextmanager
async def scripted(script: Script | bytes, metrics: bool = False) -> AsyncIterator[tuple[Scripted, str]]:
    upstream = Scripted(reply(script) if isinstance(script, bytes) else script, metrics)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=2**26)
    try:
        yield upstream, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Tap:
    """Bytes between gateway and engine, recorded a connection at a time and passed on unchanged."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sent: list[bytearray] = []
        """What the engine sent, one entry a connection."""
        self.received: list[bytearray] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent, received = bytearray(), bytearray()
        self.sent.append(sent)
        self.received.append(received)
        pumps = [
            asyncio.ensure_future(_pump(reader, engine_writer, received)),
            asyncio.ensure_future(_pump(engine_reader, writer, sent)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await close(writer)
            await close(engine_writer)

    async def responses(self) -> list[Message]:
        """Everything that the engine answered."""
        return [message for stream in self.sent for message in await _messages(stream)]

    async def requests(self) -> list[Message]:
        return [message for stream in self.received for message in await _messages(stream)]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            record += data
            writer.write(data)


async def _messages(data: bytes | bytearray) -> list[Message]:
    reader = asyncio.StreamReader(limit=2**26)
    reader.feed_data(bytes(data))
    reader.feed_eof()
    messages = []
    with suppress(Hangup):
        while True:
            messages.append(await read_message(reader))
    return messages


@asynccontextmanager
async def tapped(port: int) -> AsyncIterator[tuple[Tap, str]]:
    tap = Tap(port)
    server = await asyncio.start_server(tap.serve, "127.0.0.1", 0, limit=2**26)
    try:
        yield tap, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def descriptors() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
