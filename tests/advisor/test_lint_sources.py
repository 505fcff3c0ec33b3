"""Where options are written: shell lines, docker run, compose, systemd, Helm, Kubernetes, config files, server pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from headway.advisor.blocks import KNOWN
from headway.advisor.commandline import expand
from headway.advisor.deployment import Deployment
from headway.advisor.lint import check, check_all
from headway.advisor.rules import RULES
from headway.advisor.sarif import as_sarif
from headway.advisor.sources import read_deployments
from headway.errors import UsageError

FILES = {
    "engine.yaml": "model: Qwen/Qwen3.6-27B\nmax-num-batched-tokens: 1568\nkv_cache_dtype: fp8\nenable-prefix-caching: true\n",
    ".env": "TAG=v0.25.1\nBUDGET=1024 # small\nNAME='a b'\n",
    "vllm.env": "export BUDGET=2048\n",
}


def one(text: str, files: dict[str, str] | None = None) -> Deployment:
    (found,) = read_deployments(text, "t", load=(FILES if files is None else files).get)
    return found


SHELL = [
    "vllm serve m --max-num-batched-tokens 4096",
    "vllm serve m \\\n   --max-num-batched-tokens=4096 \\\n   --port 8000",
    "VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve 'm' --max-num-batched-tokens \"4096\"",
    "#!/bin/bash\nset -e\nexport BUDGET=4096\nexec vllm serve m --max-num-batched-tokens $BUDGET 2>&1 | tee log\n",
    "bash -lc 'source venv/bin/activate && exec vllm serve m --max-num-batched-tokens 4096'",
    "python3 -m vllm.entrypoints.openai.api_server --model m --max-num-batched-tokens 4096 && echo --max-num-batched-tokens 1",
    "docker run --gpus all -e HF_HOME=/x -p 8000:8000 vllm/vllm-openai:v0.25.1 --model m --max-num-batched-tokens 4096",
    "docker run --rm --entrypoint bash vllm/vllm-openai:v0.25.1 -c 'vllm serve m --max-num-batched-tokens 4096'",
]


@pytest.mark.parametrize("text", SHELL)
def test_shell_lines(text: str) -> None:
    found = one(text)
    assert (found.engine, found.model, found.number("max_num_batched_tokens")) == ("vllm", "m", 4096)


def test_docker_run_knows_version_and_environment() -> None:
    found = one("docker run -e VLLM_USE_V2_MODEL_RUNNER=1 vllm/vllm-openai:v0.24.0 Qwen/Qwen3.6-27B --enable-prefix-caching")
    assert found.version == (0, 24, 0) and found.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert [f.rule for f in check(found)] == ["HV014"]


def test_a_config_file_is_read_and_the_command_line_wins() -> None:
    found = one("vllm serve --config engine.yaml --kv-cache-dtype auto")
    assert found.model == "Qwen/Qwen3.6-27B" and found.options["kv_cache_dtype"] == "auto" and found.block == 784
    assert one("vllm serve --config engine.yaml").block == 1568


def test_a_config_file_that_is_not_there_is_said() -> None:
    assert one("vllm serve m --config gone.yaml").missing == ["gone.yaml"]
    with pytest.raises(UsageError, match=r"bad\.yaml"):
        one("vllm serve m --config bad.yaml", {"bad.yaml": "- 1\n"})


COMPOSE = [
    "services:\n  a:\n    image: vllm/vllm-openai:v0.25.1\n    command: --model m --max-num-batched-tokens 1024\n",
    "services:\n  a:\n    image: vllm/vllm-openai:${TAG}\n    command: [--model, m, --max-num-batched-tokens, '${BUDGET}']\n",
    "services:\n  a:\n    image: vllm/vllm-openai:${TAG:?say which}\n    entrypoint: vllm serve\n    command: >\n      m\n"
    "      --max-num-batched-tokens ${BUDGET:-4096}\n",
    "services:\n  a:\n    image: my/image:v0.25.1\n    entrypoint: ['/bin/sh', '-c']\n"
    "    command: ['exec vllm serve m --max-num-batched-tokens 1024']\n",
    "x-common: &common\n  image: vllm/vllm-openai:v0.25.1\n  environment: {BUDGET: 1024}\n"
    "services:\n  a:\n    <<: *common\n    command: --model m --max-num-batched-tokens ${BUDGET}\n",
]


@pytest.mark.parametrize("text", COMPOSE)
def test_compose_files(text: str) -> None:
    found = one(text)
    assert (found.model, found.number("max_num_batched_tokens"), found.version) == ("m", 1024, (0, 25, 1))


def test_compose_env_file() -> None:
    text = "services:\n  a:\n    image: vllm/vllm-openai:v0.25.1\n    env_file: vllm.env\n    command: --model m --max-num-batched-tokens ${BUDGET}\n"  # noqa: E501
    assert one(text).number("max_num_batched_tokens") == 2048
    assert one(text, {}).missing == ["vllm.env"]


def test_several_engines_in_one_file() -> None:
    text = "services:\n  a:\n    image: vllm/vllm-openai:v0.25.1\n    command: --model m\n  b:\n    image: lmsysorg/sglang:v0.5.9\n    command: python3 -m sglang.launch_server --model-path n --chunked-prefill-size -1\n  c:\n    image: ghcr.io/ggml-org/llama.cpp:server\n    environment: [LLAMA_ARG_BATCH=4096, LLAMA_ARG_N_PARALLEL=8]\n    command: -m x.gguf\n"  # noqa: E501
    found = read_deployments(text, "t")
    assert [x.engine for x in found] == ["vllm", "sglang", "llama.cpp"]
    assert {"HS002", "HL001"} <= {f.rule for f in check_all(found)}


def test_systemd_with_a_shell_and_an_environment_file() -> None:
    text = "[Unit]\nDescription=x\n[Service]\nEnvironmentFile=-/etc/vllm.env\nEnvironment=\"VLLM_USE_V2_MODEL_RUNNER=1\"\nExecStart=/bin/bash -lc 'exec vllm serve m --max-num-batched-tokens ${BUDGET}'\n"  # noqa: E501
    found = one(text, {"/etc/vllm.env": "BUDGET=512\n"})
    assert found.number("max_num_batched_tokens") == 512 and found.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert one(text, {}).missing == ["/etc/vllm.env"]


MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: s}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: engine
        image: vllm/vllm-openai:v0.30.0
        env: [{name: VLLM_X, value: "1"}]
        command: ["/bin/sh", "-c"]
        args: ["vllm serve m --prefill-schedule-interval 4 --max-num-batched-tokens 2048"]
"""


