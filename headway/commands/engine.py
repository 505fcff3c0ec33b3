"""`headway engine`: the embedded engine as an OpenAI-compatible server with vLLM's scheduling rules and
modelled step times.
"""

from __future__ import annotations

import asyncio
import errno
import signal
from typing import Literal, cast

import typer

from headway.errors import UsageError
from headway.simulator.engine import SettingsError
from headway.simulator.profiles import PROFILES, Profile, configure
from headway.simulator.rules import rules_for
from headway.simulator.server import RunningServer, start

_SUMMARIES = "; ".join(f"{p.name}: {p.summary}" for p in PROFILES.values())

_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)


def register(app: typer.Typer) -> None:
    @app.command("engine", help=f"Serve a simulated engine. Profiles: {_SUMMARIES}.")
    def engine(
        profile: str = typer.Option("demo", help=f"Rig to simulate: {', '.join(PROFILES)}."),
        host: str = typer.Option("127.0.0.1", help="Address to listen on."),
        port: int = typer.Option(8000, help="Port to listen on; 0 takes a free one."),
        model: str = typer.Option("m", help="Name under which the model is served."),
        api_key: str | None = typer.Option(None, help="Bearer key that /v1 asks for."),
        vllm_version: str | None = typer.Option(None, help="vLLM version whose rules hold."),
        max_num_batched_tokens: int | None = typer.Option(None, min=1, help="Token budget of a step."),
        max_num_seqs: int | None = typer.Option(None, min=1, help="Most requests in the running list."),
        max_model_len: int | None = typer.Option(None, min=2, help="Most tokens of prompt and answer."),
        block_size: int | None = typer.Option(None, min=1, help="Tokens of a KV block."),
        num_gpu_blocks: int | None = typer.Option(None, min=2, help="KV blocks of the cache."),
        long_prefill_token_threshold: int | None = typer.Option(
            None, min=0, help="Most prompt tokens of one request in a step; 0: no limit of its own."
        ),
        scheduling_policy: str | None = typer.Option(None, help="fcfs or priority."),
        prefill_schedule_interval: int | None = typer.Option(
            None, min=1, help="One step in that many carries prefill (no effect before 0.33, as in vLLM)."
        ),
        mtp: int | None = typer.Option(None, min=0, help="Draft tokens of a decode step."),
        tokens_per_step: float | None = typer.Option(None, help="Mean tokens of a decode step with --mtp."),
        dense: bool = typer.Option(False, "--dense", help="A model without recurrent layers."),
        no_prompt_tokens_details: bool = typer.Option(
            False, "--no-prompt-tokens-details", help="Leave cached_tokens out of usage."
        ),
        no_enable_prefix_caching: bool = typer.Option(False, "--no-enable-prefix-caching", help="No prefix cache."),
    ) -> None:
        if profile not in PROFILES:
            raise UsageError(f"--profile: no profile {profile!r}; known: {', '.join(PROFILES)}")
        if scheduling_policy not in (None, "fcfs", "priority"):
            raise UsageError(f"--scheduling-policy: {scheduling_policy!r} is neither fcfs nor priority")
        if not 0 <= port <= 65535:
            raise UsageError(f"--port: {port} is not in 0..65535")
        if vllm_version is not None:
            try:
                rules_for(vllm_version)
            except ValueError as error:
                raise UsageError(f"--vllm-version: {error}") from None
        configured = configure(
            PROFILES[profile],
            version=vllm_version,
            dense=dense,
            prefix_caching=False if no_enable_prefix_caching else None,
            mtp=mtp,
            tokens_per_step=tokens_per_step,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            long_prefill_token_threshold=long_prefill_token_threshold,
            policy=cast("Literal['fcfs', 'priority'] | None", scheduling_policy),
            prefill_schedule_interval=prefill_schedule_interval,
        )
        asyncio.run(_serve(configured, host, port, model, api_key, not no_prompt_tokens_details))


async def _serve(profile: Profile, host: str, port: int, model: str, api_key: str | None, details: bool) -> None:
    try:
        server = await start(profile, host=host, port=port, model=model, api_key=api_key, prompt_tokens_details=details)
    except SettingsError as error:
        raise UsageError(f"{error.option}: {error}") from None
    except OSError as error:
        option = "--port" if error.errno in _PORT_ERRORS else "--host"
        raise UsageError(f"{option}: cannot listen on {host}:{port} ({error.strerror or error})") from None
    _announce(profile, server)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.close()


def _announce(profile: Profile, server: RunningServer) -> None:
    # One line on stdout, like `headway serve`, for whoever waits for it to be ready.
    print(
        f"headway engine: listening on {server.url}, SIMULATED, not a real engine: {profile.name} ({profile.summary}),"
        f" rules of vLLM {profile.engine.version}, model {server.service.model!r}",
        flush=True,
    )
    if profile.contradiction:
        typer.echo(f"note: {profile.contradiction}", err=True)
