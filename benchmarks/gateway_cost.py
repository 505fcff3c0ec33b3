"""CPU time of two or more versions of the gateway, side by side in one run.

    benchmarks/gateway_cost.py NAME=CHECKOUT NAME=CHECKOUT [--requests 5000] [--streams 160] [--rounds 4] [--json FILE]

A checkout is a working tree (`git worktree add DIR COMMIT`). All gateways run at the same time before one upstream
(benchmarks/overhead_peers), and the rounds take turns over them, forwards and backwards, so that what else the machine does meets
all. Given are medians over the rounds of user and system time of the gateway's process: a request without a stream of 32 clients,
and an event of 32 streams (the requests' own share taken off).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.overhead import SMALL, STREAM, spread
from benchmarks.overhead_peers import load, subjects

TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def user_and_system_us(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_US


async def start(checkout: Path, upstream: int) -> tuple[asyncio.subprocess.Process, int]:
    port = subjects.free()
    line = [sys.executable, "-m", "headway", "serve", "--upstream", f"http://127.0.0.1:{upstream}"]
    line += ["--listen", f"127.0.0.1:{port}", "--status", "127.0.0.1:0", "--log-level", "warning"]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    process = await asyncio.create_subprocess_exec(
        *line, cwd=checkout, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise SystemExit(f"gateway_cost: {checkout}: the gateway did not start")
    return process, port


async def run(checkouts: dict[str, Path], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {name: {"request_us": [], "event_us": []} for name in checkouts}
    async with subjects.upstream() as upstream:
        started = {name: await start(path.resolve(), upstream) for name, path in checkouts.items()}
        try:
            await asyncio.sleep(subjects.SETTLE_S)  # the probe
            for _, port in started.values():
                await load.plain(port, SMALL, 500, 32)
            for number in range(options.rounds):
                for name in list(started) if number % 2 == 0 else list(started)[::-1]:
                    process, port = started[name]
                    before = user_and_system_us(process.pid)
                    await load.plain(port, SMALL, options.requests, 32)
                    middle = user_and_system_us(process.pid)
                    events = await load.streams(port, STREAM, options.streams, 32)
                    request = (middle - before) / options.requests
                    found[name]["request_us"].append(request)
                    spent = user_and_system_us(process.pid) - middle
                    found[name]["event_us"].append((spent - request * options.streams) / events)
                    print(f"round {number + 1}: {name}: {request:.0f} us a request", file=sys.stderr)
        finally:
            for process, _ in started.values():
                process.terminate()
                await process.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=CHECKOUT")
    parser.add_argument("--requests", type=int, default=5000, help="a round")
    parser.add_argument("--streams", type=int, default=160, help="a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    checkouts = {}
    for text in options.checkouts:
        name, _, path = text.partition("=")
        if not (Path(path) / "headway" / "__init__.py").exists():
            parser.error(f"{text!r}: {path or 'nothing'} is no checkout of headway")
        checkouts[name] = Path(path)
    found = asyncio.run(run(checkouts, options))
    print("| | CPU µs a request | CPU µs an event |\n|---|---|---|")
    for name, figures in found.items():
        print(f"| {name} | {spread(figures['request_us'], 0)} | {spread(figures['event_us'], 1)} |")
    names = list(found)
    for name in names[1:]:
        ratio = statistics.median(found[name]["request_us"]) / statistics.median(found[names[0]]["request_us"])
        print(f"a request: {name} / {names[0]} = {ratio:.2f}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps({"schema": "headway.gateway-cost/1", "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
