"""Engines and gateways that a measurement starts for itself: a real vLLM on this CPU, the embedded engine,
the gateway.
"""
