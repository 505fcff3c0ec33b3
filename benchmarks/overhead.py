"""What a gateway costs: CPU time a request and an event, and added latency, ours and others' side by side in one run.

    benchmarks/overhead.py [--peers nginx haproxy ...] [--rounds 3] [--json FILE]

One upstream process answers at once, or streams events two milliseconds apart; the load comes from this process. Every gateway
runs as one worker, and the rounds take turns over all of them, so that what else the machine does meets all. CPU time is that of
all threads of a gateway's processes (/proc/PID/task/*/schedstat, nanoseconds), which a busy machine blurs less than it does
latency. `headway` runs with its defaults, `headway-passthrough` measures only. Peers are found on PATH and in the folders of
HEADWAY_PEERS; those that are not installed are left out and said to be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.overhead_peers import load, subjects

SMALL = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 80}], "max_tokens": 8}).encode()
STREAM = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 80}], "stream": True}).encode()
LARGE = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 70_000}]}).encode()


@dataclass
class Figures:
    """Of one subject, a value a round."""

    request_us: list[float] = field(default_factory=list)
    """CPU time of a request without a stream, 32 clients, microseconds."""
    event_us: list[float] = field(default_factory=list)
    """CPU time of one event of a stream, 32 streams, the request's own share taken off."""
    large_us: list[float] = field(default_factory=list)
    """CPU time of a request of 430 KB."""
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    """Latency of a request without a stream, one client, milliseconds."""
    first_p50_ms: list[float] = field(default_factory=list)
    first_p99_ms: list[float] = field(default_factory=list)
    """Time to the first event of a stream, one client."""
    rss_mb: list[float] = field(default_factory=list)


async def measure(port: int, subject: subjects.Subject, figures: Figures, scale: float) -> None:
    requests, streams, large = int(3000 * scale), int(96 * scale), int(150 * scale)
    await load.plain(port, SMALL, 200, 8)
    with used(subject) as cpu:
        await load.plain(port, SMALL, requests, 32)
    request_us = cpu[0] / requests / 1e3
    figures.request_us.append(request_us)
    with used(subject) as cpu:
        events = await load.streams(port, STREAM, streams, 32)
    figures.event_us.append((cpu[0] / 1e3 - streams * request_us) / events)
    with used(subject) as cpu:
        await load.plain(port, LARGE, large, 4)
    figures.large_us.append(cpu[0] / large / 1e3)
    for into50, into99, seconds in (
        (figures.p50_ms, figures.p99_ms, await load.plain(port, SMALL, int(600 * scale), 1)),
        (figures.first_p50_ms, figures.first_p99_ms, await load.first_events(port, STREAM, int(60 * scale))),
    ):
        ranked = sorted(seconds)
        into50.append(1e3 * ranked[len(ranked) // 2])
        into99.append(1e3 * ranked[int(len(ranked) * 0.99)])
    figures.rss_mb.append(subject.rss_mb())


@contextlib.contextmanager
def used(subject: subjects.Subject) -> Iterator[list[int]]:
    """Nanoseconds of CPU that the subject uses inside the block."""
    spent = [0]
    before = subject.cpu_ns()
    yield spent
    spent[0] = subject.cpu_ns() - before


async def run(names: list[str], rounds: int, scale: float) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    async with subjects.upstream() as upstream:
        started = []
        for name in names:
            subject = await subjects.start(name, upstream)
            if isinstance(subject, str):
                print(f"{name}: left out, {subject}", file=sys.stderr)
            else:
                started.append(subject)
                found[name] = Figures()
        try:
            for number in range(rounds):
                for subject in started if number % 2 == 0 else started[::-1]:
                    begun = time.monotonic()
                    try:
                        share = scale * subjects.SHARES.get(subject.name, 1.0)
                        await asyncio.wait_for(measure(subject.port, subject, found[subject.name], share), 300)
                    except (TimeoutError, OSError, load.Unexpected, asyncio.IncompleteReadError) as error:
                        print(f"round {number + 1}: {subject.name}: {error!r}", file=sys.stderr)
                    print(f"round {number + 1}: {subject.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        finally:
            for subject in started:
                await subject.stop()
    return found


def table(found: dict[str, Figures], versions: dict[str, str]) -> str:
    """Medians over the rounds, and their range where it says something; `direct` is what latencies are compared with."""
    direct = found["direct"]
    lines = [
        "| | CPU µs a request | CPU µs an event | CPU µs, 430 KB | added ms p50 / p99 | first event, ms p50 / p99 | RSS MB |",
        "|---|---|---|---|---|---|---|",
    ]

    def added(values: list[float], base: list[float]) -> str:
        return f"{statistics.median(values) - statistics.median(base):.2f}"

    for name, figures in found.items():
        if name == "direct" or not figures.rss_mb:
            continue
        cells = [spread(figures.request_us, 0), spread(figures.event_us, 1), spread(figures.large_us, 0)]
        cells.append(f"{added(figures.p50_ms, direct.p50_ms)} / {added(figures.p99_ms, direct.p99_ms)}")
        cells.append(f"{added(figures.first_p50_ms, direct.first_p50_ms)} / {added(figures.first_p99_ms, direct.first_p99_ms)}")
        cells.append(f"{statistics.median(figures.rss_mb):.0f}")
        lines.append(f"| {name} {versions.get(name, '')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", default=list(subjects.SUBJECTS), choices=list(subjects.SUBJECTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = ["direct", *[name for name in options.peers if name != "direct"]]
    found = asyncio.run(run(names, options.rounds, options.scale))
    versions: dict[str, str] = {name: subjects.version(name) for name in found}
    print(table(found, versions))
    if options.json is not None:
        record: dict[str, Any] = {"schema": "headway.overhead/1", "versions": versions, "rounds": options.rounds}
        record["figures"] = {name: vars(figures) for name, figures in found.items()}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
