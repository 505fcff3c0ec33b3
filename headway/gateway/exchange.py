"""What is known of one exchange, whichever upstream it goes to."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.classes import INTERACTIVE
from headway.core.textindex import PromptText
from headway.gateway.cutting import SHAPES
from headway.gateway.dialects.ask import Ask
from headway.gateway.dialects.table import Dialect
from headway.gateway.fleet import Load
from headway.gateway.keepalive import HeldAnswer, Keeper
from headway.gateway.transport.interface import Downstream, LostReason, UpstreamLost

RESENDS = 1
"""Times that a request may go to another upstream after one closed the connection on it without a byte of answer: that engine
may have died of it."""
SAFE = (b"GET", b"HEAD", b"OPTIONS")


@dataclass(slots=True)
class Exchange:
    down: Downstream
    dialect: Dialect
    ask: Ask
    prompt: PromptText | None
    """For the text index; None where the body is small or no prompt."""
    body: bytes
    klass: str = INTERACTIVE
    """Its traffic class."""
    resent: int = 0
    since: float | None = None
    """When it, or the one whose place it has, first arrived at a desk, on the event loop's clock."""
    load: Load = field(init=False)
    held: HeldAnswer | None = None
    """`down` with keep-alives, once the request had to wait."""

    def __post_init__(self) -> None:
        ask = self.ask
        known = len(ask.ids) if ask.ids is not None else None
        self.load = Load(ask.size if self.prefills else 0, known, self.prompt, ask.model)

    def hold(self, keeper: Keeper) -> None:
        """It has to wait: from now on its client is kept waiting, if that can be done."""
        if self.held is None:
            self.held = keeper.hold(self.down, self.dialect, self.ask.stream)
            self.down = self.held or self.down

    def close(self) -> None:
        if self.held is not None:
            self.held.close()

    @property
    def prefills(self) -> bool:
        return self.dialect.held and len(self.body) > 0

    @property
    def has_text(self) -> bool:
        """Its prompt is text that can be cut (cutting.py): a known dialect, nothing but text, all of it in this body."""
        ask = self.ask
        return self.dialect.name in SHAPES and bool(ask.text) and not ask.media and ask.ids is None and not ask.partial

    def may_go_again(self, error: UpstreamLost) -> bool:
        """Whether the request may go to another upstream after this one was lost. Yes where it cannot have been worked on,
        because there was no connection. Where it was sent: only if not a byte was answered, it has no effect beside its
        answer (a prompt, or a method without effects), and not more than RESENDS times."""
        if error.answered:
            return False
        if error.reason in (LostReason.CONNECT, LostReason.TIMEOUT):
            return True
        if error.reason is not LostReason.CLOSED or self.resent >= RESENDS:
            return False
        self.resent += 1
        return self.prefills or self.down.request.method in SAFE
