"""What each engine family can do and how to ask it: one module a family, no sockets (a question is bytes, an answer is bytes)."""
