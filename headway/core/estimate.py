"""How many tokens a prompt has, before anyone counted them: bytes over a learned ratio.

Invariant: the ratio is a running median, so one odd prompt (base64, another alphabet) moves it little.
"""

from __future__ import annotations

from collections import deque

from headway.core.steps import median

FIRST_RATIO = 3.5
"""Bytes a token before anything was learned: low for English prose (about 4.5), so that a prompt counts as longer."""


class TokenEstimator:
    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=31)
        self._ratio = FIRST_RATIO

    @property
    def ratio(self) -> float:
        """Bytes of prompt text a token."""
        return self._ratio

    @property
    def learned(self) -> bool:
        return bool(self._ratios)

    def learn(self, size: int, tokens: int) -> None:
        """A prompt of `size` bytes had `tokens` tokens. Short ones are mostly template and say little."""
        if size >= 2048 and tokens > 0:
            self._ratios.append(size / tokens)
            self._ratio = median(list(self._ratios))

    def tokens(self, size: int) -> int:
        """Estimated tokens of `size` bytes, template and all."""
        return int(size / self._ratio) + 1
