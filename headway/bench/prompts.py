"""Synthetic prompts of about n tokens, each with its own salt at its very start, so that no prefix cache
knows them.

The text is made of words from one small list, so that tokens per word is a constant of the tokenizer:
measured once a server, through /tokenize where there is one, else from the usage of two one-token requests.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import aiohttp

from headway.bench.client import Request, Target, stream
from headway.errors import ServerError

_TEXT = """
the of to and in is it for that on with as be at this from or an by not are we was has one all can
more if when which time out about up into them then only its over new some could these two may first
any my now such like our after most also made where many before must through back years much your
way well down should because each just those people how too little state good very make world still
own see men work long here between both life being under never day same another know while last
might us great old year off come since against go came right used take three
"""
WORDS = _TEXT.split()
_SAMPLE = 1000  # words


def salt(rng: random.Random) -> str:
    return f"{rng.getrandbits(64):016x}"


def words(count: int, rng: random.Random) -> str:
    """`count` words behind a salt of 64 bits."""
    return " ".join([salt(rng), *rng.choices(WORDS, k=max(count, 0))])


@dataclass(frozen=True)
class Scale:
    """Tokens of a prompt = fixed + per_word · words."""

    per_word: float
    fixed: float
    source: str  # tokenize | usage

    def words_for(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.per_word))


async def calibrate(http: aiohttp.ClientSession, target: Target, rng: random.Random) -> Scale:
    """Raises ServerError when the server neither tokenises nor reports usage."""
    sizes = (_SAMPLE // 4, _SAMPLE)
    start, body = salt(rng), rng.choices(WORDS, k=_SAMPLE)  # one salt: its own tokens would tilt the slope
    texts = [" ".join([start, *body[:size]]) for size in sizes]
    source = "tokenize"
    counts = [await _tokenize(http, target, text) for text in texts]
    if None in counts:
        source = "usage"
        counts = [await _usage(http, target, text) for text in texts]
    low, high = counts
    assert low is not None and high is not None
    per_word = (high - low) / (sizes[1] - sizes[0])
    if per_word <= 0:
        raise ServerError(f"{target.url} counts {low} tokens for {sizes[0]} words and {high} for {sizes[1]}")
    return Scale(per_word, low - per_word * sizes[0], source)


def _messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def _tokenize(http: aiohttp.ClientSession, target: Target, text: str) -> int | None:
    body = {"model": target.model, "messages": _messages(text), "add_generation_prompt": True}
    try:
        async with http.post(
            target.url + "/tokenize",
            json=body,
            headers=target.headers,
            timeout=aiohttp.ClientTimeout(total=30),
        ) as answer:
            if answer.status != 200:
                return None
            count = json.loads(await answer.read()).get("count")
            return count if isinstance(count, int) else None
    except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError):
        return None


async def _usage(http: aiohttp.ClientSession, target: Target, text: str) -> int:
    answer = await stream(target, Request({"messages": _messages(text), "max_tokens": 1, "temperature": 0}), timeout=120)
    if answer.error:
        raise ServerError(f"{target.url}: {answer.error}")
    if answer.prompt_tokens is None:
        raise ServerError(f"{target.url} reports no usage, so the size of a prompt is unknown; no /tokenize either")
    return answer.prompt_tokens


def chat(tokens: int, out: int, scale: Scale, rng: random.Random, **extra: Any) -> Request:
    """A chat of one message with about `tokens` prompt tokens and exactly `out` tokens of answer
    (`ignore_eos`).
    """
    return ask(_messages(words(scale.words_for(tokens), rng)), out, **extra)


def ask(messages: list[dict[str, Any]], out: int, **extra: Any) -> Request:
    body = {"messages": messages, "max_tokens": out, "temperature": 0, "ignore_eos": True, **extra}
    return Request(body)


def turn(history: Request, answer: str, tokens: int, out: int, scale: Scale, rng: random.Random) -> Request:
    """The next turn of a conversation: what was said before, the answer, and `tokens` new ones."""
    messages = [
        *history.body["messages"],
        {"role": "assistant", "content": answer or "yes"},
        {"role": "user", "content": words(max(1, round(tokens / scale.per_word)), rng)},
    ]
    return Request({**history.body, "messages": messages, "max_tokens": out}, history.path)


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{what} of the repository",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "relative to the root"}},
                "required": ["path"],
            },
        },
    }
    for name, what in (
        ("read_file", "Reads a file"),
        ("list_folder", "Lists a folder"),
        ("grep", "Searches text"),
    )
]


def agent(tokens: int, out: int, scale: Scale, rng: random.Random, count: int = 20) -> Request:
    """What a coding agent sends: `count` messages with tool calls and their results, tools, tool_choice and
    effort.
    """
    pattern = ("user", "call", "tool", "assistant")
    kinds = ["system", *(pattern[i % 4] for i in range(count - 1))]
    # The salt stands in the first message. Calls are short; the other messages share the tokens.
    calls = kinds.count("call")
    long = max(1, (scale.words_for(tokens) - 40 * calls - round(300 / scale.per_word)) // (len(kinds) - calls))
    messages: list[dict[str, Any]] = []
    for i, kind in enumerate(kinds):
        if kind == "call":
            function = {"name": "read_file", "arguments": json.dumps({"path": f"src/part{i}.py"})}
            call = {"id": f"call_{i}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "tool":
            messages.append({"role": "tool", "tool_call_id": f"call_{i - 1}", "content": words(long, rng)})
        else:
            messages.append({"role": kind, "content": words(long, rng)})
    return ask(messages, out, tools=TOOLS, tool_choice="auto", reasoning_effort="low")
