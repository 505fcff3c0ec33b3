"""What a command says when it cannot go on: one line on stderr and a documented exit code.

0 ok · 1 the check failed · 2 the command line or configuration cannot be used · 3 the server could not be used
"""  # noqa: E501

from __future__ import annotations


class HeadwayError(Exception):
    """Base: `str(error)` is the one line that the user reads. It names what was wrong and where."""

    exit_code = 1


class CheckFailed(HeadwayError):
    exit_code = 1


class UsageError(HeadwayError):
    exit_code = 2


class ServerError(HeadwayError):
    exit_code = 3
