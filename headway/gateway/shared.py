"""One answer for several clients that asked for the same.

Invariants
----------
1. Every member receives the whole answer, head first. One that comes after the head receives it at once; one may come only before
   the first byte of the upstream's body.
2. The slowest member holds back nobody but itself: while another can be written to, one that cannot is broken off. A lone member
   holds back the upstream, as always.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.gateway.transport.interface import Downstream, ResponseHead


class SharedAnswer:
    """`Downstream` of all of them."""

    def __init__(self, first: Downstream) -> None:
        self.request = first.request
        self.peer = first.peer
        self.members: list[Downstream] = [first]
        self._head: ResponseHead | None = None
        self._on_writable: Callable[[], None] | None = None

    def add(self, member: Downstream) -> None:
        self.members.append(member)
        member.on_writable = self._on_writable
        if self._head is not None:
            member.head(self._head)

    def drop(self, member: Downstream) -> None:
        if member in self.members:
            self.members.remove(member)

    async def body(self) -> bytes:
        return await self.members[0].body()

    @property
    def started(self) -> bool:
        return self._head is not None

    def head(self, head: ResponseHead) -> None:
        self._head = head
        for member in self.members:
            member.head(head)

    def data(self, data: bytes) -> None:
        if len(self.members) > 1 and any(member.writable for member in self.members):
            for member in [member for member in self.members if not member.writable]:
                member.abort()
                self.members.remove(member)
        for member in self.members:
            member.data(data)

    def eof(self) -> None:
        for member in self.members:
            member.eof()

    def abort(self) -> None:
        for member in self.members:
            member.abort()

    @property
    def writable(self) -> bool:
        return any(member.writable for member in self.members)

    @property
    def on_writable(self) -> Callable[[], None] | None:
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        for member in self.members:
            member.on_writable = callback
