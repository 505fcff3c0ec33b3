"""Parts of benchmarks/overhead.py: the upstream, the load, and the gateways that are compared."""
