"""What both sides of the transport ask of a TCP connection: bounded buffers, keep-alive probes, a visible
abort."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

HIGH_WATER = 64 * 1024
"""Bytes buffered for a peer above which it is not `writable`."""
LOW_WATER = 16 * 1024

PROBE_IDLE_S, PROBE_INTERVAL_S, PROBES = 30, 10, 3
"""TCP keep-alive: a peer whose machine vanished without a word is noticed after 60 s, not after hours."""

_PROBE_OPTIONS = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_IDLE_S),
        ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
        ("TCP_KEEPCNT", PROBES),
    )
    if hasattr(socket, name)
]
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def tune(transport: asyncio.Transport) -> None:
    """Water marks, and keep-alive probes. Both event loops set TCP_NODELAY themselves."""
    transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # a peer that has already gone: the loop will say so
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBE_OPTIONS:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def reset(transport: asyncio.Transport) -> None:
    """Close at once so that the peer sees a reset, not an end: the only way to show that a body delimited by
    the end of its connection is incomplete."""
    if not transport.is_closing():  # else its file number may already be another connection's
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def read(transport: asyncio.Transport | None, go: bool) -> None:
    """Start or stop reading; uvloop raises for a transport that is about to be lost."""
    if transport is not None and not transport.is_closing():
        if go:
            transport.resume_reading()
        else:
            transport.pause_reading()
