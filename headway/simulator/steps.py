"""How long one engine step takes: t = a + a_ctx·context + a_seq·(rows - 1) + prefill + mixed.

`a` reads the weights once; `a_ctx` reads the keys and values of the rows that decode. Prefill: Σ b(position) + p +
p_ctx·start. `b` is the work of one prompt token and grows linearly with its position, since attention looks back at everything
before it; `p` is what a step that carries prompt tokens costs beside them, as it leaves the CUDA graphs of decode steps;
`p_ctx` is what each chunk costs for every token before it, however few tokens it holds: short chunks over a long context fill
a GPU badly. A *mixed* step (a prompt chunk beside decodes) costs `e` once and `e_token` for each chunk token more. Linear
in the chunk: an RTX 5090 with vLLM 0.22.1 gave 18.7 ms + 51.1 µs a token for chunks of 512 to 4096 tokens,
residuals under 1 ms. How close this comes to measured engines: docs/results/fidelity.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds, and seconds a token; `b_slope` is seconds a token and a token of position."""

    a: float
    b: float
    b_slope: float = 0.0
    e: float = 0.0
    e_token: float = 0.0
    a_ctx: float = 0.0
    a_seq: float = 0.0
    p: float = 0.0
    p_ctx: float = 0.0

    def chunk_seconds(self, start: int, tokens: int) -> float:
        """Work of the prompt tokens start .. start+tokens-1, without the step around it."""
        return tokens * (self.b + self.b_slope * (start + (tokens - 1) / 2))

    def decode_seconds(self, rows: int, context: int) -> float:
        """Duration of a step in which `rows` requests decode that hold `context` tokens together: linear in `context`."""
        return self.a + self.a_ctx * context + self.a_seq * (rows - 1)

    def step_seconds(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        """Duration of one step: `prefill` holds (start, tokens) of each chunk, `decode_contexts` one
        context length a row.
        """
        chunk_tokens = sum(tokens for _, tokens in prefill)
        rows = len(prefill) + len(decode_contexts)
        seconds = self.a + self.a_ctx * sum(decode_contexts) + self.a_seq * max(rows - 1, 0)
        if prefill:
            seconds += self.p + self.p_ctx * sum(start for start, _ in prefill)
        if prefill and decode_contexts:
            seconds += self.e + self.e_token * chunk_tokens
        return seconds + sum(self.chunk_seconds(start, tokens) for start, tokens in prefill)
