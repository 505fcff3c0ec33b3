"""HTTP/1.1 on sockets: `listener.listen` for clients, `dialer.dial` for upstreams.

The relay imports `interface` and `framing`; only the place that starts the gateway imports the two factories.
"""
