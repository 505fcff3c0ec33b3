"""Deployments in, findings out: the pure core of `headway lint`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from headway.advisor.deployment import Deployment
from headway.advisor.rules import RULES, LintRule
from headway.advisor.versions import show

SCHEMA = "headway.lint/1"
LEVELS = ("error", "warning", "note")
#: What a finding is worth when it holds in some versions and the version is not known.
_DOUBTED = {"error": "warning", "warning": "note", "note": "note"}


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    name: str
    level: str
    where: str
    option: str
    line: int | None
    file: str | None
    what: str
    why: str
    fix: str
    versions: str
    source: str
    refusal: str | None = None  # the engine does not start, and says this; empty where its words are not known


def check(one: Deployment) -> list[Finding]:
    """Findings on one engine, errors first.

    With an unknown version a rule that holds in some versions only is one level lower and says which
    versions.
    """
    found = [finding for rule in RULES if (finding := _apply(rule, one))]
    return sorted(found, key=lambda f: (LEVELS.index(f.level), f.rule))


def check_all(deployments: Iterable[Deployment]) -> list[Finding]:
    return [finding for one in deployments for finding in check(one)]


def _apply(rule: LintRule, one: Deployment) -> Finding | None:
    holds = rule.versions.holds(one.version)
    if rule.engine != one.engine or holds is False:
        return None
    words = rule.when(one)
    if words is None:
        return None
    doubt = "" if holds else f" (vLLM {rule.versions}; the version is not known here)"
    option = str(words["option"])
    return Finding(
        rule=rule.id,
        name=rule.name,
        level=rule.level if holds else _DOUBTED[rule.level],
        where=one.where,
        option=option,
        line=one.lines.get(option),
        file=one.file,
        what=rule.what.format(**words) + doubt,
        why=rule.why.format(**words),
        fix=rule.fix.format(**words),
        versions=str(rule.versions),
        source=rule.source,
        refusal=rule.refusal.format(**words) if holds and rule.refusal is not None else None,
    )


def failed(findings: Iterable[Finding]) -> bool:
    """True when a finding is worth a non-zero exit: an error or a warning."""
    return any(f.level in ("error", "warning") for f in findings)


def as_json(deployments: list[Deployment], findings: list[Finding]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "engines": [
            {
                "where": one.where,
                "engine": one.engine,
                "version": show(one.version) if one.version else None,
                "model": one.model,
                "block_size": one.block,
                "options": one.options,
                "missing": one.missing,
            }
            for one in deployments
        ],
        "findings": [asdict(f) for f in findings],
    }
