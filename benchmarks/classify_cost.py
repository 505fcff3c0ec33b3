"""CPU that a 430 KB chat body costs the gateway before it decides: parse, classify, look up and update the text index.

    python benchmarks/classify_cost.py [--kb 430] [--json FILE]

Minimum and median of 400 of each part: on a machine that does other things too, the minimum is what the code costs, and
the median what the neighbours make of it. Exit code 1 when all of it takes 0.5 ms of CPU or more at the minimum.
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


def cpu_ms(work: Callable[[], object], repetitions: int = 400) -> tuple[float, float]:
    """(least, median) CPU time of this process, milliseconds."""
    times = []
    for _ in range(repetitions):
        begun = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - begun) / 1e6)
    return min(times), statistics.median(times)


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
    parts["all"] = (sum(least for least, _ in parts.values()), sum(median for _, median in parts.values()))
    print(f"{len(data)} bytes, CPU, least and median of 400:")
    for name, (least, median) in parts.items():
        print(f"  {name:<8} {least:.3f} {median:.3f} ms")
    if args.json:
        named = {name: {"least": least, "median": median} for name, (least, median) in parts.items()}
        args.json.write_text(json.dumps({"schema": "headway.classify-cost/2", "bytes": len(data), "ms": named}) + "\n")
    return 0 if parts["all"][0] < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
