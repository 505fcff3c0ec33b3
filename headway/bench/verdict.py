"""What makes one run void, and what its streams suffered: the same rules for every scenario."""

from __future__ import annotations

from collections.abc import Sequence

from headway.bench.client import Stream
from headway.bench.context import Run, Settings, Stall
from headway.bench.lag import LagMeter
from headway.bench.overlap import too_late
from headway.bench.window import Window, burst_share, gaps, median, stall_threshold

CACHED_AT_MOST = 0.05  # of a salted prompt: a chat template's first lines may be known
SHOWN = 20  # stalls of a run


def begin(scenario: str, rep: int, streams: list[tuple[str, Stream]], lag: LagMeter, settings: Settings) -> Run:
    """A run whose figures are still to be read; void already when a stream failed or the client was late."""
    run = Run(scenario, rep, {}, streams, lag_p99_s=lag.p99_s, lag_max_s=lag.max_s)
    for name, answer in streams:
        if answer.error or not answer.events:
            run.void = f"void: the {name} failed: {answer.error or 'no token'}"
            return run
    longest = max((gap for _, answer in streams for gap in gaps(answer.events)), key=lambda gap: gap.seconds, default=None)
    held = lag.inside(longest.start, longest.end) if longest else 0.0
    run.void = too_late(lag.p99_s, held, longest.seconds if longest else 0.0, settings.lag_limit_s)
    if run.void is None and any(len(a.events) > 8 and burst_share(a.events) > 0.5 for _, a in streams):
        run.void = "void: more than half of a stream's tokens came within 1 ms: a burst, not a stream"
    return run


def check_cache(run: Run, settings: Settings, size: int, classes: Sequence[str] = ("intruder",)) -> None:
    """Salted prompts must have been computed; a gateway's pieces find each other and are left out."""
    if run.void is not None or settings.pieces:
        return
    for name, answer in run.streams:
        if name in classes and (cached := answer.cached_tokens) and cached > CACHED_AT_MOST * (answer.prompt_tokens or size):
            total = answer.prompt_tokens or size
            run.void = f"void: {cached} of {total} prompt tokens were cached: the salt did not defeat the prefix cache"
            return


def find_stalls(run: Run, solo_gap_s: float | None, classes: Sequence[str]) -> float | None:
    """Fill in the longest stalls of these classes; returns the seconds stalled in all of them. `solo_gap_s`: median gap
    undisturbed; None takes the median of the streams themselves.
    """
    found = []
    usual = solo_gap_s or median([gap.seconds for name, a in run.streams if name in classes for gap in gaps(a.events)])
    if usual is None:
        return None
    origin, limit = min(answer.submitted for _, answer in run.streams), stall_threshold(usual)
    for number, (name, answer) in enumerate(run.streams):
        if name not in classes:
            continue
        for gap in gaps(answer.events):
            if gap.seconds > limit:
                during = any(gap.end > tag.start and gap.start < tag.end for tag in run.windows)
                found.append(Stall(number, name, gap.start - origin, gap.seconds, during))
    run.stalls = sorted(found, key=lambda stall: -stall.seconds)[:SHOWN]
    return sum(stall.seconds for stall in found)


def prefill_windows(streams: Sequence[Stream]) -> list[Window]:
    """Submission to first token of these, merged where they touch, in order of time."""
    out: list[Window] = []
    for start, end in sorted((a.submitted, a.events[0].at) for a in streams if a.events):
        if out and start <= out[-1].end:
            out[-1] = Window(out[-1].start, max(end, out[-1].end), True)
        else:
            out.append(Window(start, end, True))
    return out
