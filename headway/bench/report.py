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
ALIASES = {"intruder_ttft_s": ("t0_s", "turn2_ttft_s"), "victim_ttft_s": ("newcomer_ttft_s", "call_ttft_s")}
TEXT = {
    "same": "the same beside the long prefill as alone", "unknown": "unknown (the answers are empty, or no control is valid)",
    "batch": "differs beside a short neighbour too: batch shapes change it here",
    "corrupt": "DIFFERS beside the long prefill and never beside a short neighbour",
}  # fmt: skip
WORST = 3  # stalls that are named
BESIDE = {True: ", beside a prefill", False: ""}


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
    """Validity, the worst stalls, then every reason for a void run and every note, each once."""
    out = _validity(document["validity"]) if document["validity"] else []
    out += _worst(document)
    told = [f"{run['scenario']}: {text}" for run in document["runs"] for text in [run["void"], *run["notes"]] if text]
    out += [f"{text} ({told.count(text)}x)" for text in dict.fromkeys(told)]
    if document["error"]:
        out.append(f"STOPPED: {document['error']}")
    return out


def _validity(found: dict[str, Any]) -> list[str]:
    seen, control, load = found["overlap"], found["control_share"], found["saturation"]
    known = {True: "yes (cached_tokens)", False: "NO", None: "unknown (the server reports no cached_tokens)"}
    out = [f"INVALID: {text}" for text in found["failures"]]
    if seen["runs"]:
        out.append(f"overlap: {seen['valid']} of {seen['runs']} runs valid")
    if control is not None:
        out.append(f"control, a short neighbour in place of the long prompt: share {control:.2f}")
    if found["text"] is not None:
        out.append(f"text of the victim at temperature 0: {TEXT[found['text']]}")
    if load is not None:
        out.append(f"prefill that arrives a second: {load:.2f} s{' (SATURATED)' if load >= 1 else ''}")
    return [
        *out, f"prefix cache defeated: {known[found['cache_defeated']]}",
        f"event-loop lag of this client: p99 {seconds(found['lag_p99_s'])}, longest {seconds(found['lag_max_s'])}; "
        f"runs above {seconds(found['lag_limit_s'])} are void",
        f"warm-up {found['warm_up_rounds']} rounds, cool-down {found['cool_down_s']:g} s; {found['void_runs']} runs void",
        *(f"warning: {text}" for text in found["warnings"]),
    ]  # fmt: skip


def _worst(document: dict[str, Any]) -> list[str]:
    """The longest stalls of the scenarios that have many streams: which stream, when, how long."""
    out = []
    for name in ("decode-concurrent", "mixed", "trace", "burst"):
        found = [
            (stall["seconds"], f"{name} {run['rep'] + 1}: stream {stall['stream']} ({stall['kind']}) stood still for "
             f"{seconds(stall['seconds'])}, from {stall['at_s']:.2f} s on{BESIDE[stall['during_prefill']]}")
            for run in document["runs"] if run["scenario"] == name and not run["void"] for stall in run["stalls"]
        ]  # fmt: skip
        out += [text for _, text in sorted(found, reverse=True)[:WORST]]
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
