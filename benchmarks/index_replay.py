"""How well the gateway's prefix index predicts what is cached: a scaled replay of recorded agent sessions through
`headway serve`, each call's predicted uncached tokens beside what the engine's usage says.

    python benchmarks/index_replay.py TRACES [--engine embedded|vllm] [--calls 200] [--scale 24] [--out docs/results]

TRACES: a folder of kv-cache-tester session files (or any trace that `headway.traces` reads and that names its prompts' blocks).
Every prompt is shrunk by --scale, structure kept: what two calls shared they share. The calls run one after the other, sessions
interleaved in turns, so that the KV cache, made too small for all sessions together (--fits), evicts. Both retention eras of
hybrid models, and a dense model. A prediction is right within 20 % or 512 tokens of the uncached tokens. Exit code 1 when less
than 95 % are right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from headway.bench import prompts
from headway.errors import HeadwayError, UsageError
from headway.lab.gateway import gateway, learned
from headway.traces.formats import read
from headway.traces.record import Call

TOLERANCE_TOKENS, TOLERANCE_PART, WANTED = 512, 0.20, 0.95
WORDS_PER_TOKEN = 0.75


@dataclass(frozen=True)
class Era:
    """One engine to judge on."""

    name: str
    model: str
    block: int
    arguments: tuple[str, ...] = ()
    version: str = "0.32.0"
    states: int = 0


ERAS = (
    Era("sparse", "next-tiny", 256, (), "0.32.0", 3),
    Era("dense-states", "next-tiny", 256, ("--prefix-cache-retention-interval", "None"), "0.28.0", 3),
    Era("full-attention", "dense-tiny", 128, (), "0.32.0", 0),
)
"""Hybrid models with sparse retention (vLLM 0.30 and later), with dense (before), and a model of full attention only."""


@dataclass
class Session:
    """A conversation: prompts as block ids, as messages with the boundaries that earlier calls gave them."""

    name: str
    scale: float
    known: list[tuple[tuple[int, ...], list[int]]] = field(default_factory=list)

    def messages(self, call: Call) -> list[dict[str, str]]:
        blocks = call.blocks
        shared, ends = 0, []
        for earlier, its_ends in self.known:
            same = next(
                (n for n, (a, b) in enumerate(zip(earlier, blocks, strict=False)) if a != b), min(len(earlier), len(blocks))
            )
            if same > shared:
                shared, ends = same, [end for end in its_ends if end < same] + [same]
        ends = [*ends, len(blocks)] if not ends or ends[-1] < len(blocks) else ends
        self.known.append((blocks, ends))
        messages, start = [], 0
        for number, end in enumerate(ends):
            role = "system" if number == 0 else ("user", "assistant")[(number + 1) % 2]
            messages.append({"role": role, "content": " ".join(self._text(block, call) for block in blocks[start:end])})
            start = end
        if len(messages) == 1:
            messages[0]["role"] = "user"
        return messages

    def _text(self, block: int, call: Call) -> str:
        rng = random.Random(f"{self.name} {block}")
        return " ".join(rng.choices(prompts.WORDS, k=max(1, round(call.block_size / self.scale * WORDS_PER_TOKEN))))


def interleaved(calls: Iterator[Call], count: int, seed: int) -> list[Call]:
    """`count` calls of several sessions, each session's in its own order, whose turn it is drawn at random: agents beside
    each other, each waiting for its own answers."""
    sessions: dict[str, list[Call]] = {}
    for call in calls:
        if call.blocks:
            sessions.setdefault(call.session, []).append(call)
    rng = random.Random(seed)
    waiting = sorted(sessions.values(), key=lambda some: some[0].session)
    rng.shuffle(waiting)
    active, out = [waiting.pop() for _ in range(min(6, len(waiting)))], []
    while active and len(out) < count:
        turn = rng.randrange(len(active))
        out.append(active[turn].pop(0))
        if not active[turn]:
            active[turn : turn + 1] = [waiting.pop()] if waiting else []
    return out


@asynccontextmanager
async def engine(kind: str, era: Era, blocks: int, longest: int) -> AsyncIterator[str]:
    if kind == "embedded":
        from headway.simulator.engine import EngineSettings
        from headway.simulator.holdings import CacheLayout
        from headway.simulator.profiles import FrontEnd, Profile
        from headway.simulator.scheduler import SchedulerSettings
        from headway.simulator.server import start
        from headway.simulator.steps import StepModel

        layout = CacheLayout(blocks=blocks, block_size=era.block, state_groups=era.states, max_model_len=longest)
        settings = EngineSettings(
            version=era.version, layout=layout, scheduler=SchedulerSettings(max_num_batched_tokens=2048, max_num_seqs=8),
            steps=StepModel(a=0.001, b=2e-6, e=0.001),
        )  # fmt: skip
        server = await start(Profile("replay", "", settings, FrontEnd(0.0, 0.0, 0.0)))
        try:
            yield server.url
        finally:
            await server.close()
        return
    from headway.lab.install import install
    from headway.lab.model import model
    from headway.lab.vllm import serve_vllm

    python = install()
    arguments = (
        "--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--enable-prefix-caching",
        "--num-gpu-blocks-override", str(blocks), "--max-model-len", str(longest), *era.arguments,
    )  # fmt: skip
    log = Path(tempfile.gettempdir()) / f"index-replay-{era.name}.log"
    async with serve_vllm(python, model(era.model, python), arguments, log_path=log) as url:
        yield url


async def replay(kind: str, era: Era, calls: Sequence[Call], scale: float, fits: float, policy: str) -> dict[str, Any]:
    sizes: dict[str, float] = {}
    for call in calls:
        sizes[call.session] = max(sizes.get(call.session, 0.0), call.input_tokens / scale)
    longest = int(max(sizes.values()) * 1.1) + 512
    working = sum(sizes.values())
    # The longest must fit, and with recurrent states vLLM wants room for twice as much.
    blocks = max(int(fits * working / era.block), (2 if era.states else 1) * (longest // era.block) + 16)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "decisions"
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(engine(kind, era, blocks, longest))
            served = await stack.enter_async_context(
                gateway(url, policy, gap=60.0 if policy == "passthrough" else 0.1, extra=["--decision-log", str(log)])
            )
            http = await stack.enter_async_context(aiohttp.ClientSession())
            await learned(http, served, 60.0)
            usage = []
            sessions: dict[str, Session] = {}
            for number, call in enumerate(calls):
                messages = sessions.setdefault(call.session, Session(call.session, scale)).messages(call)
                body = {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
                async with http.post(served.url + "/v1/chat/completions", json=body) as answer:
                    got = json.loads(await answer.read())
                    if answer.status != 200:
                        raise UsageError(f"call {number}: HTTP {answer.status}: {str(got)[:200]}")
                usage.append(got["usage"])
                if number % 25 == 24:
                    print(f"{era.name}: {number + 1} of {len(calls)} calls", file=sys.stderr)
        arrived = [
            record
            for line in log.read_text().splitlines()
            if (record := json.loads(line))["e"] == "arrive" and record["prefills"]
        ]
    return judge(era, calls, usage, arrived, blocks, working)


def judge(
    era: Era,
    calls: Sequence[Call],
    usage: Sequence[dict[str, Any]],
    arrived: Sequence[dict[str, Any]],
    blocks: int,
    working: float,
) -> dict[str, Any]:
    if len(arrived) != len(calls):
        raise UsageError(f"{len(arrived)} requests in the decision log where {len(calls)} were sent")
    rows, lost = [], 0
    for call, said, record in zip(calls, usage, arrived, strict=True):
        cached = (said.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        actual, predicted = said["prompt_tokens"] - cached, record["uncached"]
        off = abs(predicted - actual)
        rows.append(
            {"session": call.session, "prompt": said["prompt_tokens"], "cached": cached, "uncached": actual,
             "predicted": predicted, "right": off <= max(TOLERANCE_TOKENS, TOLERANCE_PART * actual)}
        )  # fmt: skip
    seen: dict[str, int] = {}
    for row in rows:
        before = seen.get(row["session"], 0)
        lost += before > 0 and row["cached"] + 1024 < min(before, row["prompt"])
        seen[row["session"]] = row["prompt"]
    errors = sorted(abs(row["predicted"] - row["uncached"]) for row in rows)
    naive = [max(TOLERANCE_TOKENS, TOLERANCE_PART * r["uncached"]) >= r["prompt"] - r["uncached"] for r in rows]
    return {
        "era": era.name, "blocks": blocks, "block": era.block, "kv_part_of_sessions": round(blocks * era.block / working, 2),
        "calls": len(rows), "right": round(sum(row["right"] for row in rows) / len(rows), 4),
        "median_error": statistics.median(errors), "p95_error": errors[int(0.95 * (len(errors) - 1))],
        "right_without_index": round(sum(naive) / len(rows), 4),
        "turns_that_found_less_than_their_session_had": lost, "rows": rows,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--engine", choices=("embedded", "vllm"), default="embedded")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--scale", type=float, default=24.0, help="prompts are shrunk by this")
    parser.add_argument("--fits", type=float, default=0.4, help="part of all sessions' longest prompts that the KV cache holds")
    parser.add_argument("--policy", default="passthrough")
    parser.add_argument("--only", action="append", choices=[era.name for era in ERAS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for prefix-index-ENGINE.json")
    parser.add_argument("--rows", action="store_true", help="print the wrong predictions")
    args = parser.parse_args()
    calls = interleaved(read(args.traces), args.calls, args.seed)
    document: dict[str, Any] = {
        "schema": "headway.prefix-index/1", "engine": args.engine, "scale": args.scale, "fits": args.fits, "policy": args.policy,
        "seed": args.seed, "eras": [],
    }  # fmt: skip
    for era in ERAS:
        if args.only and era.name not in args.only:
            continue
        result = asyncio.run(replay(args.engine, era, calls, args.scale, args.fits, args.policy))
        document["eras"].append(result)
        print({key: value for key, value in result.items() if key != "rows"})
        for number, row in enumerate(result["rows"] if args.rows else ()):
            if not row["right"]:
                print("  ", number, row)
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"prefix-index-{args.engine}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
    return 0 if all(era["right"] >= WANTED for era in document["eras"]) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadwayError as error:
        print(f"index_replay: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
