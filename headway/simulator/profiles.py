"""Rigs by name: hardware, model and engine version as one set of figures for the simulator.

Each profile says where its figures come from and how well they give back what was measured. `a` to
`b_slope` are fields of `StepModel`. A piece of prompt of `p` tokens beside a decode takes a + e + e_token·p
+ b·p seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.simulator.engine import EngineSettings
from headway.simulator.families import FAMILIES
from headway.simulator.holdings import CacheLayout
from headway.simulator.rules import rules_for
from headway.simulator.scheduler import SchedulerSettings
from headway.simulator.steps import StepModel


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Seconds that the engine's one HTTP process spends on a request before the scheduler sees it.

    Text is tokenised (`text_token_s` a token); ids only have to be parsed (`id_token_s`). Requests wait for
    each other here.
    """

    request_s: float = 0.002
    text_token_s: float = 1e-6
    id_token_s: float = 1e-6


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    summary: str
    engine: EngineSettings
    front_end: FrontEnd = FrontEnd()
    kv_cache_dtype: str = "auto"
    #: What the source says that this profile cannot give back, in one sentence; empty if there is nothing.
    contradiction: str = ""


H200 = Profile(
    name="h200-qwen3.6-27b",
    summary="one H200, Qwen3.6-27B's architecture, fp8 KV, vLLM 0.25.1",
    # Measured, single runs, 28,623 uncached tokens beside one victim, no arm with the intruder alone:
    #   budget 8192 (chunks of 7,840): longest gap 743 ms, TTFT 2.8 to 2.9 s
    #   budget 2048 (chunks of 1,568): longest gap 183 ms, TTFT 3.0 to 3.3 s; the victim alone 66.2 tokens/s
    # a is one over the victim's rate. b_slope comes from another pair of arms on that engine, 28,623 and
    # 100,000 tokens: their cost a token differs by some 20 µs over 36,000 tokens of mean position. e and b
    # are then chosen for the two gaps and two TTFTs together. Given back: 743 and 183 ms, 2.77 and 3.26 s.
    # Four figures do not pin e, b and the front end down: e is good to about 10 ms.
    # Front end: a piece of about 14,000 ids was seen to last 70 to 100 ms beyond its prefill, of which
    # the step it finds running and its own second step make some 25 ms.
    engine=EngineSettings(
        version="0.25.1",
        layout=CacheLayout(blocks=1200, block_size=1568, state_groups=3, max_model_len=262144),
        scheduler=SchedulerSettings(max_num_batched_tokens=8192, max_num_seqs=256),
        steps=StepModel(a=0.0151, b=80.1e-6, b_slope=0.52e-9, e=0.020, a_ctx=0.4e-9, a_seq=0.05e-3),
    ),
    front_end=FrontEnd(request_s=0.015, text_token_s=2.5e-6, id_token_s=2.5e-6),
    kv_cache_dtype="fp8",
)

RTX3090_PAIR = Profile(
    name="2x3090-qwen3.6-27b",
    summary="two RTX 3090 (PCIe, 230 W, no P2P), Qwen3.6-27B INT4, TP 2, as calibrated by its users",
    # Prefill 1,446 tokens/s for prompts of 10k and 1,118 for 90k, read as whole-prompt means with chunks of
    # 1,568 and a step of 20.8 ms around each: 678 and 881 µs a token, 203 µs over 40,000 tokens of mean
    # position, so b_slope 5.07 ns and b 653 µs. Not used for the fit: about 830 tokens/s at 237k; this
    # gives 787. a: 48 tokens/s without speculative decoding.
    # e was not measured on this rig. One RTX 3090 with a 27B model and four decodes showed a gap of 130 ms +
    # 0.74 ms a token, so a + e is at most about that; 80 ms is taken. Longest gaps from this profile are
    # good to about 0.1 s.
    engine=EngineSettings(
        version="0.24.0",
        layout=CacheLayout(blocks=400, block_size=1568, state_groups=3, max_model_len=262144),
        scheduler=SchedulerSettings(max_num_batched_tokens=2048, max_num_seqs=64),
        steps=StepModel(a=0.0208, b=653e-6, b_slope=5.07e-9, e=0.080, a_ctx=2e-9, a_seq=0.2e-3),
    ),
    front_end=FrontEnd(request_s=0.010, text_token_s=3e-6, id_token_s=3e-6),
    kv_cache_dtype="fp8",
)

RTX3090_REPORTED = Profile(
    name="2x3090-as-reported",
    summary="the same two RTX 3090 as one report of starvation describes them",
    # The report: 0.2 to 0.4 tokens/s in the overlap at a budget of 8,192 (a step of 2.5 to 5 s, 3.75 s
    # taken) and 0.9 at 2,048 (1.1 s a step); 48 tokens/s alone. Steps of 7,840 and 1,568 tokens then give b
    # = 422 µs and a + e = 0.44 s.
    engine=EngineSettings(
        version="0.19.1",
        layout=CacheLayout(blocks=400, block_size=1568, state_groups=3, max_model_len=262144),
        scheduler=SchedulerSettings(max_num_batched_tokens=8192, max_num_seqs=64),
        steps=StepModel(a=0.0208, b=422e-6, e=0.417),
    ),
    front_end=FrontEnd(request_s=0.010, text_token_s=3e-6, id_token_s=3e-6),
    kv_cache_dtype="fp8",
    contradiction=(
        "the report's walls (246 s at a budget of 8192, 107 s at 2048) do not follow from its steps: "
        "28,623 tokens in whole chunks are 5 and 19 steps, 14 and 20 s; at 2.5 to 5 s a step, "
        "246 s would mean about 390 tokens a step, not 7,840"
    ),
)

