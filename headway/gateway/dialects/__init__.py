"""API dialects: which part of a body is the prompt, which event is the first output, what an error looks like.

A dialect is one row in `table.DIALECTS`; a path that has none is relayed as bytes.
"""
