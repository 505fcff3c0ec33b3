"""The arm file: what it means, and one clear line for what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.bench.arms.file import parse
from headway.bench.arms.order import groups, order
from headway.bench.arms.plan import Plan
from headway.bench.arms.refusal import findings, refusal, traps
from headway.bench.arms.template import Unknown, fill
from headway.commands.arms import EXAMPLES, examples
from headway.errors import UsageError

SERVER = '[server]\ncommand = "serve --port {port} --budget {budget}"\n[vars]\nbudget = 8192\n'
TWO = SERVER + '[[arm]]\nname = "a"\n[[arm]]\nname = "b"\nvars = {budget = 2048}\n'


def read(text: str, **options: object) -> Plan:
    return parse(text, "f.toml", {"policy", "share", "relay", "probe"}, **options)  # type: ignore[arg-type]


def test_an_arm_is_the_files_tables_and_its_own() -> None:
    plan = read(
        TWO
        + "[arm.server]\nenv = {A = 1}\nready_s = 5\n[arm.client]\nintruder_in = 100\n[arm.gateway]\nshare = 0.5\nprobe = false\n"
    )
    a, b, again = plan.arms
    assert a.server.command == ("serve", "--port", "{port}", "--budget", "8192")
    assert b.server.command == ("serve", "--port", "{port}", "--budget", "2048")
    assert (b.server.env, b.server.ready_s, a.server.ready_s) == ((("A", "1"),), 5.0, 900.0)
    assert (b.settings.intruder_in, a.settings.intruder_in) == (100, 28623)
    assert b.gateway == ("--share", "0.5", "--probe", "off")
    assert (again.name, again.copy_of, again.server) == ("a (A/A)", "a", a.server)


def test_a_gateway_says_how_its_runs_are_to_be_judged() -> None:
    text = SERVER + "".join(f'[[arm]]\nname = "{p}"\ngateway = {{policy = "{p}"}}\n' for p in ("pace", "hold", "serialize"))
    judged = [(arm.settings.pieces, arm.settings.kept_back) for arm in read(text).arms[:3]]
    assert judged == [(True, False), (True, True), (False, True)]


def test_the_noise_pair_has_a_start_of_its_own_only_where_arms_differ_in_theirs() -> None:
    assert [len(group) for group in groups(read(TWO).arms)] == [1, 1, 1]
    shared = SERVER + '[[arm]]\nname = "a"\n[[arm]]\nname = "b"\ngateway = {policy = "pace"}\n'
    assert [len(group) for group in groups(read(shared).arms)] == [3]
    assert read("aa = false\n" + shared).aa is None


def test_the_command_line_wins_over_vars() -> None:
    plan = read(TWO, told={"budget": "512"})
    assert {arm.server.command[-1] for arm in plan.arms if arm.server.command} == {"512"}


def test_a_digest_follows_what_is_measured_and_not_the_name() -> None:
    first, renamed = read(TWO).arms[0], read(TWO.replace('"a"', '"z"')).arms[0]
    assert first.digest == renamed.digest
    changed = (TWO.replace("8192", "8191"), "[client]\nafter = 17\n" + TWO, 'scenarios = ["burst"]\n' + TWO)
    assert first.digest not in {read(text).arms[0].digest for text in changed}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[arm", "f.toml: "),
        ("reps = 3", "there is no [[arm]]"),
        ("reps = 0\n" + TWO, "reps = 0 must be at least 1"),
        ('rep = 3\n' + TWO, "unknown field `rep`"),
        (TWO + "[arm.server]\nport = 70000\n", "arm 'b': server.port = 70000 is outside 1..65535"),
        (TWO + '[arm.server]\nport = "x"\n', "arm 'b': server: port: Expected `int | null`, got `str`"),
        (TWO + '[arm.server]\nurl = "http://h"\ncommand = "x"\n', "server has both command and url"),
        (TWO + '[arm.server]\nurl = "h"\n', "server.url 'h' is not an http"),
        (TWO + '[arm.server]\ncommand = "a \'b"\n', "server.command cannot be split into words"),
        (TWO + '[arm.server]\ncommand = "x {prot}"\n', "{prot} has no value; known are arm, budget, port, url"),
        (TWO + "[arm.server]\nready_s = 0\n", "server.ready_s = 0 must be above 0"),
        (TWO + "[arm.client]\nvictim = 3\n", "client.victim is not an option; there are victim_in"),
        (TWO + "[arm.client]\nvictim_out = 3\n", "client.victim_out = 3 must be above after 16"),
        (TWO + "[arm.client]\nintruder_in = -3\n", "client.intruder_in = -3 must be above 0"),
        (TWO + '[arm.client]\nintruder_in = "x"\n', "client: intruder_in: Expected `int`"),
        (TWO + "[arm.gateway]\nshares = 3\n", "gateway.shares is not an option of headway serve"),
        (TWO + '[arm.gateway]\nupstream = "http://h"\n', "gateway.upstream is set by the benchmark itself"),
        (TWO + '[[arm]]\nname = "a"\n', "there are two arms 'a'"),
        (TWO + '[[arm]]\nname = "A."\n', "shares its file names with arm 'A.'"),
        (TWO + '[[arm]]\nname = ""\n', "an arm has an empty name"),
        (TWO + "[[arm]]\nname = 3\n", "arm 3: name: Expected `str`, got `int`"),
        ('baseline = "c"\n' + TWO, "baseline 'c' is not an arm; there are a, b"),
        ('scenarios = ["x"]\n' + TWO, "scenario 'x' is unknown"),
        ('[[arm]]\nname = "a"\n', "server has neither command nor url"),
        ("arm = 3", "arm: Expected `array`"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_that_says_where(text: str, words: str) -> None:
    with pytest.raises(UsageError) as told:
        read(text)
    assert words in str(told.value) and str(told.value).startswith("f.toml: ") and "\n" not in str(told.value)


def test_a_var_that_nobody_has_is_refused() -> None:
    with pytest.raises(UsageError, match="--set buget: the file has no such vars"):
        read(TWO, told={"buget": "1"})


def test_json_and_shell_braces_are_no_placeholders() -> None:
    text = """{"mode": 0, "a": {"b": {port}}} ${HOME} ${home} {url}"""
    assert fill(text, {"port": 1}) == """{"mode": 0, "a": {"b": 1}} ${HOME} ${home} {url}"""
    with pytest.raises(Unknown):
        fill("{url}", {}, late=False)


def test_every_repetition_of_every_arm_runs_once_and_servers_are_started_once_a_round() -> None:
    arms = read(TWO).arms
    made = order(arms, 5, 2, seed=3)
    cells = [(cell.arm.name, cell.rep) for start in made for cell in start.cells]
    assert sorted(cells) == sorted((arm.name, rep) for arm in arms for rep in range(5))
    assert len(made) == 3 * len(arms)
    assert [start.cells[0].rep for start in made] == sorted(start.cells[0].rep for start in made)
    assert made == order(arms, 5, 2, seed=3) != order(arms, 5, 2, seed=4)


def test_an_arm_that_the_engine_refuses_is_known_by_its_own_words() -> None:
    text = (
        '[server]\nengine_version = "0.25.1"\n'
        'command = "vllm serve Qwen/Qwen3.6-27B --kv-cache-dtype fp8 --enable-prefix-caching --max-num-batched-tokens {budget}"\n'
        + "".join(f'[[arm]]\nname = "{n}"\nvars = {{budget = {n}}}\n' for n in (1024, 1568, 8192))
    )
    refused, trap, fine = (findings(arm) for arm in read(text).arms[:3])
    assert '"In Mamba cache align mode, block_size (1568) must be <= max_num_batched_tokens (1024)."' in (refusal(refused) or "")
    assert refusal(trap) is None and any("long prompts wait" in text for text in traps(trap))
    assert refusal(fine) is None
    unknown = [findings(arm) for arm in read(text.replace('engine_version = "0.25.1"\n', "")).arms[:1]]
    assert refusal(unknown[0]) is None  # the version decides, so it is tried


def test_a_compose_file_is_linted_with_the_arms_variables(tmp_path: Path) -> None:
    compose = tmp_path / "compose.yaml"
    compose.write_text(
        "services:\n  vllm:\n    image: vllm/vllm-openai:v0.25.1\n    command: >\n      vllm serve Qwen/Qwen3.6-27B "
        "--kv-cache-dtype fp8 --enable-prefix-caching --max-num-batched-tokens ${BUDGET}\n"
    )
    text = (
        f'[server]\ncommand = "docker compose -f {compose} up"\nstop = "docker compose -f {compose} down"\nlint = "{compose}"\n'
        + "".join(f'[[arm]]\nname = "{n}"\nserver = {{ env = {{ BUDGET = {n} }} }}\n' for n in (1024, 2048))
    )
    small, large = read(text).arms[:2]
    assert "must be <= max_num_batched_tokens (1024)" in (refusal(findings(small)) or "")
    assert refusal(findings(large)) is None
    compose.unlink()
    with pytest.raises(UsageError, match=r"arm '1024': server.lint .*compose.yaml: No such file"):
        findings(small)


@pytest.mark.parametrize("name", examples())
def test_the_ready_made_files_can_be_read(name: str) -> None:
    plan = parse((EXAMPLES / f"{name}.toml").read_text(), name, None)
    assert len(plan.arms) > 2 and plan.aa


def test_the_report_has_what_people_ask_about() -> None:
    plan = parse((EXAMPLES / "report.toml").read_text(), "report", None, {"version": "0.25.1"})
    by_name = {arm.name: arm for arm in plan.arms}
    words = {name: " ".join(arm.server.command or ()) for name, arm in by_name.items()}
    assert all(f"--max-num-batched-tokens {name.split()[0].rstrip(',')} " in text + " " for name, text in words.items())
    assert "--no-enable-prefix-caching" in words["8192, prefix caching off"]
    assert words["8192, max_num_seqs 1"].endswith("--max-num-seqs 1")
    assert "--long-prefill-token-threshold 2048" in words["8192, threshold 2048"]
    assert "--prefill-schedule-interval 8" in words["8192, interval 8"]
    refused = [arm.name for arm in plan.arms if refusal(findings(arm))]
    assert refused == ["1024"]
    assert by_name["8192, hold"].server == by_name["8192"].server  # one start serves the gateways' arms too
    assert (by_name["8192"].settings.budget, by_name["8192, pace 0.5"].settings.budget) == (8192, None)
