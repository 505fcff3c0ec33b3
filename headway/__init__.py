"""Headway keeps live LLM answers streaming while long prompts come in."""

__version__ = "0.1.0"
