"""A headway.arms/1 document as tables: on a terminal, and as a Markdown page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from headway.bench.arms.document import ALONE
from headway.bench.report import TEXT
from headway.bench.tables import markdown, seconds

Document = Mapping[str, Any]
#: title, figure, in seconds
COLUMNS = (
    ("victim tokens/s", "victim_tokens_per_s", False), ("share", "share", False), ("longest gap", "longest_gap_s", True),
    ("stalled", "stalled_s", True), ("victim's TTFT", "victim_ttft_s", True), ("intruder's TTFT", "intruder_ttft_s", True),
    ("T/T0", "stretch", False), ("excess", "excess", False),
)  # fmt: skip
LEFT_OUT = ("repetitions: too few", "p99 of gaps")  # of an arm's warnings
TITLE = "Arms: a live answer beside a long prefill"
SHOWN = ("share", "longest_gap_s", "stalled_s", "victim_ttft_s", "intruder_ttft_s", "stretch")
TITLES = {figure: title for title, figure, _ in COLUMNS}
TIMES = {figure for _, figure, timed in COLUMNS if timed}
SIDE = ("victim-alone", "overlap-control", ALONE)  # what the others are judged by; no table of their own


def scenarios(document: Document) -> list[str]:
    """Those that say something of the arms, in the order in which they ran."""
    return [name for name in dict.fromkeys(run["scenario"] for run in document["runs"]) if name not in SIDE]


def _cell(found: Mapping[str, Any] | None, figure: str) -> str:
    if found is None:
        return "-"
    low, high = (found["low"], found["high"]) if found["low"] is not None else (found["min"], found["max"])
    return spread(found["median"], None if found["n"] == 1 else (low, high), figure)


def spread(value: float, ends: tuple[float, float] | None, figure: str, signed: bool = False) -> str:
    """`650 ms (644 .. 651)`: one unit for all three."""
    scale, digits, unit = 1.0, 3 if figure == "share" else 1 if figure.endswith("tokens_per_s") else 2, ""
    if figure in TIMES:
        scale, digits, unit = (1e3, 0, " ms") if abs(value) < 0.9995 else (1.0, 2, " s")

    def show(one: float) -> str:
        text = f"{scale * one:+.{digits}f}" if signed else f"{scale * one:.{digits}f}"
        return text.replace("-", "−")

    return f"{show(value)}{unit}" + (f" ({show(ends[0])} .. {show(ends[1])})" if ends else "")


def headers(document: Document, scenario: str) -> list[str]:
    return [scenario, *(title for title, figure, _ in COLUMNS if _has(document, scenario, figure)), "T0", "runs"]


def _has(document: Document, scenario: str, figure: str) -> bool:
    return any(figure in arm["summary"].get(scenario, {}) for arm in document["arms"])


def rows(document: Document, scenario: str) -> list[list[str]]:
    out = []
    for arm in document["arms"]:
        figures = arm["summary"].get(scenario, {})
        runs = [run for run in document["runs"] if run["arm"] == arm["name"] and run["scenario"] == scenario]
        cells = [_cell(figures.get(figure), figure) for _, figure, _ in COLUMNS if _has(document, scenario, figure)]
        state = arm["state"] if not runs else f"{sum(not run['void'] for run in runs)} of {len(runs)} valid"
        out.append([arm["name"], *cells, seconds(arm["t0_s"]), state])
    return out


def difference_headers(document: Document, scenario: str) -> list[str]:
    return [f"{scenario}: difference from {document['baseline']}", *(TITLES[figure] for figure in _compared(document, scenario))]


def _compared(document: Document, scenario: str) -> list[str]:
    found = {one["figure"] for one in document["differences"] if one["scenario"] == scenario and one["low"] is not None}
    return [figure for figure in SHOWN if figure in found]


def difference_rows(document: Document, scenario: str) -> list[list[str]]:
    """An arm a row, and last the A/A floor; other figures stand in the document. Nothing under three repetitions."""
    of = {(one["arm"], one["figure"]): one for one in document["differences"] if one["scenario"] == scenario}
    floors = {one["figure"]: one["floor"] for one in document["floors"] if one["scenario"] == scenario}
    figures = _compared(document, scenario)
    arms = dict.fromkeys(name for name, _ in of)
    out = [[arm, *(_difference(of.get((arm, figure)), figure) for figure in figures)] for arm in arms]
    if out and floors:
        out.append(
            ["A/A floor", *("±" + spread(floors[figure], None, figure) if figure in floors else "-" for figure in figures)]
        )
    return out if figures else []


def _difference(one: Mapping[str, Any] | None, figure: str) -> str:
    """What is called stands there with its interval; what is not says why."""
    if one is None:
        return "-"
    if one["low"] is None or one["called"] not in ("higher", "lower"):
        return str(one["called"])
    return spread(one["difference"], (one["low"], one["high"]), figure, signed=True)


def remarks(document: Document) -> list[str]:
    """Everything that a reader must know beside the figures, each once."""
    out = []
    if document["interrupted"]:
        out.append("INTERRUPTED: run the same command again to go on")
    reps = document["reps"]
    if reps < 5:
        out.append(f"warning: {reps} repetitions are few; 5 or more are better, and under 3 there is no interval")
    if document["aa"] is None:
        out.append("warning: without an A/A arm (aa = false) no difference is called")
    for arm in document["arms"]:
        if arm["refused"]:
            out.append(f"{arm['name']} was not started: {arm['refused']}")
        if arm["t0_of"] not in (None, arm["name"]):
            out.append(f"{arm['name']}: T0 is that of {arm['t0_of']!r}, the same engine without a gateway")
        out += [f"{arm['name']}: {text}" for text in arm["traps"]]
    out += [f"{f['arm']}, repetition {f['rep'] + 1}, FAILED ({f['stage']}): {f['reason']}" for f in document["failures"]]
    out += _grouped([(arm["name"], text) for arm in document["arms"] for text in _validity(arm)])
    told = [(run["arm"], run["scenario"], text) for run in document["runs"] for text in [run["void"], *run["notes"]] if text]
    out += _grouped([(arm, f"{scenario}: {text}") for arm, scenario, text in told])
    return [*out, *document["notes"]]


def _validity(arm: Mapping[str, Any]) -> list[str]:
    """What its runs prove about themselves. Few repetitions are said once for all arms, and no p99 of gaps is shown here."""
    found = arm["validity"]
    if found is None:
        return []
    cache = {True: [], False: [], None: ["prefix cache: not known to be defeated (no cached_tokens, or a gateway's pieces)"]}
    return [
        *(f"INVALID: {text}" for text in found["failures"]),
        *([] if found["text"] is None else [f"text of the victim at temperature 0: {TEXT[found['text']]}"]),
        *cache[found["cache_defeated"]],
        *(f"warning: {text}" for text in found["warnings"] if not any(words in text for words in LEFT_OUT)),
    ]


def _grouped(told: Sequence[tuple[str, str]]) -> list[str]:
    """Each text once, with the arms of which it is true and how often."""
    arms_of: dict[str, list[str]] = {}
    for arm, text in told:
        arms_of.setdefault(text, []).append(arm)
    out = []
    for text, arms in arms_of.items():
        times = {name: arms.count(name) for name in dict.fromkeys(arms)}
        out.append(f"{text} ({', '.join(name if count == 1 else f'{name} {count}x' for name, count in times.items())})")
    return out


def explanation(document: Document) -> list[str]:
    """How to read the tables."""
    reps = document["reps"]
    spread = "95 % bootstrap interval of the median over repetitions" if reps >= 3 else "smallest .. largest"
    out = [f"Median ({spread}); {reps} repetitions, interleaved."]
    if document["differences"]:
        out.append(
            f"Differences are from {document['baseline']!r}. A difference is called only when its interval leaves out zero and "
            f"it is larger than the A/A floor: the most by which {document['baseline']!r} may differ from itself."
        )
    return out


def _words(words: Sequence[str]) -> str:
    return shlex.join(words).replace("'{port}'", "{port}").replace("'{url}'", "{url}")


def how(arm: Mapping[str, Any]) -> str:
    server = arm["server"]
    told = f"`{_words(server['command'])}`" if server["command"] else f"running at {server['url']}"
    if server["env"]:
        told += " with " + " ".join(f"`{name}={value}`" for name, value in server["env"])
    if arm["gateway"] is not None:
        told += f", behind `{_words(['headway', 'serve', *arm['gateway']])}`"
    return f"{told}, version {', '.join(arm['versions'])}" if arm["versions"] else told


def page(document: Document, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Markdown, ready to paste. `pictures`: (title, path)."""
    title = document["title"] or TITLE
    settings = document["arms"][0]["settings"]
    lines = [
        f"# {title}", "",
        f"Victim {settings['victim_in']}/{settings['victim_out']} tokens in/out, intruder {settings['intruder_in']:,}/"
        f"{settings['intruder_out']}. {' '.join(explanation(document))} headway {document['headway']}.", "",
    ]  # fmt: skip
    for name in scenarios(document):
        lines += [markdown(headers(document, name), rows(document, name)), ""]
        if found := difference_rows(document, name):
            lines += [markdown(difference_headers(document, name), found), ""]
    lines += [line for text, path in pictures for line in (f"![{text}]({path})", "")]
    if told := remarks(document):
        lines += ["## Remarks", "", *(f"- {text}" for text in told), ""]
    lines += ["## Arms", "", *(f"- **{arm['name']}**: {how(arm)}" for arm in document["arms"]), ""]
    return "\n".join(lines)
