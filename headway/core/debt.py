"""Token debt: what live answers are owed while prefills run.

From the moment prefill work and a live answer meet (an *overlap*), each answer is owed `share` of its solo rate.
Prefill may be granted when the worst-off answer is owed nothing. No duty cycle: what was received is what counts.

Invariants
----------
1. An answer's solo rate is learned from outputs with no prefill in flight between them; those outside any overlap count
   most, since the steps after a piece are not quite those of an engine left alone. A change of the engine's speed is followed.
2. Debt grows only while an overlap is open, and not for an answer that is silent although nothing is being
   prefilled (a tool parser that buffers is not starved). It outlives the overlap until it is paid.
3. Credit is earned only within an overlap, and is bounded by `credit` seconds of entitlement, so that a quiet stretch
   cannot be spent on a burst later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.rate import MEMORY, Rate
from headway.core.steps import median

PRIOR = 24
"""Outputs that the usual rate of answers stands for, beside an answer's own."""
SETTLED = 48
"""Outputs outside overlaps after which an answer's own rate needs no other."""
DRIFTED = 1.3
"""Factor between the latest rate and the believed one, either way, at which the engine's speed is taken to have changed."""
WATCHED = 24
"""Outputs between prefills after which the latest rate can tell so."""
LATEST = 12
"""Outputs over which the latest rate is averaged."""
SILENT = 4.0
"""An answer whose last output is older than this many of its own solo gaps, nothing being prefilled, is silent."""


@dataclass(slots=True)
class Victim:
    """One live answer."""

    first: float
    last: float
    share: float
    """Part of its solo rate that it is owed; 0 for one that is not protected."""
    owed: float = 0.0
    """Tokens owed; negative is credit."""
    owed_then: float = 0.0
    """What it was owed at its latest output."""
    settled: float = 0.0
    """Time up to which `owed` is accounted."""
    clean: Rate = field(default_factory=Rate)
    """Outside any overlap."""
    idle: Rate = field(default_factory=Rate)
    """Within an overlap, between prefills."""
    latest: Rate = field(default_factory=lambda: Rate(memory=LATEST))
    """Both, over a short time: tells when the engine's speed has changed."""
    changing: bool = False
    """The latest rate was believed not long ago."""
    longest: float = 0.0
    """Longest gap since the last `take_gap`, seconds."""
    got: float = 0.0
    """Tokens since then."""
    recent: list[float] = field(default_factory=list)


