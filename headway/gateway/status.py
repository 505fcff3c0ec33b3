"""The gateway's own page: /metrics, /status and /healthz, on a port of their own that is not relayed to anyone."""

from __future__ import annotations

from typing import Any

import msgspec

from headway import __version__
from headway.core.work import Phase
from headway.gateway.config import Config
from headway.gateway.fleet import Fleet
from headway.gateway.metrics import Metrics
from headway.gateway.transport.interface import Downstream, ResponseHead
from headway.gateway.upstream import Upstream


def snapshot(config: Config, fleet: Fleet) -> dict[str, Any]:
    """What /status says (schema headway.status/2): times in seconds, sizes in tokens. `upstream`, `engine`, `model` and `now`
    are of the first upstream; `upstreams` has them of each."""
    each = [_of(upstream) for upstream in fleet.all]
    return {
        "schema": "headway.status/2",
        "version": __version__,
        "policy": config.policy,
        "targets": {
            "share": config.targets.share,
            "gap": config.targets.gap,
            "wait": config.targets.wait,
            "stretch": config.targets.stretch,
        },
        **each[0],
        "upstreams": each,
    }


def _of(upstream: Upstream) -> dict[str, Any]:
    controller, engine, health = upstream.controller, upstream.engine, upstream.health
    model = controller.pacer.model
    return {
        "upstream": {
            "url": upstream.target.origin.url,
            "name": upstream.target.label,
            "role": upstream.target.role,
            "up": engine.up,
            "standing": health.at(upstream.desk.now),
            "failures": health.failures,
            "draining": upstream.draining,
            "models": sorted(upstream.models) if upstream.models is not None else None,
        },
        "engine": {
            "block": engine.block,
            "block_confirmed": engine.block_confirmed,
            "prefix_caching": engine.caching,
            "reports_cached_tokens": engine.reports,
            "probed": engine.probed,
        },
        "model": {
            "ready": model is not None,
            "a": model.a if model else None,
            "e": model.e if model else None,
            "b": model.b if model else None,
            "c": model.c if model else None,
            "h": model.h if model else None,
            "k": model.k if model else None,
            "samples": controller.learner.samples,
            "piece_tokens": controller.pacer.piece(),
            "alone_piece_tokens": controller.pacer.alone_piece(),
            "reachable_gap": controller.pacer.reachable_gap(),
            "bytes_per_token": upstream.estimator.ratio,
        },
        "now": {
            "live": controller.live,
            "queued": controller.waiting,
            "pieces": controller.count(Phase.PIECE),
            "in_engine": controller.in_engine,
            "requests": len(controller.entries),
            "prefill_tokens_in_flight": controller.in_flight,
            "foreign": controller.foreign.count,
        },
    }


class StatusPage:
    def __init__(self, config: Config, fleet: Fleet, metrics: Metrics) -> None:
        self._config = config
        self._fleet = fleet
        self._metrics = metrics

    async def __call__(self, down: Downstream) -> None:
        path = down.request.target.partition(b"?")[0]
        if down.request.method not in (b"GET", b"HEAD"):
            _send(down, 405, b"text/plain", b"only GET\n")
        elif path == b"/metrics":
            for upstream in self._fleet.all:
                upstream.show()
            _send(down, 200, b"text/plain; version=0.0.4; charset=utf-8", self._metrics.page())
        elif path == b"/status":
            _send(down, 200, b"application/json", msgspec.json.encode(snapshot(self._config, self._fleet)))
        elif path == b"/healthz":
            _send(down, 200, b"text/plain", b"ok\n")
        else:
            _send(down, 404, b"text/plain", b"/metrics, /status, /healthz\n")


def _send(down: Downstream, status: int, kind: bytes, body: bytes) -> None:
    down.head(ResponseHead(status, b"", [(b"Content-Type", kind), (b"Content-Length", str(len(body)).encode())]))
    if down.request.method != b"HEAD":
        down.data(body)
    down.eof()
