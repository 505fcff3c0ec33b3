"""The load generator's process and the channel to it: pickles with their length in front, over its standard input and output.

The child runs one order at a time and nothing else; between two orders it is idle, and that is when the parent writes files
and prints. It ends when its input does, so it cannot outlive a parent that was killed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import resource
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from headway.bench.client import session
from headway.bench.context import Say
from headway.bench.generator import Generator
from headway.errors import CheckFailed, HeadwayError, ServerError, UsageError
from headway.lab.process import ROOT, stop

SWITCH_S = 0.0005  # a thread that makes prompts gives the interpreter back after this
LENGTH = 8  # bytes
KINDS = {kind.exit_code: kind for kind in (CheckFailed, UsageError, ServerError)}


def _pack(message: Any) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH, "little") + body


async def _receive(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises EOFError when the other side has gone."""
    try:
        size = int.from_bytes(await reader.readexactly(LENGTH), "little")
        return pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        raise EOFError from None


class GeneratorProcess:
    """What the parent holds: `await call("run", name, rep)` is `Generator.run(name, rep)` over there."""

    def __init__(self, process: asyncio.subprocess.Process, say: Say) -> None:
        self._process, self._say = process, say

    async def call(self, method: str, *arguments: Any) -> Any:
        """Raises what the generator raised, and HeadwayError when its process ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(_pack((method, arguments)))
            await self._process.stdin.drain()
            while True:
                kind, value = await _receive(self._process.stdout)
                if kind == "say":
                    self._say(value)
                elif kind == "done":
                    return value
                else:
                    code, text = value
                    raise KINDS.get(code, HeadwayError)(text)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = await self._process.wait()
            raise HeadwayError(f"the load generator's process ended with code {code}") from None


@asynccontextmanager
async def generator(say: Say) -> AsyncIterator[GeneratorProcess]:
    """A load generator in its own process for as long as the context lives."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway.bench.process",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment, start_new_session=True, limit=2**24,
    )  # fmt: skip
    try:
        yield GeneratorProcess(process, say)
    finally:
        await stop(process, patience=2.0)


async def _serve(orders: int, replies: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(orders, "rb"))
    out = os.fdopen(replies, "wb")

    def reply(kind: str, value: Any) -> None:
        out.write(_pack((kind, value)))
        out.flush()

    async with session() as http:
        made = Generator(http, lambda text: reply("say", text))
        order = asyncio.ensure_future(_receive(reader))
        while True:
            try:
                method, arguments = await order
            except EOFError:
                return
            work = asyncio.ensure_future(getattr(made, method)(*arguments))
            # Nothing is sent while an order runs: should this end first, then because the parent was killed
            order = asyncio.ensure_future(_receive(reader))
            await asyncio.wait([work, order], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                continue
            try:
                reply("done", work.result())
            except HeadwayError as error:
                reply("error", (error.exit_code, str(error)))
            except Exception as error:
                traceback.print_exc()
                reply("error", (1, f"the load generator failed: {type(error).__name__}: {error}"))


def main() -> None:
    # Our own standard output is the channel; whatever prints goes to standard error
    replies = os.dup(1)
    os.dup2(2, 1)
    sys.setswitchinterval(SWITCH_S)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection a stream
    gc.collect()
    gc.freeze()  # what was imported is never looked at again
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(os.dup(0), replies))


if __name__ == "__main__":
    main()
