"""Must: nothing is lost or left after cancels at random moments and engines that die (benchmarks/soak.py, two thousand)."""

from __future__ import annotations

import pytest

from benchmarks.soak import MOMENTS, soak
from tests.gateway.support import run


@pytest.mark.timeout(300)
def test_two_thousand_cancels_and_four_dead_engines() -> None:
    async def main() -> None:
        found = await soak(2000, 400, say=False)
        assert found["kills"] >= 4 and set(MOMENTS) <= set(found["moments"])
        outcomes = found["outcomes"]
        assert outcomes["client_left"] > 500 and outcomes["upstream_lost"] > 0 and outcomes["replaced"] > 0
        assert found["pieces"] > 0 and found["keepalives"] > 0
        assert found["at_the_end"]["rss_mb"] < found["after_warm_up"]["rss_mb"] + 40

    run(main(), 280)
