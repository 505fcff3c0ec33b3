"""One upstream: its connections, its controller, and what has been learned of its engine.

Invariants
----------
1. Learning never makes a request wait. A probe starts on an idle engine only, ends when a request comes through here, and
   ends when the engine turns out to have other work.
2. What is not known is not assumed: `block` stays None until a hit or /metrics gave it, and nothing is paced without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from headway import __version__
from headway.core.capability import Capability
from headway.core.controller import Controller
from headway.core.estimate import TokenEstimator
from headway.core.forecast import forecast
from headway.core.health import Health
from headway.core.journal import RecordedController, Sink
from headway.core.pacing import FRONT_END
from headway.core.policy import ASIDE
from headway.core.prefix import BlockIndex
from headway.core.textindex import Guess, PromptText, Rule, TextIndex
from headway.core.work import Decision, Entry, Expire, Piece
from headway.engines.families import Family
from headway.engines.families import by_metrics as by_page
from headway.engines.metrics import EngineMetrics
from headway.engines.selfpacing import by_metrics
from headway.engines.vllm.probe import Answer, Found, Question, probe
from headway.gateway.calls import Reply, fetch
from headway.gateway.config import Config, UpstreamConfig
from headway.gateway.configured import configured_pacing
from headway.gateway.desk import Desk, clock
from headway.gateway.metrics import Metrics, UpstreamGauges
from headway.gateway.recognition import recognise
from headway.gateway.transport.framing import end_to_end
from headway.gateway.transport.interface import Dialer, Headers, LostReason, RequestHead, UpstreamLost

log = logging.getLogger("headway.gateway")

SCRAPE_S = 5.0
"""Seconds between two looks at the engine's /metrics."""
RECHECK_S = 1.0
"""The same while it is down, or while others use it too: neither should be believed for longer than it is so."""
MODELS_S = 60.0
"""Seconds between two looks at the models that one of several upstreams serves."""
TEXT_UNIT = 128
"""Tokens in which pieces are measured where they are cut by text: finer cuts cost more than they give."""
SHAPES = 256
"""Most prompt shapes remembered as not to be paced."""
MISSES = 2
"""Paced requests in a row that did not find their pieces, after which prompts of that shape are not paced: one may have been
an eviction."""
UNPACED_S = 60.0
"""Seconds after which such a shape is tried again: a full cache empties."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None


class _Completion(msgspec.Struct):
    usage: _Usage | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_completion = msgspec.json.Decoder(_Completion)
_models = msgspec.json.Decoder(_Models)


class Engine:
    """What is known of the engine behind an upstream."""

    def __init__(self) -> None:
        self.block: int | None = None
        self.block_confirmed = False
        self.caching: bool | None = None
        self.reports: bool | None = None
        """It says how many prompt tokens were cached."""
        self.probed = False
        self.up: bool | None = None
        self.loading = False
        """It answers, but only that it is not ready."""
        self.gone = False
        """It could not be reached: what it had cached may be lost."""
        self.latest: EngineMetrics | None = None
        self.family: Family | None = None
        """None while it has not been recognised."""
        self.facts: EngineMetrics | None = None
        """What a page that describes its configuration says."""
        self.lost = 0
        """Blocks that each piece computes again (probe.py)."""
        self.scheduler = ""
        """Why its own scheduler paces prefill, as /metrics says; empty where it does not."""
        self.configured: str | None = None
        """The same, as its configuration says; None: not asked yet."""

    @property
    def renders(self) -> bool:
        """Its /tokenize gives a chat's token ids: pieces are cut by token, not by text."""
        return self.family is None or self.family.renders

    @property
    def paces(self) -> str:
        return self.scheduler or self.configured or ""

    def restarted(self, latest: EngineMetrics) -> bool:
        """Whether a counter went back, or the process is another one."""
        before = self.latest
        if before is None:
            return False
        if None not in (latest.started, before.started) and latest.started != before.started:
            return True
        return (latest.hits or 0) < (before.hits or 0) or (latest.queries or 0) < (before.queries or 0)


