"""The gateway's own metrics. Labels come from closed enums and from the configured upstreams, so the number of series is
bounded."""

from __future__ import annotations

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from headway.core.forecast import Forecast
from headway.core.outcome import Outcome, Unpaced
from headway.core.work import Why
from headway.gateway.distribution import Distribution


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self._requests = Counter("headway_requests", "Requests by how they ended", ["outcome"], registry=r)
        self._unpaced = Counter("headway_unpaced", "Big requests sent whole, by why they were not paced", ["reason"], registry=r)
        self.pieces = Counter("headway_pieces", "Pieces sent", registry=r)
        self.piece_tokens = Counter("headway_piece_tokens", "Uncached prompt tokens prefilled in pieces", registry=r)
        self.keepalives = Counter("headway_keepalives", "Comments, pings or spaces sent to clients of held requests", registry=r)
        self.late_errors = Counter("headway_late_errors", "Errors told inside a 200 that keep-alives had begun", registry=r)
        self.yielded = Counter("headway_share_yielded", "Grants in which a newcomer's bound overruled the share", registry=r)
        waited = Distribution("headway_wait_seconds", "Seconds from a request's arrival to its first grant", [], r)
        self.waited = waited.labels()
        itl = Distribution(
            "headway_itl_seconds", "Seconds between two outputs of a live answer, by whether a prefill ran", ["during"], r
        )
        self.itl_solo = itl.labels("decode")
        self.itl_prefill = itl.labels("prefill")
        self.failovers = Counter("headway_failovers", "Requests sent to another upstream after one was lost", registry=r)
        u = ["upstream"]
        self.live = Gauge("headway_live_decodes", "Streams that give output now", u, registry=r)
        self.queued = Gauge("headway_queued_requests", "Requests that wait for their turn", u, registry=r)
        self.in_flight = Gauge(
            "headway_prefill_tokens_in_flight", "Uncached prompt tokens granted and not yet done", u, registry=r
        )
        self._grants = Counter("headway_grants", "Requests and pieces let into an engine, by why", ["why"], registry=r)
        self._shadow = Counter(
            "headway_shadow_requests", "With --shadow: what each policy would have done", ["policy", "do"], registry=r
        )
        self._shadow_ttft = Counter(
            "headway_shadow_ttft_seconds", "With --shadow: predicted times to first token, summed", ["policy"], registry=r
        )
        self.aside = Gauge(
            "headway_stepped_aside", "1 while the engine paces prefill by itself and the policy leaves it to it", u, registry=r
        )
        self.waiting_tokens = Gauge("headway_queued_tokens", "Uncached prompt tokens of requests that wait", u, registry=r)
        self.log_lost = Counter("headway_decision_log_lost", "Records that the decision log had no room for", registry=r)
        self.model = Gauge(
            "headway_step_model", "Learned step-time model: a, e, h in seconds, b, c, k a token", [*u, "term"], registry=r
        )
        self.front_end = Gauge(
            "headway_front_end_part",
            "Of the latest paced prompt's prefill: what the engine's front end spends on the ids of its pieces beside an answer",
            u,
            registry=r,
        )
        self.block = Gauge("headway_engine_block_tokens", "Learned prefix-cache block size, 0 while unknown", u, registry=r)
        self.up = Gauge("headway_upstream_up", "1 if the last scrape or request reached the upstream", u, registry=r)
        self.takes = Gauge("headway_upstream_takes", "1 if new requests go there: it is healthy and not drained", u, registry=r)
        self.foreign = Gauge("headway_foreign_requests", "Running requests that did not come through here", u, registry=r)
        self.sent = Counter("headway_upstream_requests", "Requests sent on", u, registry=r)
        self.lost = Counter("headway_upstream_lost", "Requests that the upstream broke off or never took", u, registry=r)
        self._outcomes = {outcome: self._requests.labels(outcome.value) for outcome in Outcome}
        self._whys = {why: self._grants.labels(why.value) for why in Why}
        self._reasons = {reason: self._unpaced.labels(reason.value) for reason in Unpaced}

    def ended(self, outcome: Outcome) -> None:
        self._outcomes[outcome].inc()

    def unpaced(self, reason: Unpaced) -> None:
        self._reasons[reason].inc()

    def granted(self, why: Why) -> None:
        self._whys[why].inc()

    def would(self, policy: str, forecast: Forecast) -> None:
        self._shadow.labels(policy, forecast.do).inc()
        self._shadow_ttft.labels(policy).inc((forecast.wait or 0.0) + (forecast.ttft or 0.0))

    def page(self) -> bytes:
        return generate_latest(self.registry)


class UpstreamGauges:
    """The series of one upstream. `remove` when it is configured no more."""

    TERMS = ("a", "e", "b", "c", "h", "k")

    def __init__(self, metrics: Metrics, label: str) -> None:
        self._metrics, self._label = metrics, label
        self.live = metrics.live.labels(label)
        self.queued = metrics.queued.labels(label)
        self.in_flight = metrics.in_flight.labels(label)
        self.block = metrics.block.labels(label)
        self.front_end = metrics.front_end.labels(label)
        self.up = metrics.up.labels(label)
        self.takes = metrics.takes.labels(label)
        self.foreign = metrics.foreign.labels(label)
        self.aside = metrics.aside.labels(label)
        self.waiting_tokens = metrics.waiting_tokens.labels(label)
        self.sent = metrics.sent.labels(label)
        self.lost = metrics.lost.labels(label)

    def model(self, term: str) -> Gauge:
        return self._metrics.model.labels(self._label, term)

    def remove(self) -> None:
        m = self._metrics
        gauges = (m.live, m.queued, m.waiting_tokens, m.in_flight, m.block, m.up, m.takes, m.foreign, m.aside, m.front_end)
        for metric in (*gauges, m.sent, m.lost):
            metric.remove(self._label)
        for term in self.TERMS:
            with contextlib.suppress(KeyError):
                m.model.remove(self._label, term)
