"""One request inside the engine, seen as vLLM's scheduler sees it: tokens known, tokens computed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import xxhash

from headway.simulator.blocks import ID, extend_keys


class Request:
    """A prompt of `prompt_tokens` tokens that is answered with `max_tokens` tokens, unless it is aborted.

    Either `tokens` are given (an array of ids; `output_token(i)` then names the i-th token of the answer,
    so that a later prompt which contains the answer hits it), or only the length and the chained `keys` of
    the prompt's whole blocks, for traces that carry hashes instead of text.
    """

    __slots__ = (
        "arrival", "cache_salt", "cached_tokens", "computed", "decode_from", "decode_steps", "finish_reason", "id",
        "in_prefill", "junction", "keys", "max_tokens", "output_token", "outputs", "preemptions", "priority",
        "prompt_tokens", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        *,
        tokens: array[int] | Sequence[int] | None = None,
        prompt_tokens: int | None = None,
        keys: Sequence[int] = (),
        max_tokens: int = 16,
        priority: int = 0,
        arrival: float = 0.0,
        cache_salt: str = "",
        output_token: Callable[[int], int] | None = None,
    ) -> None:
        if tokens is not None:
            # A copy: the answer's tokens are appended to it.
            self.tokens: array[int] | None = array(ID, tokens)
            self.prompt_tokens = len(self.tokens)
        elif prompt_tokens is not None:
            self.tokens = None
            self.prompt_tokens = prompt_tokens
        else:
            raise ValueError("a request needs tokens or prompt_tokens")
        if self.prompt_tokens < 1:
            raise ValueError("a prompt has at least one token")
        if max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        self.id = id
        self.keys: list[int] = list(keys)
        self.max_tokens = max_tokens
        self.priority = priority
        self.arrival = arrival
        self.cache_salt = cache_salt
        self.output_token = output_token
        self.outputs = 0
        #: Decode steps since the last prefill (or since drafts had to be cut), and the outputs there were then: with
        #: speculative decoding the tokens of a step follow from these two.
        self.decode_steps = 0
        self.decode_from = 0
        self.computed = 0
        #: Prompt tokens found in the prefix cache at the first admission; None before it.
        self.cached_tokens: int | None = None
        #: Where full attention matched further than the recurrent states do (tokens), 0 if nowhere.
        self.junction = 0
        self.preemptions = 0
        #: True while tokens that are already known remain to be computed after the last step.
        self.in_prefill = False
        self.finish_reason: str | None = None

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.outputs

    @property
    def prefill_end(self) -> int:
        """Up to here computing is prefill; also for a preempted request that computes its own answer
        again.
        """
        return max(self.prompt_tokens, self.num_tokens - 1)

    def grow_keys(self, block: int, lookahead: int) -> None:
        """Bring `keys` up to the tokens known now."""
        if self.tokens is not None:
            extend_keys(self.keys, self.tokens, block, self.cache_salt, lookahead)
            return
        whole = max(self.num_tokens - lookahead, 0) // block
        while len(self.keys) < whole:
            seed = self.keys[-1].to_bytes(8, "little") if self.keys else b""
            self.keys.append(xxhash.xxh3_64_intdigest(seed + self.id.encode()))

    def append_outputs(self, count: int) -> None:
        if self.tokens is not None:
            token = self.output_token
            self.tokens.extend((token(self.outputs + i) if token else 0) for i in range(count))
        self.outputs += count