class Upstream:
    def __init__(
        self, config: Config, target: UpstreamConfig, dialer: Dialer, metrics: Metrics, journal: Sink | None = None
    ) -> None:
        self.config = config
        self.target = target
        self.dialer = dialer
        self.metrics = metrics
        self.gauges = UpstreamGauges(metrics, target.label)
        self.health = Health()
        self.draining = target.drain
        self.models: frozenset[str] | None = None
        """Names of the models that it serves, where it said so."""
        self.on_down: Callable[[Upstream], None] = lambda upstream: None
        self.controller = self._controller(journal)
        self.desk = Desk(self.controller, self._on_grant)
        self.engine = Engine()
        self.blocks = BlockIndex()
        self.texts = TextIndex()
        self.estimator = TokenEstimator()
        self.rendering = asyncio.Semaphore(2)
        self._misses: dict[bytes, tuple[int, float]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._warned: set[str] = set()
        self._models_at = 0.0

    def _controller(self, journal: Sink | None) -> Controller:
        config = self.config
        if journal is None:
            return Controller(config.policy, config.targets, config.classes)
        about = {"unix": round(time.time(), 3), "version": __version__}
        now = clock(asyncio.get_running_loop())
        url = self.target.origin.url
        return RecordedController(config.policy, config.targets, config.classes, journal, now=now, upstream=url, about=about)

    # -- small requests ---------------------------------------------------------------------------

    def head(self, method: bytes, path: bytes, headers: Headers = ()) -> RequestHead:
        """Head of a request of the gateway's own, with the client's own headers where it acts for one."""
        own = [(b"Host", self.target.origin.authority), *self.with_key(headers)]
        return RequestHead(method, self.target.origin.prefix + path, own)

    def forwarded(self, request: RequestHead, plain: bool) -> RequestHead:
        """The head of a client's request for this upstream: as it came, but those of one connection are dropped, Host names
        the upstream, and the upstream's key replaces the client's. `plain`: the answer must not be compressed, for it may
        follow a head that does not say so."""
        dropped = (b"host", b"accept-encoding") if plain else (b"host",)
        kept = [(name, value) for name, value in end_to_end(request.headers) if name.lower() not in dropped]
        headers = [(b"Host", self.target.origin.authority), *self.with_key(kept)]
        return RequestHead(request.method, self.target.origin.prefix + request.target, headers)

    def with_key(self, headers: Headers) -> Headers:
        """The headers with the upstream's key, where there is one, in the place of the client's own keys."""
        key = self.target.key if self.target.key is not None else self.config.upstream_key
        if key is None:
            return headers
        others = [(name, value) for name, value in headers if name.lower() not in (b"authorization", b"x-api-key")]
        return [*others, (b"Authorization", b"Bearer " + key.encode())]

    async def post(self, path: bytes, body: Any, headers: Headers = (), timeout: float | None = None) -> Reply:
        return await self.post_raw(path, msgspec.json.encode(body), headers, timeout)

    async def post_raw(self, path: bytes, body: bytes, headers: Headers = (), timeout: float | None = None) -> Reply:
        head = self.head(b"POST", path, [*headers, (b"Content-Type", b"application/json")])
        return await fetch(self.dialer, head, body, timeout)

    async def scrape(self) -> EngineMetrics | None:
        """The engine's /metrics now, or None where it has none."""
        try:
            reply = await fetch(self.dialer, self.head(b"GET", b"/metrics"), timeout=10.0)
        except UpstreamLost as error:
            self.lost(error)
            return None
        except TimeoutError:
            self.health.failed(self.desk.now)
            self._set_up(False)
            return None
        self._set_up(True)
        self.engine.loading = reply.status == 503
        if self.engine.loading:
            self.health.failed(self.desk.now)  # llama.cpp says so of every page until its model is there
        else:
            self.health.checked(self.desk.now)
        if reply.status != 200:
            return None
        page = reply.body.decode("utf-8", "replace")
        self.engine.scheduler = by_metrics(page)
        if self.engine.family is None:
            self.engine.family = by_page(page)
        return self.engine.family.metrics(page) if self.engine.family is not None else None

    @staticmethod
    def usage(reply: Reply) -> tuple[int | None, int | None]:
        """(prompt tokens, cached tokens) as a non-streaming answer of any dialect reports them; None where it does not."""
        try:
            usage = _completion.decode(reply.body).usage
        except msgspec.DecodeError:
            return None, None
        if usage is None:
            return None, None
        details = usage.prompt_tokens_details or usage.input_tokens_details
        cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
        if usage.prompt_tokens is None and usage.input_tokens is not None and usage.cache_read_input_tokens is not None:
            return usage.input_tokens + usage.cache_read_input_tokens, cached  # Anthropic counts them apart
        return usage.prompt_tokens or usage.input_tokens, cached

    def cached_tokens(self, reply: Reply) -> int | None:
        return self.usage(reply)[1]

    # -- learning ---------------------------------------------------------------------------------

    def show(self) -> None:
        """Publish what is the case now."""
        self.gauges.live.set(self.controller.live)
        self.gauges.queued.set(self.controller.waiting)
        self.gauges.waiting_tokens.set(self.controller.waiting_tokens)
        self.gauges.in_flight.set(self.controller.in_flight)
        self.gauges.takes.set(0 if self.draining or not self.health.takes(self.desk.now, 0) else 1)
        self.show_model()

    def start(self) -> None:
        self._watch = asyncio.create_task(self._look())

    async def close(self) -> None:
        self.desk.close()
        for task in (self._probing, self._watch):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.dialer.close()

    def interrupt_probe(self) -> None:
        """A request arrives: whatever the probe is doing, it stops."""
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None

    async def _look(self) -> None:
        """Look at /metrics again and again; probe once, when the engine is idle."""
        while True:
            try:
                latest = await self.scrape()
            except ValueError as error:
                log.warning("/metrics of %s cannot be read: %s", self.target.origin.url, error)
                latest = None
            if len(self.config.upstreams) > 1 and self.engine.up and self.desk.now >= self._models_at:
                self._models_at = self.desk.now + MODELS_S
                self.models = frozenset(await self._model_ids()) or None
            if self.engine.up and self.engine.configured is None and self.config.policy in ASIDE:
                self.engine.configured = await configured_pacing(self)
            if self.engine.family is None and self.engine.up and not self.engine.loading:
                await self._recognise()
            if latest is not None:
                self._learn_metrics(latest)
            self._tell_controller()
            if latest is not None:
                idle = latest.idle and not any(entry.work.prefills for entry in self.controller.entries.values())
                if self.config.probe and not self.engine.probed and idle and self._probing is None:
                    self._probing = asyncio.create_task(self._run_probe())
            await asyncio.sleep(SCRAPE_S if self.engine.up and not self.controller.foreign.count else RECHECK_S)

    async def _recognise(self) -> None:
        engine = self.engine
        engine.family, engine.facts = await recognise(self)
        log.info("upstream %s: %s", self.target.origin.url, engine.family.name)
        if engine.facts is not None:
            self._learn_facts(engine.facts)

    def _learn_facts(self, facts: EngineMetrics) -> None:
        """What /metrics or another page says of the cache."""
        engine = self.engine
        self._size_indexes()
        if engine.caching is None and facts.prefix_caching is not None:
            engine.caching = facts.prefix_caching
        if engine.block is None and facts.block_size is not None:
            self._set_block(facts.block_size, confirmed=False)

    def _learn_metrics(self, latest: EngineMetrics) -> None:
        engine = self.engine
        if engine.restarted(latest):
            log.info("the engine's counters went back: it restarted")
            self._forget()
        engine.latest = latest
        self._learn_facts(latest)
        excess = max(0, int(latest.running) - self.controller.in_engine) if self._probing is None else 0
        self.controller.foreigners(self.desk.now, excess)
        self.gauges.foreign.set(excess)
        if self.controller.foreign.count:
            self._warn_once(
                "foreign",
                f"upstream {self.target.origin.url}: {excess} requests did not come through here: they are protected as if they"
                " were answers, and nothing is learned while they run; point their clients here",
            )

    async def _run_probe(self) -> None:
        latest = self.engine.latest
        seed = int.from_bytes(os.urandom(4), "little")
        hint = None if latest is None else latest.match_unit or latest.block_size
        run = probe(seed, hint, None if latest is None else latest.prefix_caching)
        try:
            models = await self._model_ids()
            if not models:
                return  # not up yet, or it asks for a key: the next look tries again
            question, busy = next(run), 0
            while busy < 2:
                question = run.send(await self._ask(models[0], question))
                # Traffic that does not come through here is not disturbed either. Once may be the probe's own last request.
                latest = await self.scrape()
                busy = busy + 1 if latest is not None and not latest.idle else 0
            log.info("the probe stops: the engine has other work; it will be tried again")
        except StopIteration as stop:
            self._learn_probe(stop.value)
        except (UpstreamLost, TimeoutError, ProbeRefused) as error:
            log.info("the probe ended early: %s; the first paced request will tell instead", error)
            self.engine.probed = True
        finally:
            if self._probing is asyncio.current_task():
                self._probing = None

    async def _model_ids(self) -> list[str]:
        try:
            reply = await fetch(self.dialer, self.head(b"GET", b"/v1/models"), timeout=10.0)
            return [model.id for model in _models.decode(reply.body).data]
        except (UpstreamLost, TimeoutError, msgspec.DecodeError):
            return []

    async def _ask(self, model: str, question: Question) -> Answer:
        before = None if self.engine.reports else await self.scrape()
        started = time.monotonic()
        reply = await self.post(b"/v1/completions", {"model": model, "prompt": question.ids, "max_tokens": 1, "temperature": 0})
        seconds = time.monotonic() - started
        if reply.status != 200:
            raise ProbeRefused(f"HTTP {reply.status} from /v1/completions with token ids")
        cached = self.cached_tokens(reply)
        if cached is not None:
            self.engine.reports = True
        elif self.engine.reports:
            cached = 0  # vLLM leaves the field out where nothing was hit
        elif before is not None and before.hits is not None:
            # Nothing else runs, so what the counter gained is what this prompt hit.
            after = await self.scrape()
            if after is not None and after.hits is not None:
                cached = int(after.hits - before.hits)
        return Answer(seconds, cached)

    def _learn_probe(self, found: Found) -> None:
        self.engine.probed = True
        if found.caching is not None:
            self.engine.caching = found.caching
        if self.engine.reports is None:
            self.engine.reports = False
        self.engine.lost = found.lost
        if found.block is not None:
            self._set_block(found.block, confirmed=True)
        self._tell_controller()
        for tokens, seconds in found.timed:
            self.controller.timed(self.desk.now, tokens, seconds)
        self.show_model()
        model = self.controller.pacer.model
        if model is not None:
            log.info(
                "probed: block %s tokens, prefix caching %s, %.1f us a prefill token",
                self.engine.block,
                {True: "on", False: "off", None: "unknown"}[self.engine.caching],
                model.b * 1e6,
            )

    def _set_block(self, block: int, confirmed: bool) -> None:
        self.engine.block, self.engine.block_confirmed = block, confirmed
        self.texts.block = block
        self._size_indexes()
        self.gauges.block.set(block)
        self._tell_controller()

    def _size_indexes(self) -> None:
        """The indexes hold as much as the engine's KV cache."""
        latest, block = self.engine.latest or self.engine.facts, self.engine.block
        if latest is not None and latest.blocks and block:
            finer = max(1, (latest.block_size or block) // block)  # hits are counted inside a block (--prefix-match-unit)
            self.blocks.resize(latest.blocks * finer)
            self.texts.resize(latest.blocks * (latest.block_size or block))
        if latest is not None and latest.states is not None:
            self.texts.expect(Rule.BOUNDARY if latest.states else Rule.WHOLE)

    def _tell_controller(self) -> None:
        """What is known of the engine, as the controller sees it."""
        engine = self.engine
        paces = {"yes": "--engine-paces says so", "no": ""}.get(self.config.engine_paces, engine.paces)
        block = engine.block if engine.renders or engine.block is None else max(engine.block, TEXT_UNIT)
        said = engine.latest or engine.facts
        ranks = said.engines if said is not None else 1
        capability = Capability(block=block, caching=engine.caching, lost=engine.lost, paces=paces, ranks=ranks)
        before = self.controller.capability
        if capability == before:
            return
        self.controller.engine(self.desk.now, capability)
        self.gauges.aside.set(self.controller.aside)
        if paces != before.paces and self.config.policy in ASIDE:
            words = f"policy {self.config.policy} steps aside: {paces}" if paces else f"policy {self.config.policy} paces again"
            log.info("upstream %s: %s", self.target.origin.url, words)
        if capability.obstacle:
            self._warn_once("obstacle", f"{capability.obstacle}: big prompts cannot go in pieces, they are held up to --wait")

    def show_model(self) -> None:
        """Publish the model, and say once when the gap or the share asked for is out of reach."""
        model = self.controller.pacer.model
        if model is None:
            return
        for term in self.gauges.TERMS:
            self.gauges.model(term).set(getattr(model, term))
        targets, pacer = self.config.targets, self.controller.pacer
        reachable, floor = pacer.reachable_gap(), pacer.share_floor()
        if self.engine.block is None or reachable is None or floor is None:
            return
        if reachable > targets.gap:
            self._warn_once(
                "gap",
                f"--gap {targets.gap:g} s is below what this engine reaches with pieces of one block"
                f" ({self.engine.block} tokens): {reachable:.3f} s",
            )
        if floor > targets.share + 0.08:
            self._warn_once(
                "share",
                f"--share {targets.share:g} is below what pieces of {pacer.piece()} tokens leave to live answers anyway,"
                f" about {floor:.2f}: a larger --gap allows larger pieces",
            )

    def show_front_end(self, tokens: int) -> None:
        """Publish what a prompt's pieces cost the engine's front end, and say once when the gap target makes that too much."""
        pacer = self.controller.pacer
        part = pacer.front_end(tokens)
        self.gauges.front_end.set(part)
        if part > FRONT_END:
            self._warn_once(
                "front-end",
                f"the pieces of a prompt of {tokens:,} tokens cost the engine's front end {part:.0%} of its prefill, more than"
                f" {FRONT_END:.0%}: --gap {self.config.targets.gap:g} s allows {pacer.piece(tokens // 2):,} tokens each",
            )

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning(message)

    def guess(self, prompt: PromptText | None, size: int, tokens: int | None = None, ratio: float | None = None) -> Guess:
        """What is believed of a prompt of `size` bytes. `tokens`: how many it has, where that is known. `ratio`: bytes a token
        where this upstream has not learned its own."""
        ratio = self.estimator.ratio if ratio is None or self.estimator.learned else ratio
        guess = self.texts.look(prompt, ratio) if prompt is not None else Guess(int(size / ratio) + 1 if size else 1)
        if tokens is not None:
            guess.tokens, guess.cached = tokens, min(guess.cached, tokens)
        return guess

    # -- prompts that are not to be paced -----------------------------------------------------------

    def found(self, shape: bytes) -> None:
        """A paced request of this shape found its pieces."""
        self._misses.pop(shape, None)

    def missed(self, shape: bytes) -> None:
        """A paced request of this shape did not find them."""
        count, _ = self._misses.pop(shape, (0, 0.0))
        self._misses[shape] = (count + 1, self.desk.now)
        while len(self._misses) > SHAPES:
            del self._misses[next(iter(self._misses))]

    def is_unpaceable(self, shape: bytes) -> bool:
        count, at = self._misses.get(shape, (0, 0.0))
        return count >= MISSES and self.desk.now < at + UNPACED_S

    # -- bookkeeping --------------------------------------------------------------------------------

    def _on_grant(self, entry: Entry, decision: Decision) -> None:
        if entry.granted == entry.first_grant:
            self.metrics.waited.observe(decision.waited)
        if not isinstance(decision, Expire):
            self.metrics.granted(decision.why)
        if isinstance(decision, Piece):
            self.metrics.pieces.inc()
            self.metrics.piece_tokens.inc(decision.tokens)
        if getattr(decision, "yielded", False):
            self.metrics.yielded.inc()

    def shadow(self, entry: Entry) -> None:
        """Write down what each policy would have done with a request that has just been let through."""
        forecasts = forecast(self.controller, entry)
        for policy, would in forecasts.items():
            self.metrics.would(policy, would)
        if isinstance(self.controller, RecordedController):
            self.controller.would(self.desk.now, entry.work.id, forecasts)

    def lost(self, error: UpstreamLost) -> None:
        """It could not be reached, or broke off."""
        if error.reason is LostReason.CONNECT:
            self.engine.gone = True
        unreachable = error.reason in (LostReason.CONNECT, LostReason.TIMEOUT)
        self.health.failed(self.desk.now, unreachable)
        if unreachable:
            self._set_up(False)
        if not self.health.takes(self.desk.now, 0):
            self.on_down(self)

    def _forget(self) -> None:
        """The engine may be a new one: nothing is taken for cached, and what it can do is learned again."""
        engine = self.engine
        self.blocks.clear()
        self.texts.clear()
        self._misses.clear()
        engine.block = engine.caching = engine.reports = engine.latest = engine.family = engine.facts = None
        engine.block_confirmed = engine.probed = engine.gone = False
        engine.configured, engine.lost = None, 0
        self.controller.forget(self.desk.now)
        self._warned.clear()

    def _set_up(self, up: bool) -> None:
        if up is not self.engine.up:
            log.log(logging.INFO if up else logging.WARNING, "upstream %s is %s", self.target.origin.url, "up" if up else "down")
            if up and self.engine.gone:
                self._forget()
        self.engine.up = up
        self.gauges.up.set(1 if up else 0)


class ProbeRefused(Exception):
    """The engine would not answer a probe."""
