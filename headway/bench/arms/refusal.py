"""Arms that the engine would refuse to start: known beforehand from its own rules (headway lint), without a start."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from headway.advisor.commandline import expand
from headway.advisor.lint import Finding, check_all
from headway.advisor.sources import read_deployments
from headway.advisor.versions import parse_version
from headway.bench.arms.plan import Arm
from headway.errors import UsageError


def findings(arm: Arm) -> list[Finding]:
    """What lint says of the arm's server; nothing where its command starts no engine that lint knows."""
    server = arm.server
    if server.lint:
        try:
            text = Path(server.lint).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"arm {arm.name!r}: server.lint {server.lint}: {getattr(error, 'strerror', None) or error}"
            ) from None
        found = read_deployments(expand(text, dict(server.env)), server.lint, file=server.lint)
    elif server.command:
        try:
            found = read_deployments(shlex.join(server.command), f"arm {arm.name!r}")
        except UsageError:
            return []
    else:
        return []
    for one in found:
        one.version = parse_version(server.engine_version) or one.version
        one.environment = {**one.environment, **dict(server.env)}
        one.config = _config(arm) or one.config
    return check_all(found)


def _config(arm: Arm) -> dict[str, Any] | None:
    if arm.server.model_config is None:
        return None
    try:
        found = json.loads(Path(arm.server.model_config).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"arm {arm.name!r}: server.model_config: {arm.server.model_config}: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"arm {arm.name!r}: server.model_config: {arm.server.model_config}: not a JSON object")
    return found


def refusal(found: list[Finding]) -> str | None:
    """Why the engine would not start, in its own words where they are known; None when it would."""
    for one in found:
        if one.refusal is not None:
            said = f'the engine refuses it: "{one.refusal}"' if one.refusal else f"the engine refuses it: {one.what}"
            return f"{said} ({one.rule}; {one.fix})"
    return None


def traps(found: list[Finding]) -> list[str]:
    """What else is known of the arm beforehand and worth a line beside its figures: errors and warnings that start."""
    return [f"{one.rule}: {one.what}" for one in found if one.refusal is None and one.level in ("error", "warning")]