class DebtLedger:
    """The live answers of one engine and what they are owed."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.victims: dict[str, Victim] = {}
        self.protected = 0
        """Of them, those that are owed anything."""
        self.highest = 0.0
        """Largest share that any of them is owed."""
        self.credit = 0.25
        """Seconds of entitlement that an answer may be ahead at most."""
        self.told: float | None = None
        """Solo rate of every answer, tokens a second, where the caller measures it: none is learned then."""
        self._usual: dict[int, float] = {}
        """Usual solo rate of an answer, by how many decode beside each other."""
        self._open = False
        self._prefills = 0
        self._quiet_since = float("-inf")

    def retarget(self, share: float) -> None:
        """Another share from now on, for those that live too."""
        self.share = share
        for victim in self.victims.values():
            victim.share = share
        self.protected, self.highest = (len(self.victims), share) if share > 0 and self.victims else (0, 0.0)

    # -- what happens -----------------------------------------------------------------------------

    def open(self, now: float) -> None:
        """Prefill work waits or runs."""
        if not self._open:
            self._open = True
            for victim in self.victims.values():
                victim.owed, victim.settled = max(0.0, victim.owed), now

    def close(self, now: float) -> None:
        """No prefill work is left."""
        self._settle_all(now)
        self._open = False

    def prefill_began(self, now: float) -> None:
        self._settle_all(now)
        self._prefills += 1

    def prefill_ended(self, now: float) -> None:
        self._settle_all(now)
        self._prefills -= 1
        self._quiet_since = now

    def join(self, now: float, id: str, kept_waiting: float = 0.0, share: float | None = None) -> None:
        """`id` gave its first output. `kept_waiting`: seconds that others' prefill added to its own time to first token; it is
        owed its share of them too. `share`: its own, where it is not that of all."""
        victim = self.victims[id] = Victim(now, now, self.share if share is None else share, settled=now)
        victim.owed = victim.share * (self.rate(victim) or 0.0) * kept_waiting
        self.protected += victim.share > 0
        self.highest = max(self.highest, victim.share)

    def output(self, now: float, id: str, tokens: int = 1) -> float | None:
        """`id` gave `tokens` tokens. Returns the solo seconds a token, when this was a solo gap."""
        return self._one(self.victims[id], now, tokens)

    def _one(self, victim: Victim, now: float, tokens: float) -> float | None:
        gap = now - victim.last
        self._settle(victim, now)
        victim.owed -= tokens
        victim.got += tokens
        self._bound(victim)
        victim.owed_then = victim.owed
        victim.longest = max(victim.longest, gap)
        solo = self._prefills == 0 and victim.last >= self._quiet_since and gap > 0
        victim.last = now
        if not solo or self.told is not None or self._is_pause(victim, gap / tokens):
            return None
        self._learn(victim, tokens, gap, 1)
        return gap / tokens

    def _learn(self, victim: Victim, tokens: float, gap: float, times: int) -> None:
        """So many solo gaps of `tokens` tokens each."""
        (victim.idle if self._open else victim.clean).add(tokens, gap, times)
        victim.latest.add(tokens, gap, times)
        for _ in range(min(times, 2)):  # twice: see `_follow`
            if victim.latest.outputs >= WATCHED:
                self._follow(victim)
        clean, beside = victim.clean.value, len(self.victims)
        if not self._open and clean is not None and victim.clean.outputs >= PRIOR:
            before = self._usual.get(beside, clean)
            self._usual[beside] = clean + (before - clean) * (1.0 - 1.0 / MEMORY) ** times

    def outputs(self, id: str, count: int, tokens: int, first: float, last: float) -> list[tuple[float, int]]:
        """`count` outputs, `tokens` together, evenly from `first` to `last`: (solo seconds a token, how many times) of those that
        were solo gaps. Nothing else may have happened in between."""
        victim = self.victims[id]
        solo: list[tuple[float, int]] = []
        each = tokens / count
        gap = (last - first) / (count - 1) if count > 1 else 0.0
        done = 0
        # One by one until a gap says nothing new: the first one has what was before it, and pauses are told by the latest few.
        while done < count and not (done >= 1 and len(victim.recent) >= 5 and gap / each <= 3.0 * median(victim.recent)):
            seconds = self._one(victim, first + done * gap, each)
            if seconds is not None:
                solo.append((seconds, 1))
            done += 1
        left = count - done
        if left < 1:
            return solo
        victim.last = last  # never silent in between
        self._settle(victim, last)
        victim.owed -= left * each
        victim.got += left * each
        self._bound(victim)
        victim.longest = max(victim.longest, gap)
        victim.recent = (victim.recent + [gap / each] * min(left, 9))[-9:]
        if self._prefills == 0 and gap > 0 and self.told is None:
            self._learn(victim, each, gap, left)
            solo.append((gap / each, left))
        return solo

    def _follow(self, victim: Victim) -> None:
        """The engine became slower or faster while prefill is always there, so that nothing outside an overlap shows it: believe
        the latest rate."""
        latest, believed = victim.latest.value, self.rate(victim)
        if latest is None or believed is None:
            return
        drifted = not believed / DRIFTED < latest < believed * DRIFTED
        if not drifted and not victim.changing:
            return
        # Seen first when the latest rate was still on its way: looked at once more.
        victim.changing = drifted
        change = latest / believed
        for rate in (victim.clean, victim.idle):
            rate.tokens *= change
        self._usual = {beside: usual * change for beside, usual in self._usual.items()}
        victim.owed *= min(change, 1.0)  # what it was owed at a speed that the engine no longer has
        victim.latest = Rate(memory=LATEST)

    def forgive(self, now: float) -> None:
        """The share yields: what is owed now is not paid back later, when it holds again."""
        self._settle_all(now)
        for victim in self.victims.values():
            victim.owed = min(victim.owed, 0.0)

    def leave(self, id: str) -> None:
        victim = self.victims.pop(id, None)
        if victim is not None and victim.share > 0:
            self.protected -= 1
            self.highest = max((other.share for other in self.victims.values()), default=0.0)

    # -- what is asked ----------------------------------------------------------------------------

    def rate(self, victim: Victim) -> float | None:
        """Solo rate, tokens a second. What the answer showed outside overlaps counts, with the usual rate of as many answers for
        as long as that is little; and what it shows between prefills, the less the more is known from outside."""
        if self.told is not None:
            return self.told
        usual, clean, idle = self._usual.get(len(self.victims)), victim.clean.value, victim.idle.value
        seen = victim.clean.outputs
        if clean is not None and usual is not None:
            clean = (seen * clean + PRIOR * usual) / (seen + PRIOR)
        outside = clean or usual
        if outside is None or idle is None or seen >= SETTLED:
            return outside or idle
        weight = max(0.5, seen / SETTLED)
        return weight * outside + (1.0 - weight) * idle

    def clear_at(self, now: float, ahead: float = 0.0) -> float:
        """Earliest time (seconds, >= now) at which the worst-off answer is owed nothing, if all decode at their solo
        rate until then. `ahead`: seconds of entitlement to leave in hand beside that. The share is below 1."""
        self._settle_all(now)
        latest = now
        for victim in self.victims.values():
            if victim.share <= 0:
                continue
            rate = self.rate(victim)
            if rate is None:
                # Nothing to measure against yet: a few outputs decide, and a silent answer cannot hold things up.
                latest = max(latest, min(victim.first + 0.25, now + 0.05))
                continue
            owed = victim.owed + victim.share * rate * ahead
            if owed <= 0:
                continue
            silent_at = self._silent_at(victim, rate)
            if now > silent_at:
                victim.owed = min(victim.owed, victim.owed_then)  # it was not the prefill that kept it from speaking
            else:
                # If it says nothing by then, it is silent, and holds nothing up.
                latest = max(latest, min(now + owed / (rate * (1.0 - victim.share)), silent_at + 1e-4))
        return latest

    @property
    def prefilling(self) -> bool:
        """Whether any prefill is in the engine."""
        return self._prefills > 0

    def take_gap(self, now: float) -> float | None:
        """Longest gap of any answer since the last call, seconds. The one under way counts: an answer's output and the piece
        that delayed it leave the engine in one step, and either may be seen first. None without an answer."""
        longest = None
        for victim in self.victims.values():
            longest = max(longest or 0.0, victim.longest, now - victim.last)
            victim.longest = victim.got = 0.0
        return longest

    def decoded(self, since: float) -> float | None:
        """Seconds' worth of tokens, at their solo rate, that the answers live since `since` got since the last `take_gap`, the
        median of them. None without such an answer."""
        got = [victim.got / rate for victim in self.victims.values() if victim.first < since and (rate := self.rate(victim))]
        return median(got) if got else None

    # -- accounting -------------------------------------------------------------------------------

    def _settle_all(self, now: float) -> None:
        for victim in self.victims.values():
            self._settle(victim, now)

    def _settle(self, victim: Victim, now: float) -> None:
        start = victim.settled
        victim.settled = max(victim.settled, now)
        if not self._open or now <= start:
            return
        rate = self.rate(victim)
        if rate is None:
            return
        end = now
        if self._prefills == 0:
            end = min(now, self._silent_at(victim, rate))
        victim.owed += victim.share * rate * max(0.0, end - start)

    def _bound(self, victim: Victim) -> None:
        if victim.owed >= 0.0:
            return  # no credit
        rate = self.rate(victim) or 0.0
        victim.owed = max(victim.owed, -victim.share * rate * self.credit)

    def _silent_at(self, victim: Victim, rate: float) -> float:
        """When it will be silent if it says nothing until then; never while a prefill runs, which may be why."""
        return max(victim.last, self._quiet_since) + SILENT / rate if self._prefills == 0 else float("inf")

    def _is_pause(self, victim: Victim, per_token: float) -> bool:
        """A gap far beyond this answer's usual one is a pause (a buffering parser), not its decode rate."""
        victim.recent.append(per_token)
        if len(victim.recent) > 9:
            del victim.recent[0]
        recent = victim.recent
        # The least first: nearly every gap is within six of it, and needs no median.
        return len(recent) >= 5 and per_token > 6.0 * min(recent) and per_token > 6.0 * median(recent)
