"""An engine for the simulator, of a measurement or of a profile by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.advisor.plan.estimate import Estimates, estimates
from headway.advisor.plan.measurement import Measurement
from headway.advisor.versions import parse_version, show
from headway.core.steps import StepModel
from headway.errors import UsageError
from headway.simulator import steps
from headway.simulator.engine import Engine, EngineSettings, SettingsError
from headway.simulator.holdings import CacheLayout
from headway.simulator.profiles import PROFILES, Profile
from headway.simulator.rules import rules_for
from headway.simulator.scheduler import SchedulerSettings

BUDGET = 2048
"""vLLM's default below 70 GiB of GPU memory (8,192 from there)."""
BUDGET_LARGE = 8192
BLOCK = 16
MOST = 262_144
"""Longest prompt and answer together, tokens: what is tried here must not end for lack of room."""


@dataclass(frozen=True, slots=True)
class Rig:
    """`overhead`: seconds that HTTP adds to a request, both ways together. `estimates`: None of a profile."""

    name: str
    engine: EngineSettings
    model: StepModel
    overhead: float
    estimates: Estimates | None = None
    notes: tuple[str, ...] = ()

    @property
    def block(self) -> int:
        return self.engine.layout.block_size

    @property
    def hybrid(self) -> bool:
        return self.engine.layout.state_groups > 0

    def with_engine(self, **scheduler: int) -> Rig:
        return replace(self, engine=replace(self.engine, scheduler=replace(self.engine.scheduler, **scheduler)))  # type: ignore[arg-type]


def chunk_of(engine: EngineSettings, answers: int = 1) -> int:
    """Most prompt tokens of a step beside so many answers: what the budget leaves, in whole blocks of a hybrid model."""
    left = engine.scheduler.max_num_batched_tokens - answers
    block = engine.layout.block_size
    if engine.layout.state_groups and engine.layout.caching and left >= block:
        left = left // block * block
    cap = engine.scheduler.long_prefill_token_threshold
    return min(left, cap) if cap else left


def named(name: str, version: str | None, budget: int | None) -> Rig:
    """A profile. UsageError, naming the known ones, for an unknown name."""
    profile = _profile(name)
    engine, model = profile.engine, profile.engine.steps
    engine = _configured(engine, version, budget)
    overhead = profile.front_end.request_s + 14_000 * profile.front_end.id_token_s
    # What a piece lasts beyond its prefill: HTTP, the step that it finds under way and its own second one.
    h = overhead + 1.5 * model.a
    core = StepModel(a=model.a, e=model.e + model.p, b=model.b + model.e_token, h=h, c=model.b_slope)
    notes = (f"this profile cannot give back all of its source: {profile.contradiction}",) if profile.contradiction else ()
    return Rig(name, engine, core, overhead, notes=notes)


def measured(seen: Measurement, version: str | None, budget: int | None, block: int | None, like: str | None) -> Rig:
    """`like`: the profile whose cache layout stands for what a bench document does not say; `block`: its block size."""
    told = version or _number(seen.version)
    if not told:
        where, said = ", ".join(seen.sources), f" ({seen.version!r} is none)" if seen.version else ""
        raise UsageError(f"{where}: no version of the engine in it{said}; say --engine-version, for instance 0.32.0")
    notes = []
    if like is not None:
        layout = _profile(like).engine.layout
    else:
        layout = CacheLayout(blocks=4 * MOST // (block or BLOCK), block_size=block or BLOCK, max_model_len=MOST)
        if block is None:
            notes.append(
                f"a dense model with blocks of {BLOCK} tokens is taken, since bench documents do not say; "
                "else say --like PROFILE or --block N"
            )
    known = budget or seen.budget
    if known is None:
        notes.append(f"a budget of {BUDGET} tokens is taken (vLLM's default under 70 GiB of memory); else say --budget N")
    scheduler = SchedulerSettings(max_num_batched_tokens=known or BUDGET)
    engine = EngineSettings(told, layout, scheduler, steps.StepModel(a=0.0, b=0.0))
    engine = _configured(engine, told, known)
    found = estimates(seen, chunk_of(engine) if known else None)
    m = found.model
    engine = replace(engine, steps=steps.StepModel(a=m.a, b=m.b, b_slope=m.c, e=m.e))
    return Rig(", ".join(seen.sources), engine, m, found.overhead, found, (*found.notes, *notes))


def _number(text: str | None) -> str | None:
    """0.32.0 of 'simulated-0.32.0' or '0.32.0+cpu'."""
    found = parse_version(text)
    return show(found) if found else None


def _configured(engine: EngineSettings, version: str | None, budget: int | None) -> EngineSettings:
    if version is not None:
        try:
            rules_for(version)
        except ValueError as error:
            raise UsageError(f"--engine-version: {error}") from None
        engine = replace(engine, version=version)
    if budget is not None:
        engine = replace(engine, scheduler=replace(engine.scheduler, max_num_batched_tokens=budget))
    try:
        Engine(engine)
    except SettingsError as error:
        where = f"--budget {budget}: " if budget is not None else ""
        raise UsageError(f"{where}vLLM {engine.version} does not start: {error}") from None
    return engine


def _profile(name: str) -> Profile:
    if name not in PROFILES:
        raise UsageError(f"{name}: neither a file nor a profile; profiles: {', '.join(PROFILES)}")
    return PROFILES[name]
