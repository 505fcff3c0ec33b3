"""How close the simulator comes to measured engines: the tables of docs/results/fidelity.md.

    python benchmarks/fidelity.py            # tables from the stored fits, on standard output
    python benchmarks/fidelity.py --fit      # fits again first and writes tests/fidelity/data/fitted.json
    python benchmarks/fidelity.py --page     # writes the tables into docs/results/fidelity.md

All from the data in tests/fidelity/data; some minutes on two cores with --fit, one without.
"""

from __future__ import annotations

import argparse
import json
from multiprocessing import Pool
from pathlib import Path

from headway.lab.fidelity import h200, ppas, report

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "fidelity" / "data"
PAGE = ROOT / "docs" / "results" / "fidelity.md"
MARK = "<!-- from here on written by benchmarks/fidelity.py -->\n"


def tables() -> str:
    figures = report.read(DATA)
    runs = ppas.load(DATA / "ppas.csv")
    with Pool() as pool:
        found = report.errors(runs, figures, runs, pool.map)
    groups = {rig: [one for one in found if one.run is not None and one.run.rig == rig] for rig in report.rigs(runs)}
    everything = {**groups, "all of the above": found, "rtx4090 llama-3.1-8b": report.serving_errors(DATA, figures)}
    held_out = [one for one in found if not one.calibrated]
    out = ["## Runs and requests\n", report.table(everything), "", "## Order of budgets\n"]
    for name, title in (("ttft", "TTFT"), ("tpot", "Time a token")):
        right, pairs = report.order(found, name)
        apart = f"{pairs:,} pairs of budgets that differ by more than {report.APART:.0%}"
        out.append(f"{title}: {right:,} of {apart} are in the right order.\n")
    out += ["## RTX 5090, Qwen2.5-3B: predicted runs by what they differ in\n", report.table(report.slices(held_out)), ""]
    arms = h200.compare(DATA)
    out += ["## One H200: arms\n", h200.table(arms), ""]
    for name, title in (("rate", "Victim's rate"), ("gap", "Longest gap"), ("ttft", "TTFT")):
        pairs, wrong = h200.order(arms, name)
        told = "; ".join(f"{x} against {y}" for x, y in wrong) or "none"
        out.append(
            f"{title}: {pairs - len(wrong)} of {pairs} pairs of arms measurably apart are in the right order. Wrong: {told}.\n"
        )
    out += ["## Fitted figures\n", "Seconds, and seconds a token.\n"]
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    rows = [[rig, *(f"{each[n]:.3g}" if n in each else "-" for n in names)] for rig, each in figures.items()]
    out.append(report.markdown(["rig", *names], rows))
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--page", action="store_true")
    wanted = parser.parse_args()
    if wanted.fit:
        with Pool() as pool:
            fitted = report.calibrate(DATA, pool.map)
        (DATA / report.FIGURES).write_text(json.dumps(fitted, indent=1) + "\n")
    text = tables()
    if wanted.page:
        PAGE.write_text(PAGE.read_text().split(MARK)[0] + MARK + "\n" + text)
    else:
        print(text)


if __name__ == "__main__":
    main()
