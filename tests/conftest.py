"""Property tests draw the same examples each time, so that a red suite means a change; HEADWAY_FUZZ=1 draws new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None)
settings.load_profile("fuzz" if os.environ.get("HEADWAY_FUZZ") == "1" else "repeatable")
