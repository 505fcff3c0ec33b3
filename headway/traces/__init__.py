"""Recorded traffic: who sent how many tokens when, and which of them an engine had seen before. Pure parsing; no prompts."""

from headway.traces.arrange import Cut
from headway.traces.formats import FORMATS, read
from headway.traces.record import Call, TraceError

__all__ = ["FORMATS", "Call", "Cut", "TraceError", "read"]
