"""What is decided, and nothing else: a caller brings events and their times, and carries out what comes back.

Rules of this room: no IO, no asyncio, no clock, no randomness, no import from any other room.
Times are seconds of one monotonic clock; the caller passes `now` with every event, and it never runs backwards.
"""
