"""CPU that a 430 KB chat body costs the gateway before it decides: parse, classify, look up and update the text index.

    python benchmarks/classify_cost.py [--kb 430] [--json FILE]

Exit code 1 when parse + classify + index take 0.5 ms of CPU or more (median over the repetitions).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headway.bench.prompts import WORDS
from headway.core.textindex import PromptText, TextIndex
from headway.gateway.dialects.ask import read_chat

LIMIT_MS = 0.5
RATIO = 4.0


def body(kilobytes: int) -> bytes:
    """An agent's turn: a system prompt, tools, and tool results of some 8 KB each."""
    rng = random.Random(1)
    messages = [{"role": "system", "content": " ".join(rng.choices(WORDS, k=800))}]
    while len(json.dumps(messages)) < kilobytes * 1000:
        messages.append({"role": "assistant", "content": "Reading the next file.\n"})
        messages.append({"role": "user", "content": "\n".join(" ".join(rng.choices(WORDS, k=12)) for _ in range(140))})
    tools = [{"type": "function", "function": {"name": f"tool{n}", "parameters": {"type": "object"}}} for n in range(20)]
    return json.dumps({"model": "m", "messages": messages, "tools": tools, "stream": True, "max_tokens": 1000}).encode()


def cpu_ms(work: Callable[[], object], repetitions: int = 200) -> float:
    """Median CPU time of this process, milliseconds."""
    times = []
    for _ in range(repetitions):
        begun = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - begun) / 1e6)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kb", type=int, default=430)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    data = body(args.kb)
    index = TextIndex()
    index.block = 16
    for n in range(50):  # other conversations are held as well
        other = PromptText(str(n).encode(), data[: 40_000 + n])
        index.answered(other, index.look(other, RATIO), 10_000, 0)
    ask = read_chat(data)
    prompt = PromptText(ask.seed, ask.text, ask.size)
    guess = index.look(prompt, RATIO)
    tokens = int(ask.size / RATIO)
    index.answered(prompt, guess, tokens, 0)
    guess = index.look(prompt, RATIO)
    parts = {
        "parse": cpu_ms(lambda: read_chat(data)),
        "hash": cpu_ms(lambda: PromptText(ask.seed, ask.text, ask.size)),
        "look up": cpu_ms(lambda: index.look(prompt, RATIO)),
        "update": cpu_ms(lambda: index.answered(prompt, guess, tokens, guess.matched)),
    }
    parts["parse + classify + index"] = parts["parse"] + parts["hash"] + parts["look up"]
    parts["all"] = sum(parts[name] for name in ("parse", "hash", "look up", "update"))
    print(f"{len(data)} bytes, medians of 200, CPU:")
    for name, milliseconds in parts.items():
        print(f"  {name:<26} {milliseconds:.3f} ms")
    if args.json:
        args.json.write_text(json.dumps({"schema": "headway.classify-cost/1", "bytes": len(data), "ms": parts}) + "\n")
    return 0 if parts["all"] < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
