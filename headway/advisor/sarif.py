"""Findings as SARIF 2.1.0, the form that code hosts show beside the changed line."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from headway import __version__
from headway.advisor.lint import Finding
from headway.advisor.rules import RULES


def as_sarif(findings: list[Finding]) -> dict[str, Any]:
    """One run with every rule of the table and one result a finding."""
    rules = [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.name.replace("-", " ")},
            "fullDescription": {"text": rule.why},
            "helpUri": rule.source,
            "defaultConfiguration": {"level": rule.level},
            "properties": {"engine": rule.engine, "versions": str(rule.versions)},
        }
        for rule in RULES
    ]
    order = {rule.id: index for index, rule in enumerate(RULES)}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "headway lint", "version": __version__, "rules": rules}},
                "results": [_result(finding, order[finding.rule]) for finding in findings],
            }
        ],
    }


def _uri(path: str) -> str:
    """A path as a URI reference: relative paths stay relative to the repository's root."""
    return f"file://{quote(path)}" if path.startswith("/") else quote(path)


def _result(finding: Finding, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": f"{finding.where}: {finding.what}. {finding.fix}."},
    }
    if finding.file:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.file)}}
        if finding.line:
            place["region"] = {"startLine": finding.line}
        result["locations"] = [{"physicalLocation": place}]
    return result