CPU_TINY = Profile(
    name="cpu-next-tiny",
    summary="a two-core CPU, a tiny hybrid model with random weights, vLLM 0.32.0",
    # a: 104 tokens/s alone. b: 14,000 tokens alone in 1.05 to 1.15 s, steps and front end included, so that
    # the "75 µs a token" of that figure are 67 to 71 µs of work. Beside a decode a chunk costs more, by a
    # part that grows with it: gaps of 44 ms for pieces of 256, 81 to 88 ms for 768 and 220 ms for 1,792 (the
    # whole blocks in a budget of 2,048), and 1.5 s for the whole prompt. e = 6 ms + 30 µs a token gives
    # 41, 92 and 196 ms, and 1.57 s. These cores drift by 20 %.
    engine=EngineSettings(
        version="0.32.0",
        layout=CacheLayout(blocks=1000, block_size=256, state_groups=3, max_model_len=65536),
        scheduler=SchedulerSettings(max_num_batched_tokens=2048, max_num_seqs=8),
        steps=StepModel(a=0.0096, b=67e-6, b_slope=0.3e-9, e=0.006, e_token=30e-6, a_seq=0.3e-3),
    ),
    front_end=FrontEnd(request_s=0.006, text_token_s=2e-6, id_token_s=1e-6),
)

DEMO = Profile(
    name="demo",
    summary="an invented fast rig on which a whole overlap experiment takes seconds",
    # Not measured anywhere: 100 tokens/s alone, a 12,000-token prompt in about a second, a chunk of 1,792
    # makes a gap of 0.17 s.
    engine=EngineSettings(
        version="0.32.0",
        layout=CacheLayout(blocks=4096, block_size=256, state_groups=3, max_model_len=131072),
        scheduler=SchedulerSettings(max_num_batched_tokens=2048, max_num_seqs=64),
        steps=StepModel(a=0.010, b=80e-6, e=0.005),
    ),
    front_end=FrontEnd(request_s=0.002, text_token_s=0.5e-6, id_token_s=0.5e-6),
)

PROFILES: dict[str, Profile] = {p.name: p for p in (H200, RTX3090_PAIR, RTX3090_REPORTED, CPU_TINY, DEMO)}

#: Options of `configure` and the part of the settings that each one belongs to.
_LAYOUT = {"num_gpu_blocks": "blocks", "block_size": "block_size", "max_model_len": "max_model_len"}
_SCHEDULER = (
    "max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "policy",
    "prefill_schedule_interval", "prefill_decode_interval",
)  # fmt: skip


def profile_named(name: str) -> Profile:
    """KeyError, with the known names, for one that is not there."""
    try:
        return PROFILES[name]
    except KeyError:
        raise KeyError(f"no profile {name!r}; known: {', '.join(PROFILES)}") from None


def configure(
    profile: Profile,
    *,
    version: str | None = None,
    family: str | None = None,
    dense: bool = False,
    prefix_caching: bool | None = None,
    mtp: int | None = None,
    tokens_per_step: float | None = None,
    **options: object,
) -> Profile:
    """The profile with some of vLLM's options set (None: as in the profile).

    `dense` takes the recurrent layers away; `mtp` is the number of draft tokens, `tokens_per_step` what one
    step then yields (by default half of the drafts are accepted). Prefix caching is on, as in all arms
    behind the profiles, unless switched off; TypeError for an option that does not exist.
    """
    engine = profile.engine
    layout, scheduler = engine.layout, engine.scheduler
    for key, value in options.items():
        if value is None:
            continue
        if key in _LAYOUT:
            layout = replace(layout, **{_LAYOUT[key]: value})  # type: ignore[arg-type]
        elif key in _SCHEDULER:
            scheduler = replace(scheduler, **{key: value})  # type: ignore[arg-type]
        else:
            raise TypeError(f"no option {key!r}")
    if prefix_caching is not None:
        layout = replace(layout, caching=prefix_caching)
    if dense:
        layout = replace(layout, state_groups=0)
    if mtp is not None:
        layout = replace(layout, draft_tokens=mtp)
        tokens_per_step = tokens_per_step or 1 + mtp / 2
    if family is not None:
        if family not in FAMILIES:
            raise ValueError(f"family: {family!r} is not one of {', '.join(FAMILIES)}")
        engine = replace(engine, family=family)
    if version is not None:
        rules_for(version)
        engine = replace(engine, version=version)
    engine = replace(
        engine,
        layout=layout,
        scheduler=scheduler,
        tokens_per_step=tokens_per_step or engine.tokens_per_step,
    )
    return replace(profile, engine=engine)