def test_kubernetes_manifest() -> None:
    found = one(MANIFEST)
    assert found.version == (0, 30, 0) and [f.rule for f in check(found)] == ["HV004"]


def test_production_stack_values() -> None:
    text = "servingEngineSpec:\n  modelSpec:\n  - name: q\n    repository: vllm/vllm-openai\n    tag: v0.25.1\n    modelURL: Qwen/Qwen3.6-27B\n    env: [{name: A, value: b}]\n    vllmConfig:\n      enablePrefixCaching: true\n      maxNumBatchedTokens: 1568\n      kvCacheDtype: fp8\n"  # noqa: E501
    found = one(text)
    assert found.block == 1568 and found.environment == {"A": "b"}
    (finding,) = check(found)
    assert finding.rule == "HV002" and finding.line == 10


def test_server_pages() -> None:
    vllm = {
        "vllm_config": {
            "cache_config": {"cache_dtype": "fp8", "enable_prefix_caching": True},
            "scheduler_config": {"max_num_batched_tokens": 1568},
            "model_config": {"model": "Qwen/Qwen3.6-27B"},
        },
        "vllm_env": {"A": 1},
        "version": "0.25.1",
    }
    assert [f.rule for f in check(one(json.dumps(vllm)))] == ["HV002"]
    sglang = {
        "model_path": "m",
        "chunked_prefill_size": -1,
        "enable_mixed_chunk": True,
        "speculative_algorithm": "EAGLE",
        "version": "0.5.9",
    }
    assert {"HS001", "HS002"} <= {f.rule for f in check(one(json.dumps(sglang)))}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("${A}", "1"), ("$A", "1"), ("${B:-2}", "2"), ("${B-2}", "2"), ("${A:+3}", "3"), ("${B:+3}", ""), ("${E:-2}", "2"), ("${E-2}", ""), ("$$A", "$A"), ("${B}", "${B}"), ("${B:?no}", "${B:?no}")],  # noqa: E501
)  # fmt: skip
def test_variables_as_compose_reads_them(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "E": ""}) == expected


