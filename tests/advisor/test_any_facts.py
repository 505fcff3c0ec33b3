"""Whatever JSON is given, the answer is a verdict or a usage error, never a crash."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.advisor.diagnose import UNDETERMINED, diagnose_report
from headway.advisor.lint import check_all
from headway.advisor.logs import read_log
from headway.advisor.scrapes import read_metrics
from headway.advisor.sources import read_deployments
from headway.advisor.verdicts import RULES
from headway.errors import UsageError

CASES = [
    json.loads(line) for path in sorted(Path(__file__).parent.glob("cases_*.jsonl")) for line in path.read_text().splitlines()
]
KEYS = sorted(
    {key for case in CASES for group in case["given"].values() for key in group} | {"data_parallel_size", "dp", "block_size"}
)
ENGINES = sorted({case["engine"] for case in CASES} | {"", "vllm 0.33"})
SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=2)
GROUP = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ENGINES), GROUP, GROUP)
def test_any_report(engine: str, config: dict, observed: dict) -> None:
    try:
        found = diagnose_report({"engine": engine, "given": {"config": config, "observed": observed}})
    except UsageError:
        return
    assert found.verdict in {rule.verdict for rule in RULES} | {UNDETERMINED}
    assert len(found.do) <= 3 and found.evidence
    json.dumps(found.as_json())


HEADS = st.sampled_from(["", "vllm serve ", "services:\n a:\n  command: ", "[Service]\nExecStart="])


@settings(max_examples=150, deadline=None)
@given(HEADS, st.text(max_size=60))
def test_any_text(head: str, tail: str) -> None:
    text = head + tail
    for reader in (read_log, read_metrics):
        with contextlib.suppress(UsageError):
            diagnose_report(reader(text))
    with contextlib.suppress(UsageError):
        check_all(read_deployments(text, "text"))
