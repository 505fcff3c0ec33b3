"""The two commands as a user types them: exit codes, files, and a server that is a few lines long."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from aiohttp import web
from typer.testing import CliRunner

from headway.advisor import probe
from headway.commands import diagnose, lint
from headway.errors import ServerError, UsageError

DATA = Path(__file__).parent / "data"
app = typer.Typer()
lint.register(app)
diagnose.register(app)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    if isinstance(result.exception, UsageError | ServerError):
        return result.exception.exit_code, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_lint_writes_json_and_sarif(tmp_path: Path) -> None:
    code, text = run("lint", str(DATA / "club3090.yaml"), "--json", str(tmp_path / "a"), "--sarif", str(tmp_path / "b"))
    assert code == 1 and "2 errors, 2 warnings, 0 notes" in text
    page = json.loads((tmp_path / "a").read_text())
    assert page["schema"] == "headway.lint/1" and page["engines"][0]["block_size"] == 1568
    assert [f["rule"] for f in page["findings"]] == ["HV002", "HV003", "HV004", "HV006"]
    assert json.loads((tmp_path / "b").read_text())["version"] == "2.1.0"


def test_lint_of_words_and_its_exit_codes() -> None:
    assert run("lint", "--engine-version", "0.32.0", "--", "vllm", "serve", "m")[0] == 0
    assert run("lint", "--engine-version", "0.32.0", "vllm serve m --max-num-partial-prefills 2")[0] == 1
    spec = '{"method": "mtp", "num_speculative_tokens": 2}'
    code, text = run(
        "lint",
        "--engine-version",
        "0.31",
        "--",
        "vllm",
        "serve",
        "Qwen/Qwen3.6-27B",
        "--speculative-config",
        spec,
    )
    assert code == 1 and "HV011" in text and "2 draft tokens" in text
    for words in (
        ["nofile"],
        ["vllm serve m", "--engine-version", "new"],
        ["vllm serve m", "--model-config", "nofile"],
    ):
        code, text = run("lint", *words)
        assert code == 2 and words[-1] in text


def test_lint_computes_the_block_from_a_config(tmp_path: Path) -> None:
    from headway.advisor.blocks import KNOWN

    (tmp_path / "config.json").write_text(json.dumps({"text_config": KNOWN["qwen3.6-27b"]}))
    line = "vllm serve /models/mine --enable-prefix-caching --max-num-batched-tokens 784"
    code, text = run("lint", line, "--engine-version", "0.25.1", "--model-config", str(tmp_path / "config.json"))
    assert code == 1 and "HV002" in text and "block 784" in text


def test_diagnose_facts_and_json(tmp_path: Path) -> None:
    case = (Path(__file__).parent / "cases_first.jsonl").read_text().splitlines()[0]
    (tmp_path / "facts.json").write_text(case)
    code, text = run("diagnose", "--facts", str(tmp_path / "facts.json"), "--json", str(tmp_path / "out"))
    assert code == 0 and "verdict: chunk-arithmetic" in text
    page = json.loads((tmp_path / "out").read_text())
    assert page["schema"] == "headway.diagnose/1" and page["verdict"] == "chunk-arithmetic"
    assert page["evidence"] and page["measure"] == [] and 1 <= len(page["do"]) <= 3


def test_diagnose_bench_and_log(tmp_path: Path) -> None:
    (tmp_path / "b").write_text(json.dumps({"solo_tps": 60, "overlap_tps": 1, "ttft_s": 10, "ttft_alone_s": 9.8}))
    code, text = run("diagnose", "--bench", str(tmp_path / "b"), "--log", str(DATA / "vllm.log"))
    assert code == 0 and "verdict: chunk-arithmetic" in text


def test_diagnose_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("[1]")
    for words in (
        [],
        ["--facts", "nofile"],
        ["--facts", str(tmp_path / "list")],
        ["host:8000"],
        ["--log", str(tmp_path / "list")],
    ):
        assert run("diagnose", *words)[0] == 2


def test_a_server_that_is_not_there() -> None:
    code, text = run("diagnose", "http://127.0.0.1:9")
    assert code == 3 and "127.0.0.1:9" in text
    assert run("lint", "http://127.0.0.1:9")[0] == 3


class Engine:
    """Streams at 200 tokens/s; while a long prompt is prefilled a step takes 0.15 s. `foreign`: requests of others."""

    def __init__(self, foreign: int = 0, after: float = 0.0) -> None:
        self.foreign, self.after, self.running, self.prefilling = foreign, after, 0, 0
        self.started: float | None = None
        self.bodies: list[dict] = []

    def others(self) -> int:
        late = self.started is None or asyncio.get_running_loop().time() - self.started < self.after
        return 0 if self.after and late else self.foreign

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f'vllm:num_requests_running{{m="x"}} {self.running + self.others()}\nvllm:num_requests_waiting{{m="x"}} 0\n'  # noqa: E501
                                 f'vllm:cache_config_info{{block_size="16"}} 1\nvllm:num_preemptions_total 0\n'
                                 f'vllm:iteration_tokens_total_bucket{{le="2048"}} 5\nvllm:iteration_tokens_total_bucket{{le="+Inf"}} 5\n')  # fmt: skip  # noqa: E501

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.25.1"})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    def idle(self, patience: float = 3.0) -> bool:
        """Every request of ours has left, soon."""
        until = time.monotonic() + patience
        while self.running and time.monotonic() < until:
            time.sleep(0.01)
        return self.running == 0

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.started = self.started or asyncio.get_running_loop().time()
        words = len(body["prompt"].split())
        answer = web.StreamResponse()
        self.running += 1
        try:
            await answer.prepare(request)
            chunks = max(1, words // 2048)
            self.prefilling += words > 500
            for _ in range(chunks):
                await asyncio.sleep(0.15 if words > 500 else 0.005)
            self.prefilling -= words > 500
            for _ in range(body["max_tokens"]):
                await answer.write(b'data: {"choices":[{"text":"x"}]}\n\n')
                await asyncio.sleep(0.15 if self.prefilling else 0.005)
            await answer.write(f'data: {{"choices":[],"usage":{{"prompt_tokens":{words}}}}}\n\ndata: [DONE]\n\n'.encode())
        finally:
            self.running -= 1
        return answer

    @contextmanager
    def serve(self) -> Iterator[str]:
        loop, ready, port = asyncio.new_event_loop(), threading.Event(), []

        runners: list[web.AppRunner] = []

        async def start() -> None:
            server = web.Application()
            server.router.add_get("/metrics", self.metrics)
            server.router.add_get("/version", self.version)
            server.router.add_get("/v1/models", self.models)
            server.router.add_post("/v1/completions", self.completions)
            runner = web.AppRunner(server, handler_cancellation=True)
            await runner.setup()
            runners.append(runner)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port.append(site._server.sockets[0].getsockname()[1])
            ready.set()

        thread = threading.Thread(target=lambda: (loop.run_until_complete(start()), loop.run_forever()), daemon=True)
        thread.start()
        assert ready.wait(5)
        try:
            yield f"http://127.0.0.1:{port[0]}"
        finally:
            asyncio.run_coroutine_threadsafe(runners[0].cleanup(), loop).result(5)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)


def test_probe_measures_a_stall(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe, "LONGEST", 2048 * 8)
    engine = Engine()
    with engine.serve() as url:
        code, text = run("diagnose", url, "--json", str(tmp_path / "out"))
        assert engine.idle()
    page = json.loads((tmp_path / "out").read_text())
    assert code == 0 and page["verdict"] == "chunk-arithmetic", text
    # Ratios only: this box may be slow.
    assert page["numbers"]["share"] < 0.3 and page["numbers"]["gap"] > 0.1
    assert page["numbers"]["preemptions"] == 0 and page["numbers"]["ttft_over_alone"] > 0.5
    assert page["engine"] == "vllm 0.25.1" and len(page["notes"]) == 1 and page["notes"][0].count(",") == 2
    assert sum(len(body["prompt"].split()) > 1200 for body in engine.bodies) == 4  # three alone, one beside the stream


def test_probe_sends_nothing_while_others_use_the_server() -> None:
    engine = Engine(foreign=1)
    with engine.serve() as url:
        code, text = run("diagnose", url)
    assert code == 0 and "undetermined" in text and "stopped for real traffic" in text
    assert engine.bodies == []


def test_probe_stops_when_real_traffic_comes_in() -> None:
    engine = Engine(foreign=3, after=0.3)
    with engine.serve() as url:
        code, text = run("diagnose", url)
        assert engine.idle()
    assert code == 0 and "stopped for real traffic" in text
    assert len(engine.bodies) < 5


def test_a_server_without_options_says_how_to_get_them() -> None:
    with Engine().serve() as url:
        code, text = run("lint", url)
    assert code == 3 and "VLLM_SERVER_DEV_MODE=1" in text
