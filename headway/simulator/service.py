"""Between the HTTP routes and the engine: prompts become requests, outputs become text."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from headway.simulator.blocks import ID
from headway.simulator.bodies import ApiError
from headway.simulator.driver import Driver, FrontEndQueue
from headway.simulator.engine import Engine, Output
from headway.simulator.profiles import Profile
from headway.simulator.request import Request
from headway.simulator.tokenizer import Tokenizer, prompt_seed

#: Longest chat answer when the client names no length (tokens).
CHAT_TOKENS = 4096


@dataclass(slots=True)
class Prompt:
    """A prompt as ids. `text_tokens` of them had to be tokenised here."""

    ids: array[int]
    text_tokens: int


@dataclass(slots=True)
class Piece:
    """What one engine step adds to one answer."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None


@dataclass(slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Generation:
    """Answers under way; iterate `pieces` to their end."""

    id: str
    created: int
    usage: Usage
    pieces: AsyncIterator[Piece]
    answers: int = 1
    texts: list[str] = field(default_factory=list)


class Service:
    def __init__(self, profile: Profile, model: str, prompt_tokens_details: bool) -> None:
        self.profile = profile
        self.model = model
        self.prompt_tokens_details = prompt_tokens_details
        self.engine = Engine(profile.engine)
        self.driver = Driver(self.engine)
        self.tokenizer = Tokenizer()
        self.front_end = FrontEndQueue()
        self._numbers = itertools.count(1)

    @property
    def max_model_len(self) -> int:
        return self.profile.engine.layout.max_model_len

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model:
            raise ApiError(f"The model `{name}` does not exist.", status=404, type_="NotFoundError", param="model")

    def text_prompt(self, text: str) -> Prompt:
        ids = self.tokenizer.encode(text)
        return Prompt(ids, len(ids))

    def id_prompt(self, ids: Sequence[int]) -> Prompt:
        try:
            return Prompt(array(ID, ids), 0)
        except (OverflowError, TypeError):
            raise ApiError("Token ids must be integers from 0 to 4294967295.", param="prompt") from None

    def fit(self, prompt: Prompt, max_tokens: int | None, default: int) -> int:
        """Answer tokens for a prompt; ApiError 400 where prompt and answer exceed the model's length."""
        longest, count = self.max_model_len, len(prompt.ids)
        if count == 0:
            raise ApiError("The prompt must contain at least one token.", param="prompt")
        if count >= longest:
            raise ApiError(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains "
                f"{count} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt.",
                param="input_tokens",
            )
        if max_tokens is None:
            return min(default, longest - count)
        if count + max_tokens > longest:
            raise ApiError(
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{max_tokens} output tokens and your prompt contains {count} input tokens, for a total of "
                f"{count + max_tokens} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens.",
                param="max_tokens",
            )
        return max_tokens

    async def front_end_cost(self, prompts: Sequence[Prompt]) -> None:
        """Wait as long as the profile's front end works on these prompts."""
        cost = self.profile.front_end
        text = sum(prompt.text_tokens for prompt in prompts)
        ids = sum(len(prompt.ids) for prompt in prompts) - text
        await self.front_end.spend(cost.request_s + cost.text_token_s * text + cost.id_token_s * ids)

    @contextlib.contextmanager
    def generate(
        self,
        name: str,
        prompts: Sequence[Prompt],
        lengths: Sequence[int],
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Iterator[Generation]:
        """Put one request a prompt and sample into the engine for as long as the block lasts."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        usage = Usage(sum(len(p.ids) for p in prompts))
        with contextlib.ExitStack() as stack:
            sources: list[AsyncIterator[Piece]] = []
            for prompt, length in zip(prompts, lengths, strict=True):
                for _ in range(n):
                    index = len(sources)
                    seed = prompt_seed(prompt.ids) + index % n
                    request = Request(
                        f"{name}-{number}-{index}",
                        tokens=prompt.ids,
                        max_tokens=length,
                        priority=priority,
                        arrival=loop.time(),
                        cache_salt=cache_salt or "",
                        output_token=lambda i, seed=seed: self.tokenizer.answer_piece(seed, i)[0],  # type: ignore[misc]
                    )
                    try:
                        outputs = stack.enter_context(self.driver.submit(request))
                    except ValueError as error:
                        raise ApiError(str(error)) from None
                    sources.append(self._pieces(index, seed, outputs, usage))
            pieces = sources[0] if len(sources) == 1 else _merged(sources)
            yield Generation(name, int(time.time()), usage, pieces, len(sources))

    async def _pieces(self, index: int, seed: int, outputs: AsyncIterator[Output], usage: Usage) -> AsyncIterator[Piece]:
        async for output in outputs:
            if output.first == 0:
                usage.cached_tokens += output.request.cached_tokens or 0
            usage.completion_tokens += output.tokens
            pairs = [self.tokenizer.answer_piece(seed, i) for i in range(output.first, output.first + output.tokens)]
            yield Piece(index, "".join(text for _, text in pairs), [token for token, _ in pairs], output.finish_reason)


async def _merged(sources: Sequence[AsyncIterator[Piece]]) -> AsyncIterator[Piece]:
    """Pieces of several answers in the order in which they come."""
    queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()

    async def pump(source: AsyncIterator[Piece]) -> None:
        try:
            async for piece in source:
                queue.put_nowait(piece)
        except Exception as error:
            queue.put_nowait(error)
        queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(source)) for source in sources]
    try:
        left = len(tasks)
        while left:
            piece = await queue.get()
            if piece is None:
                left -= 1
            elif isinstance(piece, BaseException):
                raise piece
            else:
                yield piece
    finally:
        for task in tasks:
            task.cancel()
