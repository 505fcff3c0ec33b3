"""What to measure when the facts prove no cause: the quantities that would decide, the most telling first.

A row is left out when one of its quantities is already told, or when nothing in the report points that way.
"""

# ruff: noqa: E501  (one row of a table a line)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.advisor.derived import Derived
from headway.advisor.evidence import UNDISTURBED
from headway.advisor.facts import Facts

When = Callable[[Facts, Derived], bool]


def _always(f: Facts, d: Derived) -> bool:
    return True


def _stalls(f: Facts, d: Derived) -> bool:
    """Not a report in which victims kept everything."""
    return not _undisturbed(f, d)


def _undisturbed(f: Facts, d: Derived) -> bool:
    return (d.share is not None and d.share >= UNDISTURBED) or d.gap == 0


def _waits(f: Facts, d: Derived) -> bool:
    return _undisturbed(f, d) or f.has("newcomer_wait") or bool(f.high("waiting")) or bool(f.says("one_after_another"))


def _unknown_turns(f: Facts, d: Derived) -> bool:
    return f.engine.schedule is None and _stalls(f, d)


def _turns(f: Facts, d: Derived) -> bool:
    return f.says("resend") is not None or f.has("answer_after") or f.has("client_timeout") or f.has("copies")


def _changed(f: Facts, d: Derived) -> bool:
    return f.series is not None


def _hybrid(f: Facts, d: Derived) -> bool:
    return f.engine.family == "vllm" and (f.engine.hybrid or _waits(f, d))


def _tried_options(f: Facts, d: Derived) -> bool:
    return bool(f.options) or bool(f.says("no_effect"))


def _text(f: Facts, d: Derived) -> bool:
    return f.says("corrupt") is not None or "temperature" in f.words


def _host(f: Facts, d: Derived) -> bool:
    return f.says("host") is not None or f.has("cpu_usage") or f.has("cpu_cores") or not f.prefill_seen


@dataclass(frozen=True, slots=True)
class Measure:
    """`known`: quantities of Facts, or CHUNK, VERSION, ENGINE, BLOCK; any of them makes the measurement needless."""

    known: tuple[str, ...]
    what: str
    when: When = _always


MEASURES: tuple[Measure, ...] = (
    Measure(("ENGINE",), "which engine it is (vLLM, SGLang, llama.cpp, ..)"),
    Measure(("solo_rate", "normal_gap", "victim_share"), "solo rate: tokens/s of one stream with nothing else running"),
    Measure(("overlap_rate", "longest_gap", "freeze", "generation_rate", "victim_share", "seconds_per_token"),
        "rate and longest gap of a running stream from the newcomer's submission to its first token"),
    Measure(("CHUNK",), "prefill tokens a step: --max-num-batched-tokens, --chunked-prefill-size or -b", _stalls),
    Measure(("ttft_alone", "prefill_rate"), "the long prompt alone: its uncached tokens and time to first token (3 runs)", _stalls),
    Measure(("ttft",), "the long prompt's time to first token beside the stream, to compare with 1/(1-f)", _stalls),
    Measure(("prompt_rate", "intruder_tokens", "prefill_batches"), "whether a prompt is computed meanwhile: prompt tokens/s and running requests in the log", _stalls),
    Measure(("prefill_batches",), "whether a step mixes prefill and decode: prefill and decode batches in the log", _unknown_turns),
    Measure(("slots", "waiting"), "slots and running requests (--max-num-seqs, -np): whether the two ran together at all", _waits),
    Measure(("BLOCK",), "the block size, and the budget beside it (log: \"Setting attention block size to\")", _hybrid),
    Measure(("newcomer_wait", "newcomer_tokens"), "how long a short newcomer waits, and the policy that holds it back", _waits),
    Measure((), "the same overlap with the option on and off, everything else equal", _changed),
    Measure(("preemptions", "kv_usage"), "vllm:num_preemptions_total (or retractions) and KV usage before and after"),
    Measure(("hit_rate", "cached_tokens"), "prefix cache hits of the second turn (prefix_cache_hits_total, cached_tokens)"),
    Measure(("swap_used", "ttft_change"), "the host meanwhile: CPU, swap, page faults; and whether TTFT alone changed", _host),
    Measure(("copies",), "identical requests in the access log, and the client's time limit against the wait", _turns),
    Measure(("corrupted",), "the answer's text at temperature 0 with and without the other request", _text),
    Measure(("VERSION",), "the engine's version and start options"),
    Measure((), "the option's effect alone: on and off in this version, with the same requests", _tried_options),
)  # fmt: skip


def what_to_measure(f: Facts, d: Derived) -> list[str]:
    """Measurements that would decide, for facts that prove nothing."""
    known = {name for name, values in f.numbers.items() if values}
    known |= {"CHUNK"} if f.chunk else set()
    known |= {"VERSION"} if f.engine.version else set()
    known |= {"ENGINE"} if f.engine.family != "other" or f.engine.schedule else set()
    known |= {"BLOCK"} if f.options.get("block_size") else set()
    return [m.what for m in MEASURES if not known & set(m.known) and m.when(f, d)]
