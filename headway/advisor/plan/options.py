"""Settings and policies worth trying for a target, and which of them this engine version refuses or ignores.

To add one: a function in MAKERS. Every option goes through the rules of `headway lint` and the checks of the engine itself, so
that none is offered that the version refuses, does not know, or lets do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil, isfinite

from headway.advisor.deployment import Deployment
from headway.advisor.lint import check
from headway.advisor.plan.rig import Rig, chunk_of
from headway.advisor.versions import parse_version
from headway.core.targets import Targets
from headway.simulator.engine import Engine, SettingsError

ROOM = 64
"""Tokens of the budget that are left for answers beside a whole block: a budget of just a block serialises."""
SMALLEST = 256
"""Smallest budget that is tried for a dense model, tokens."""


@dataclass(frozen=True, slots=True)
class Option:
    """`engine`: vLLM options that differ from the present ones; `policy`: of the gateway, None without one."""

    name: str
    engine: dict[str, int] = field(default_factory=dict)
    policy: str | None = None
    targets: Targets | None = None

    @property
    def words(self) -> str:
        """What to type."""
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in self.engine.items()]
        if self.policy is None or self.targets is None:
            return " ".join(flags) or "as it is"
        t = self.targets
        shown = f"headway serve --policy {self.policy} --share {t.share:g} --gap {t.gap:g} --wait {t.wait:g}"
        return f"{' '.join(flags)}; {shown}" if flags else shown


@dataclass(frozen=True, slots=True)
class Refused:
    option: Option
    why: str


def options(rig: Rig, targets: Targets) -> tuple[list[Option], list[Refused]]:
    """(those to try, those that this version refuses or that do nothing in it)."""
    good: list[Option] = []
    bad: list[Refused] = []
    for make in MAKERS:
        for option in make(rig, targets):
            if any(option.words == other.words for other in (*good, *(one.option for one in bad))):
                continue
            why = refusal(rig, option)
            if why is None:
                good.append(option)
            else:
                bad.append(Refused(option, why))
    return good, bad


def refusal(rig: Rig, option: Option) -> str | None:
    """Why not to set this, or None."""
    scheduler = rig.engine.scheduler
    told: dict[str, object] = {
        "max_num_batched_tokens": scheduler.max_num_batched_tokens, "max_num_seqs": scheduler.max_num_seqs,
        "enable_prefix_caching": rig.engine.layout.caching, "block_size": rig.block, **option.engine,
    }  # fmt: skip
    if rig.hybrid:
        told["mamba_cache_mode"] = "align"
    one = Deployment("plan", "vllm", told, version=parse_version(rig.engine.version))
    for finding in check(one):
        if finding.level in ("error", "warning") and finding.option in option.engine:
            return f"{finding.rule}: {finding.what}"
    try:
        Engine(rig.with_engine(**option.engine).engine)
    except SettingsError as error:
        return str(error)
    return None


def _present(rig: Rig, targets: Targets) -> Iterator[Option]:
    yield Option("present settings, no gateway")


def _gateway(rig: Rig, targets: Targets) -> Iterator[Option]:
    """Until a first gap has shown e, the gateway takes its pieces for that much shorter: a gap target with room for it keeps even
    the first ones within what is asked for."""
    yield Option("paced by the gateway", policy="pace", targets=targets)
    if 0.02 * targets.gap < rig.model.e < 0.8 * targets.gap:
        room = float(f"{targets.gap - rig.model.e:.2g}")
        yield Option("paced, with room for e", policy="pace", targets=replace(targets, gap=room))
    yield Option("held by the gateway", policy="hold", targets=targets)


def _budgets(rig: Rig, targets: Targets) -> Iterator[Option]:
    """The largest budget whose chunk keeps the gap, and half the present one; where the present one is a trap, the way out."""
    present = rig.engine.scheduler.max_num_batched_tokens
    if refusal(rig, Option("", {"max_num_batched_tokens": present})) is not None:
        out = {"max_num_batched_tokens": budget_for(rig, max(rig.block, rig.model.tokens_within(targets.gap)))}
        yield Option("out of the trap", out)
        yield Option("out of the trap, and paced", out, "pace", targets)
        return
    for name, tokens in (("a budget for the gap", rig.model.tokens_within(targets.gap)), ("half the budget", present // 2)):
        budget = budget_for(rig, tokens)
        if budget < present:
            yield Option(name, {"max_num_batched_tokens": budget})


def _thresholds(rig: Rig, targets: Targets) -> Iterator[Option]:
    tokens = rig.model.tokens_within(targets.gap)
    cap = max(rig.block, tokens // rig.block * rig.block) if rig.hybrid else max(SMALLEST, tokens // 64 * 64)
    if cap < rig.engine.scheduler.max_num_batched_tokens:
        yield Option("a threshold for the gap", {"long_prefill_token_threshold": cap})


def _intervals(rig: Rig, targets: Targets) -> Iterator[Option]:
    """As many decode-only steps as the share needs: f = N*a / (N*a + mixed step - a)."""
    if not 0 < targets.share < 1:
        return
    for option in (Option("", {}), *_budgets(rig, targets)):
        extra = rig.model.e + rig.model.prefill(chunk_of(rig.with_engine(**option.engine).engine))
        needed = targets.share / (1 - targets.share) * extra / rig.model.a
        if isfinite(needed) and 2 <= ceil(needed) <= 1000:
            name = "an interval for the share" + (f" with {option.name}" if option.name else "")
            yield Option(name, {**option.engine, "prefill_schedule_interval": ceil(needed)})


def budget_for(rig: Rig, tokens: int) -> int:
    """The budget that makes chunks of at most `tokens`; of a hybrid model whole blocks, with room for answers beside them."""
    if rig.hybrid:
        return max(1, tokens // rig.block) * rig.block + ROOM
    return max(SMALLEST, rig.engine.scheduler.max_num_seqs, tokens // 64 * 64)


MAKERS: tuple[Callable[[Rig, Targets], Iterator[Option]], ...] = (_present, _gateway, _budgets, _thresholds, _intervals)
