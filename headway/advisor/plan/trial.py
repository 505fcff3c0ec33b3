"""One overlap in virtual time, with the controller of the gateway and the scheduler of the engine: what an option would do.

A victim decodes; after its sixteenth token the long prompt arrives; until its first token the victim's share and longest gap
are taken, as `headway bench` takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from headway.advisor.plan.options import Option
from headway.advisor.plan.rig import Rig
from headway.core.targets import Targets
from headway.simulator.replay import Arrival, Replay, Story, prompt

VICTIM, AFTER = 38, 16


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds; `ttft` None: no first token within the trial's limit."""

    share: float
    gap: float
    ttft: float | None
    waited: float
    pieces: int


def alone(rig: Rig, tokens: int) -> float:
    """T0: seconds to the first token of the long prompt alone."""
    run = Replay(rig.engine, "passthrough", Targets(), overhead=rig.overhead)
    ttft = run.run([Arrival(0.0, "long", prompt(2, tokens), 2)])["long"].ttft
    if ttft is None:
        raise ValueError("the engine gives no answer to the prompt alone")
    return ttft


def trial(rig: Rig, option: Option, tokens: int, horizon: float, limit: float) -> Trial:
    """`horizon`: seconds within which the first token is expected; tried again with more, up to `limit`, where none comes."""
    tried = rig.with_engine(**option.engine) if option.engine else rig
    solo = 1 / rig.model.a
    while True:
        answer = min(int(1.2 * solo * (horizon + AFTER / solo)) + 256, rig.engine.layout.max_model_len - 2 * VICTIM)
        run = Replay(
            tried.engine, option.policy or "passthrough", option.targets or Targets(), overhead=rig.overhead, warm=_timed(tried)
        )
        begin = AFTER * rig.model.a + rig.overhead
        people = [Arrival(0.0, "victim", prompt(1, VICTIM), answer), Arrival(begin, "long", prompt(2, tokens), 2)]
        stories = run.run(people, until=begin + horizon)
        victim, long = stories["victim"], stories["long"]
        if long.ttft is not None or horizon >= limit or victim.ended is not None:
            return _seen(victim, long, begin, solo, begin + horizon)
        horizon = min(3 * horizon, limit)


def _timed(rig: Rig) -> list[tuple[int, float]]:
    """Pieces of one, two and four blocks, as the gateway's probe would have timed them."""
    unit = max(rig.block, 256)
    return [(unit * n, rig.model.piece(unit * n)) for n in (1, 2, 4, 1, 2, 4)]


def _seen(victim: Story, long: Story, begin: float, solo: float, limit: float) -> Trial:
    end = begin + long.ttft if long.ttft is not None else min(limit, victim.ended or limit)
    times = victim.outputs
    inside = sum(begin < t <= end for t in times)
    gaps = [y - x for x, y in pairwise(times) if y > begin and x < end]
    share = min(1.0, inside / (end - begin) / solo) if end > begin else 0.0
    return Trial(share, max(gaps, default=0.0), long.ttft, long.waited, long.pieces)
