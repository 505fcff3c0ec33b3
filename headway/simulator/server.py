"""The HTTP face of the simulated engine: vLLM's routes, in real time.

It says everywhere what it is: `server: headway-engine`, `owned_by: headway-simulated`, version
`simulated-...`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from headway.simulator import prometheus
from headway.simulator.bodies import ApiError, DetokenizeBody, TokenizeBody, parse
from headway.simulator.completions import chat_completions, chat_text, completions
from headway.simulator.dialects import messages, responses
from headway.simulator.driver import EngineDead
from headway.simulator.engine import Engine
from headway.simulator.profiles import Profile, configure, profile_named
from headway.simulator.service import Service
from headway.simulator.sse import json_response

Handler = Callable[[web.Request, Service], Awaitable[web.StreamResponse]]

_MAX_BODY = 256 * 1024 * 1024
#: Seconds that a closing server leaves to streams under way.
_SHUTDOWN = 1.0


class RunningServer:
    """A server that `start` has started. `close` ends it in order, `kill` as a crash would."""

    def __init__(self, runner: web.AppRunner, service: Service, host: str, port: int) -> None:
        self._runner = runner
        self.service = service
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def engine(self) -> Engine:
        return self.service.engine

    async def close(self) -> None:
        await self.service.driver.stop()
        await self._runner.cleanup()

    async def kill(self) -> None:
        """Drop every connection where it stands and stop listening."""
        server = self._runner.server
        connections = list(server.connections) if server is not None else []
        for connection in connections:
            transport = connection.transport
            if transport is not None:
                transport.abort()
        await self.service.driver.stop()
        await self._runner.cleanup()


async def start(
    profile: Profile | str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    model: str = "m",
    api_key: str | None = None,
    prompt_tokens_details: bool = True,
    **options: Any,
) -> RunningServer:
    """Serve `profile` (port 0: any free one). Further options are those of `profiles.configure`.

    Raises SettingsError for settings with which this engine does not start and OSError for a port that is
    taken.
    """
    if isinstance(profile, str):
        profile = profile_named(profile)
    service = Service(configure(profile, **options), model, prompt_tokens_details)
    runner = web.AppRunner(_app(service, api_key), handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    service.driver.start()
    return RunningServer(runner, service, host, runner.addresses[0][1])


def _app(service: Service, api_key: str | None) -> web.Application:
    app = web.Application(client_max_size=_MAX_BODY, middlewares=[_errors, _authentication(api_key)])

    def route(method: str, path: str, handler: Handler) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request, service)

        app.router.add_route(method, path, handle)

    for path, handler in (
        ("/v1/completions", completions),
        ("/v1/chat/completions", chat_completions),
        ("/v1/messages", messages),
        ("/v1/responses", responses),
        ("/tokenize", _tokenize),
        ("/detokenize", _detokenize),
    ):
        route("POST", path, handler)
    for path, handler in (
        ("/v1/models", _models),
        ("/health", _health),
        ("/ping", _health),
        ("/version", _version),
        ("/metrics", _metrics),
    ):
        route("GET", path, handler)
    app.on_response_prepare.append(_sign)
    return app


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "headway-engine"


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return cast("web.StreamResponse", await handler(request))
    except ApiError as error:
        return json_response(error.body(), error.status)
    except web.HTTPException as error:
        body = ApiError(error.reason, status=error.status, type_=error.reason).body()
        return json_response(body, error.status)
    except EngineDead:
        stopped = ApiError("The engine was stopped.", status=500, type_="InternalServerError")
        return json_response(stopped.body(), stopped.status)


def _authentication(api_key: str | None) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        if api_key is not None and request.path.startswith(("/v1", "/v2", "/inference")):
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), api_key.encode()):
                return json_response({"error": "Unauthorized"}, 401)
        return cast("web.StreamResponse", await handler(request))

    return check


async def _models(request: web.Request, service: Service) -> web.Response:
    card = {
        "id": service.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "headway-simulated",
        "root": service.model,
        "parent": None,
        "max_model_len": service.max_model_len,
        "permission": [{"id": f"modelperm-{secrets.token_hex(8)}", "object": "model_permission"}],
    }
    return json_response({"object": "list", "data": [card]})


async def _health(request: web.Request, service: Service) -> web.Response:
    return web.Response(status=200 if service.driver.alive else 503)


async def _version(request: web.Request, service: Service) -> web.Response:
    return json_response({"version": f"simulated-{service.profile.engine.version}"})


async def _metrics(request: web.Request, service: Service) -> web.Response:
    text = prometheus.render(service.engine, service.model)
    return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def _tokenize(request: web.Request, service: Service) -> web.Response:
    body = parse(await request.read(), TokenizeBody)
    service.check_model(body.model)
    if body.prompt is not None:
        prompt = service.text_prompt(body.prompt)
    elif body.messages is not None:
        prompt = service.text_prompt(chat_text(body))
    else:
        raise ApiError("Either prompt or messages must be given.", param="prompt")
    await service.front_end_cost([prompt])
    ids = prompt.ids.tolist()
    strings = [service.tokenizer.decode([i]) for i in ids] if body.return_token_strs else None
    return json_response({"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids, "token_strs": strings})


async def _detokenize(request: web.Request, service: Service) -> web.Response:
    body = parse(await request.read(), DetokenizeBody)
    service.check_model(body.model)
    return json_response({"prompt": service.tokenizer.decode(body.tokens)})


async def serve_forever(server: RunningServer) -> None:
    """Until cancelled; then close in order."""
    try:
        await asyncio.Event().wait()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await server.close()
