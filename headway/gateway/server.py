"""The gateway put together: two listeners, its upstreams, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass

from headway.errors import ServerError, UsageError
from headway.gateway.config import Address, Config, UpstreamConfig
from headway.gateway.decisions import DecisionLog
from headway.gateway.fleet import Fleet
from headway.gateway.keepalive import Clock
from headway.gateway.metrics import Metrics
from headway.gateway.relay import Relay
from headway.gateway.status import StatusPage
from headway.gateway.transport.interface import Handler, Listener
from headway.gateway.transport.listener import listen
from headway.gateway.upstream import Upstream

log = logging.getLogger("headway.gateway")


@dataclass(slots=True)
class Gateway:
    """A running gateway. `await start(config)`, then `await gateway.close()`."""

    config: Config
    fleet: Fleet
    metrics: Metrics
    front: Listener
    status: Listener
    decisions: DecisionLog | None = None

    @property
    def upstream(self) -> Upstream:
        """The first upstream."""
        return self.fleet.members[0]

    @property
    def url(self) -> str:
        return f"http://{self.config.listen.host}:{self.front.port}"

    @property
    def status_url(self) -> str:
        return f"http://{self.config.status.host}:{self.status.port}"

    async def close(self, grace_s: float = 0.0) -> None:
        """Take no new requests, let those under way end within `grace_s` seconds, then break the rest off."""
        self.front.stop_accepting()
        await self.front.close(grace_s)
        await self.status.close(0.0)
        await self.fleet.close()
        if self.decisions is not None:
            self.decisions.close()


async def start(config: Config, clock: Clock | None = None) -> Gateway:
    """`clock`: what keep-alives go by, in place of the event loop. Raises UsageError where an address cannot be used,
    ServerError where the upstream's host has no address."""
    metrics = Metrics()
    await _resolve(config)
    decisions = DecisionLog(config.decision_log, metrics.log_lost.inc) if config.decision_log is not None else None
    fleet = Fleet(config, metrics, decisions)
    front = None
    try:
        front = await _listen("--listen", config.listen, Relay(config, fleet, metrics, clock), config.max_body)
        status = await _listen("--status", config.status, StatusPage(config, fleet, metrics), 0)
    except UsageError:
        if front is not None:
            await front.close(0.0)
        await fleet.close()
        if decisions is not None:
            decisions.close()
        raise
    fleet.start()
    return Gateway(config, fleet, metrics, front, status, decisions)


Reload = Callable[[], tuple[UpstreamConfig, ...]]


async def run(config: Config, ready: str = "headway: listening on", reload: Reload | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain for at most `config.drain` seconds. A second signal ends it at once. SIGHUP
    takes over the upstreams that `reload` gives."""
    gateway = await start(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, _change, gateway.fleet, reload)
    behind = ", ".join(upstream.origin.url for upstream in config.upstreams)
    print(
        f"{ready} {gateway.url} -> {behind} policy {config.policy}"
        f" share {config.targets.share:g} gap {config.targets.gap:g} s, status {gateway.status_url}",
        flush=True,
    )
    if not config.listen.loopback:
        log.warning("--listen %s is reachable from other machines: put authentication in front of it", config.listen.host)
    await stop.wait()
    log.info("stopping: %d requests under way may take %g s to end (--drain)", gateway.front.live, config.drain)
    stop.clear()
    closing = asyncio.create_task(gateway.close(config.drain))
    again = asyncio.create_task(stop.wait())
    await asyncio.wait({closing, again}, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        closing.cancel()
        await gateway.close(0.0)
    again.cancel()


async def _listen(option: str, address: Address, handler: Handler, max_body: int) -> Listener:
    try:
        return await listen(address.host, address.port, handler, max_body=max_body)
    except OSError as error:
        raise UsageError(f"{option} {address.host}:{address.port}: {error.strerror or error}") from None
    except UnicodeError:
        raise UsageError(f"{option} {address.host}:{address.port}: not a host name") from None


def _change(fleet: Fleet, reload: Reload | None) -> None:
    if reload is None:
        log.warning("SIGHUP: the upstreams are not from a --config file, so there is nothing to read again")
        return
    try:
        fleet.change(reload())
    except UsageError as error:
        log.error("SIGHUP: nothing was changed: %s", error)


async def _resolve(config: Config) -> None:
    """Raises ServerError when no upstream's host has an address; one of several without is only said."""
    failed: list[ServerError] = []
    for origin in (upstream.origin for upstream in config.upstreams):
        try:
            await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port)
        except OSError as error:
            failed.append(ServerError(f"--upstream {origin.url}: {origin.host}: {error.strerror or error}"))
        except UnicodeError:
            raise UsageError(f"--upstream {origin.url}: {origin.host}: not a host name") from None
    if len(failed) == len(config.upstreams):
        raise failed[0]
    for failure in failed:
        log.warning("%s", failure)
