"""The IO shell: it relays bytes, asks the core, and does what the core says. It decides nothing about who goes when."""
