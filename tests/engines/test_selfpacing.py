"""Which engines pace prefill by themselves, told from their own pages."""

from __future__ import annotations

import pytest

from headway.engines.selfpacing import by_metrics, by_sglang_config, by_vllm_config

TEXT = "SchedulerConfig(max_num_batched_tokens=2048, prefill_schedule_interval={}, policy='fcfs'), data_parallel_size={}"
JSON = '{{"scheduler_config": {{"prefill_schedule_interval": {}}}, "parallel_config": {{"data_parallel_size": {}}}}}'


def test_the_scheduler_class_shows_in_metrics() -> None:
    page = '# TYPE headway_scheduler_share_target gauge\nheadway_scheduler_share_target{pid="7"} 0.75\nvllm:x 0\n'
    assert "0.75" in by_metrics(page)
    assert by_metrics("vllm:num_requests_running 0\n# headway_scheduler_share_target is not here\n") == ""


@pytest.mark.parametrize("page", [TEXT, JSON])
@pytest.mark.parametrize(
    ("version", "interval", "ranks", "paces"),
    [
        ("0.33.0", 4, 1, True),
        ("0.33.0", 1, 1, False),
        ("0.33.0", 0, 1, False),
        ("0.32.0+cpu", 4, 1, False),  # without data parallelism the option does nothing there
        ("0.32.0", 4, 2, True),
        ("0", 4, 1, False),
    ],
)
def test_vllms_interval_counts_where_it_works(page: str, version: str, interval: int, ranks: int, paces: bool) -> None:
    assert bool(by_vllm_config(page.format(interval, ranks), version)) is paces


@pytest.mark.parametrize(
    ("info", "paces"),
    [({"prefill_decode_interval": 2}, True), ({"prefill_decode_interval": 0}, False), ({}, False), ([], False), (None, False)],
)
def test_sglangs_interval(info: object, paces: bool) -> None:
    assert bool(by_sglang_config(info)) is paces
