"""Many cases at once: in this process, in parallel processes, or on a Ray cluster. Results come in the order of the cases."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from headway.errors import ServerError, UsageError
from headway.replay.case import ENGINE, TARGETS, Case, simulate

Progress = Callable[[str], None]


def grid(axes: Sequence[str]) -> list[dict[str, Any]]:
    """Every combination of `name=value,value,...`; one empty one for no axes. Raises UsageError."""
    names: list[str] = []
    values: list[list[Any]] = []
    for axis in axes:
        name, equals, listed = axis.partition("=")
        name = name.strip().removeprefix("--")
        kind = {**TARGETS, **ENGINE}.get(name)
        if not equals or kind is None:
            raise UsageError(f"--sweep {axis!r}: not NAME=VALUE,VALUE with NAME of {', '.join([*TARGETS, *ENGINE])}")
        if name in names:
            raise UsageError(f"--sweep: {name} is given twice")
        try:
            values.append([kind(text.strip()) for text in listed.split(",")])
        except ValueError:
            raise UsageError(f"--sweep {axis!r}: {listed!r} is not a list of {kind.__name__}") from None
        names.append(name)
    return [dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)]


def run_all(cases: Sequence[Case], jobs: int, ray: str | None, progress: Progress) -> Iterator[dict[str, Any]]:
    if ray is not None:
        yield from _on_ray(cases, ray, progress)
    elif jobs == 1 or len(cases) == 1:
        for number, case in enumerate(cases, 1):
            progress(f"{number}/{len(cases)} {case.policy} {_words(case)}")
            yield simulate(case)
    else:
        with ProcessPoolExecutor(min(jobs, len(cases)), mp_context=get_context("spawn")) as pool:
            for number, (case, result) in enumerate(zip(cases, pool.map(simulate, cases), strict=True), 1):
                progress(f"{number}/{len(cases)} {case.policy} {_words(case)}")
                yield result


def _on_ray(cases: Sequence[Case], address: str, progress: Progress) -> Iterator[dict[str, Any]]:
    """The trace must lie at the same path on every node, and headway must be installed there."""
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs the package ray: pip install 'headway[ray]'") from None
    _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ServerError(f"--ray {address}: no cluster there ({str(error).splitlines()[0]})") from None
    try:
        remote = ray.remote(num_cpus=1)(simulate)
        waiting = [remote.remote(case) for case in cases]
        for number, (case, reference) in enumerate(zip(cases, waiting, strict=True), 1):
            try:
                result = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, UsageError) else ServerError(f"--ray {address}: {error}") from None
            progress(f"{number}/{len(cases)} {case.policy} {_words(case)}")
            yield result
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Ray itself waits for a minute and then ends the process."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), 5.0).close()
    except (OSError, ValueError) as error:
        raise ServerError(f"--ray {address}: nothing answers there ({error})") from None


def _words(case: Case) -> str:
    return " ".join(f"{name}={value}" for name, value in case.swept.items())
