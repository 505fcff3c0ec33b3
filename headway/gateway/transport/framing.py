"""Who owns which header field, and how a response body is delimited. Pure functions over bytes.

The transport owns the three framing fields (`Connection`, `Content-Length`, `Transfer-Encoding`) on the wire.
Every other field passes as it came: name, case, order. What must not pass from one connection to the next is
removed by the relay, with `end_to_end`.
"""

from __future__ import annotations

import enum

from headway.gateway.transport.interface import Headers, RequestHead, ResponseHead

MAX_HEAD = 64 * 1024
"""Bytes of a request or response head; also of anything else that carries no body (chunk extensions,
trailers)."""

HOP_BY_HOP = frozenset(
    {
        b"connection",  # and every field that it names
        b"keep-alive",  # parameters of this connection
        b"proxy-connection",  # never standard, still sent
        b"te",  # what this connection's peer can decode
        b"trailer",  # announces trailer fields, which the transport drops
        b"transfer-encoding",  # the coding of this connection; see `mirrored`
        b"upgrade",  # nothing is tunnelled
        b"expect",  # the listener has already answered it: the body is complete before it is sent on
        b"proxy-authenticate",  # RFC 9110 11.7: between a client and its next proxy
        b"proxy-authorization",
    }
)
"""Header fields (lower case) that belong to one connection: RFC 9110 7.6.1 and the field's own definition."""


def end_to_end(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The fields that go on to the next connection, in their order and case."""
    dropped: frozenset[bytes] | set[bytes] = HOP_BY_HOP
    for name, value in headers:
        if len(name) == 10 and name.lower() == b"connection":
            dropped = dropped | {token.strip().lower() for token in value.split(b",")}
    return [field for field in headers if field[0].lower() not in dropped]


def mirrored(head: ResponseHead) -> ResponseHead:
    """The head to send to the client for an upstream's head: its end-to-end fields, and the same framing
    (Content-Length, chunked, or neither)."""
    headers = end_to_end(head.headers)
    if head.get(b"transfer-encoding") is not None:
        headers.append((b"Transfer-Encoding", b"chunked"))
    return ResponseHead(head.status, head.reason, headers)


class Framing(enum.Enum):
    """How the client knows where the response body ends."""

    NONE = "none"  # there is no body: HEAD, 204, 304
    LENGTH = "length"  # Content-Length
    CHUNKED = "chunked"  # Transfer-Encoding: chunked
    CLOSE = "close"  # the end of the connection


BODYLESS = frozenset({204, 304})
"""Statuses whose response has no body whatever its fields say (RFC 9112 6.3)."""


def until_close(head: ResponseHead) -> bool:
    """Whether the body of a response (not to HEAD) ends where its connection ends."""
    coding = head.get(b"transfer-encoding")
    if coding is not None:
        return not coding.lower().endswith(b"chunked")
    return head.status not in BODYLESS and head.get(b"content-length") is None


def response_bytes(head: ResponseHead, *, bodyless: bool, http11: bool, keep_alive: bool) -> tuple[bytes, Framing, int, bool]:
    """Serialise a response head: (bytes, framing, bytes of body for LENGTH, whether the connection goes on).

    `bodyless`: the request was HEAD. Raises ValueError for a head that cannot be sent.
    """
    status = head.status
    if status < 200:
        raise ValueError(f"status {status} is not a final response")
    length = at = -1
    chunked = False
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, head.reason)]
    for name, value in head.headers:
        key = name.lower()
        if key not in _RESPONSE_FRAMING:
            lines.append(b"%b: %b\r\n" % (name, value))
        elif key == b"connection":
            keep_alive = keep_alive and b"close" not in value.lower()
        elif key == b"transfer-encoding":
            chunked = True
        else:
            if length >= 0 or not value.isdigit():
                raise ValueError(f"content-length {value!r} cannot be sent")
            length = int(value)
            at = len(lines)
            lines.append(b"%b: %b\r\n" % (name, value))
    if bodyless or status in BODYLESS:
        framing = Framing.NONE
    elif chunked and http11:
        framing = Framing.CHUNKED
    elif length >= 0 and not chunked:
        framing = Framing.LENGTH
    else:
        framing = Framing.CLOSE
        keep_alive = False
    # HEAD and 304 may say how the body of a GET would be framed; 204 must not (RFC 9110 8.6).
    if length >= 0 and (chunked or status == 204):
        del lines[at]
    if chunked and http11 and status not in BODYLESS:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif not http11:
        lines.append(b"Connection: keep-alive\r\n")
    return _sealed(lines), framing, length, keep_alive


def request_bytes(head: RequestHead, body: bytes) -> bytes:
    """Serialise a request head with the framing of `body`. Raises ValueError for a head that cannot be
    sent."""
    lines = [b"%b %b HTTP/1.1\r\n" % (head.method, head.target)]
    lines += [b"%b: %b\r\n" % field for field in head.headers if field[0].lower() not in _REQUEST_FRAMING]
    if body or head.method in _METHODS_WITH_BODY:
        lines.append(b"Content-Length: %d\r\n" % len(body))
    return _sealed(lines)


_REQUEST_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_RESPONSE_FRAMING = _REQUEST_FRAMING | {b"connection"}
_METHODS_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})


def _sealed(lines: list[bytes]) -> bytes:
    raw = b"".join(lines)
    # A line break inside a field would start a field, or a message, of its own.
    if raw.count(b"\n") != len(lines) or raw.count(b"\r") != len(lines):
        raise ValueError("line break inside a header field")
    return raw + b"\r\n"
