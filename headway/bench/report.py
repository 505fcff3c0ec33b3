"""A bench document as tables: on a terminal, and in Markdown for a docs page."""

from __future__ import annotations

from typing import Any

from headway.bench.tables import markdown, number, seconds

COLUMNS = (
    ("victim tokens/s", "victim_tokens_per_s"), ("share", "share"), ("longest gap", "longest_gap_s"),
    ("stalled", "stalled_s"), ("victim's TTFT", "victim_ttft_s"), ("intruder's TTFT", "intruder_ttft_s"),
    ("T/T0", "stretch"), ("frontier", "frontier_ttft_s"), ("excess", "excess"),
)  # fmt: skip
HEADERS = ["scenario", *(title for title, _ in COLUMNS), "runs"]
ALIASES = {"intruder_ttft_s": ("t0_s", "turn2_ttft_s"), "victim_ttft_s": ("newcomer_ttft_s",)}


def rows(document: dict[str, Any]) -> list[list[str]]:
    out = []
    for name, figures in document["summary"].items():
        runs = [run for run in document["runs"] if run["scenario"] == name]
        cells = []
        for _, key in COLUMNS:
            found = next((figures[k] for k in (key, *ALIASES.get(key, ())) if k in figures), None)
            value = found["median"] if found else None
            cells.append(seconds(value) if key.endswith("_s") and key != "victim_tokens_per_s" else number(value))
        out.append([name, *cells, f"{sum(not run['void'] for run in runs)} of {len(runs)}"])
    return out


def remarks(document: dict[str, Any]) -> list[str]:
    """Validity, then every reason for a void run and every note, each once."""
    validity, out = document["validity"], []
    if validity:
        seen = validity["overlap"]
        out.append(f"overlap: {seen['valid']} of {seen['runs']} runs valid")
        known = {True: "yes (cached_tokens)", False: "NO", None: "unknown (the server reports no cached_tokens)"}
        out.append(f"prefix cache defeated: {known[validity['cache_defeated']]}")
        out.append(f"event-loop lag of this client, p99: {seconds(validity['lag_p99_s'])}")
        out += [f"warning: {text}" for text in validity["warnings"]]
    told = [f"{run['scenario']}: {text}" for run in document["runs"] for text in [run["void"], *run["notes"]] if text]
    out += [f"{text} ({told.count(text)}x)" for text in dict.fromkeys(told)]
    if document["error"]:
        out.append(f"STOPPED: {document['error']}")
    return out


def page(document: dict[str, Any]) -> str:
    server, settings = document["server"], document["settings"]
    shape = (
        f"victim {settings['victim_in']}/{settings['victim_out']}, "
        f"intruder {settings['intruder_in']:,}/{settings['intruder_out']}"
    )
    return "\n".join([
        f"# Decode beside prefill: {server['model']}", "",
        f"Server version {server['version'] or 'unknown'}; {shape} tokens in/out; {settings['reps']} repetitions, "
        f"medians; headway {document['headway']}.", "",
        markdown(HEADERS, rows(document)), "", *(f"- {text}" for text in remarks(document)), "",
    ])  # fmt: skip
