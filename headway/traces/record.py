"""One call of a trace, and what a reader says about a row that it cannot use.

Invariants. Arrivals are seconds and never negative. `blocks` name the text of a prompt block by block from its start: two
calls whose first k ids are equal begin with the same k x `block_size` tokens, whatever format they came from. The tokens
behind the last block (the whole prompt where the trace names nothing) are shared with nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import UsageError


class TraceError(UsageError):
    """A file or row that cannot be used. The line is `FILE:LINE: what is wrong`."""

    def __init__(self, path: object, line: int | None, what: str) -> None:
        super().__init__(f"{path}:{line}: {what}" if line else f"{path}: {what}")


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `arrival`: seconds since the beginning of the trace (before `arrange`: perhaps of its session)."""

    arrival: float
    input_tokens: int
    output_tokens: int
    session: str = ""  # calls of one conversation or agent; empty: the trace names none
    thread: str = ""  # within a session, what waits for its own previous answer: a subagent runs beside its parent
    block_size: int = 0  # tokens a block; 0: the trace does not say what prompts share
    blocks: tuple[int, ...] = ()
    klass: str = ""  # traffic class (core/classes.py), where the trace names one

    @property
    def named_tokens(self) -> int:
        """Prompt tokens whose text other calls may share."""
        return min(self.input_tokens, self.block_size * len(self.blocks))
