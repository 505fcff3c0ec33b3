"""The waiting requests of an engine, in the order in which they are admitted."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Literal

from headway.simulator.request import Request

Policy = Literal["fcfs", "priority"]


class Waiting:
    """First come first served, or a heap on (priority, arrival); a preempted request goes to the front of
    the former.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queue: deque[Request] = deque()
        self._heap: list[tuple[int, float, str, Request]] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        if self._policy == "fcfs":
            return iter(self._queue)
        return (entry[3] for entry in sorted(self._heap, key=lambda e: e[:3]))

    def add(self, request: Request, front: bool = False) -> None:
        if self._policy == "priority":
            heapq.heappush(self._heap, (request.priority, request.arrival, request.id, request))
        elif front:
            self._queue.appendleft(request)
        else:
            self._queue.append(request)

    def peek(self) -> Request:
        return self._queue[0] if self._policy == "fcfs" else self._heap[0][3]

    def pop(self) -> Request:
        return self._queue.popleft() if self._policy == "fcfs" else heapq.heappop(self._heap)[3]

    def remove(self, request: Request) -> None:
        if self._policy == "fcfs":
            self._queue.remove(request)
        else:
            self._heap = [entry for entry in self._heap if entry[3] is not request]
            heapq.heapify(self._heap)
