"""The gateway's own page: /metrics, /status and /healthz, on a port of their own that is not relayed to anyone."""

from __future__ import annotations

from typing import Any

import msgspec

from headway import __version__
from headway.core.work import Phase
from headway.gateway.config import Config
from headway.gateway.metrics import Metrics
from headway.gateway.transport.interface import Downstream, ResponseHead
from headway.gateway.upstream import Upstream


def snapshot(config: Config, upstream: Upstream) -> dict[str, Any]:
    """What /status says (schema headway.status/1): times in seconds, sizes in tokens."""
    controller, engine = upstream.controller, upstream.engine
    model = controller.pacer.model
    return {
        "schema": "headway.status/1",
        "version": __version__,
        "policy": config.policy,
        "targets": {
            "share": config.targets.share,
            "gap": config.targets.gap,
            "wait": config.targets.wait,
            "stretch": config.targets.stretch,
        },
        "upstream": {"url": config.upstream.url, "up": engine.up},
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
        },
    }


class StatusPage:
    def __init__(self, config: Config, upstream: Upstream, metrics: Metrics) -> None:
        self._config = config
        self._upstream = upstream
        self._metrics = metrics

    async def __call__(self, down: Downstream) -> None:
        path = down.request.target.partition(b"?")[0]
        if down.request.method not in (b"GET", b"HEAD"):
            _send(down, 405, b"text/plain", b"only GET\n")
        elif path == b"/metrics":
            controller = self._upstream.controller
            self._metrics.live.set(controller.live)
            self._metrics.queued.set(controller.waiting)
            self._metrics.in_flight.set(controller.in_flight)
            self._upstream.show_model()
            _send(down, 200, b"text/plain; version=0.0.4; charset=utf-8", self._metrics.page())
        elif path == b"/status":
            _send(down, 200, b"application/json", msgspec.json.encode(snapshot(self._config, self._upstream)))
        elif path == b"/healthz":
            _send(down, 200, b"text/plain", b"ok\n")
        else:
            _send(down, 404, b"text/plain", b"/metrics, /status, /healthz\n")


def _send(down: Downstream, status: int, kind: bytes, body: bytes) -> None:
    down.head(ResponseHead(status, b"", [(b"Content-Type", kind), (b"Content-Length", str(len(body)).encode())]))
    if down.request.method != b"HEAD":
        down.data(body)
    down.eof()