def firing() -> list[Deployment]:
    """Deployments on which every rule of the table has its finding."""
    hybrid = "vllm serve Qwen/Qwen3.6-27B --kv-cache-dtype fp8 --enable-prefix-caching "
    lines = {
        "0.25.1": [hybrid + "--max-num-batched-tokens 1000 --long-prefill-token-threshold 500", hybrid + "--max-num-batched-tokens 1568 --max-num-partial-prefills 2 --prefill-schedule-interval 4 --scheduling-policy priority --long-prefill-token-threshold 9000", "vllm serve Qwen/Qwen3.6-27B --max-num-batched-tokens 100 --max-num-seqs 200"],  # noqa: E501
        "0.32.0": [hybrid + "--mamba-cache-mode all --prefix-match-unit 48 --no-enable-chunked-prefill --speculative-config '{\"num_speculative_tokens\":2}' --max-num-batched-tokens 8192 --long-prefill-token-threshold 4096", "vllm serve m --no-enable-prefix-caching --max-num-partial-prefills 1 --max-long-partial-prefills 1"],  # noqa: E501
        "0.20.0": ["vllm serve m " + " ".join(f"--{r.name.removeprefix('unknown-')} 1" for r in RULES if r.id.startswith("HV1"))],
        None: ["python -m sglang.launch_server --model-path m --enable-mixed-chunk --speculative-algorithm EAGLE --chunked-prefill-size -1", "llama-server -m m -np 4 -b 2048 -ub 512", "llama-server -m m -np 4"],  # noqa: E501
    }  # fmt: skip
    found = []
    for version, texts in lines.items():
        for text in texts:
            each = one(text)
            each.version = tuple(map(int, version.split("."))) if version else None
            found.append(each)
    runner = one("VLLM_USE_V2_MODEL_RUNNER=1 " + hybrid)
    runner.version = (0, 24, 0)
    return [*found, runner]


def test_sarif_of_every_rule_is_valid() -> None:
    """Against a model that was generated from the SARIF 2.1.0 schema, additional properties forbidden."""
    deployments = firing()
    findings = check_all(deployments)
    fired = {f.rule for f in findings}
    assert {r.id for r in RULES} - fired == set()
    for deployment in deployments:
        deployment.file = "deploy/my engine.yaml"
        deployment.lines = dict.fromkeys(deployment.options, 3)
    page = as_sarif(check_all(deployments))
    Sarif.model_validate(json.loads(json.dumps(page)))
    places = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in page["runs"][0]["results"]]
    assert set(places) == {"deploy/my%20engine.yaml"}


@pytest.mark.parametrize("where", ["version", "level", "driver", "line"])
def test_the_model_refuses_what_is_no_sarif(where: str) -> None:
    page = as_sarif(check_all(firing()))
    result, run = page["runs"][0]["results"][0], page["runs"][0]
    if where == "version":
        page["version"] = "2.2"
    elif where == "level":
        result["level"] = "fatal"
    elif where == "driver":
        run["tool"] = {}
    else:
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": "x"}, "region": {"startLine": 0}}}]
    with pytest.raises(ValidationError):
        Sarif.model_validate(page)


def test_block_sizes_from_a_config_file(tmp_path: Path) -> None:
    """1,568 tokens with fp8 keys and values and 784 with bf16, from the shapes alone."""
    shapes = {"text_config": {**KNOWN["qwen3.6-27b"], "layer_types": ["linear_attention"] * 3 + ["full_attention"]}}
    for dtype, block in (("fp8", 1568), ("fp8_e4m3", 1568), ("auto", 784), ("bfloat16", 784)):
        found = one(f"vllm serve /models/mine --enable-prefix-caching --kv-cache-dtype {dtype}")
        found.config, found.version = shapes, (0, 25, 1)
        assert found.block == block
