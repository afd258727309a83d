"""What a training ran on: packages, device, revision; and what it took."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rltok_rl.training.atomic_files import replace_text
from rltok_rl.version import __version__

PACKAGES = (
    "torch",
    "torchrl",
    "tensordict",
    "gymnasium",
    "datasets",
    "hydra-core",
    "matplotlib",
    "numpy",
    "safetensors",
)
"""Whose versions are noted; those that are not installed are left out."""


def environment(*, device: str | torch.device = "cpu", command: str = "", num_processes: int = 1) -> dict[str, Any]:
    """What a run depends on besides its configuration; folders of this machine are not named.

    Args:
        device: where it computes.
        command: how it was started.
        num_processes: how many train together.

    Example:
        >>> found = environment(command="rltok train seed=1")
        >>> found["command"], found["device"], found["num_processes"]
        ('rltok train seed=1', 'cpu', 1)
        >>> "torch" in found["packages"]
        True
    """
    kind = torch.device(device).type
    found: dict[str, Any] = {
        "command": without_folders(command),
        "rltok_rl": __version__,
        "git": git_state(Path(__file__).resolve().parent),
        "python": platform.python_version(),
        "packages": {name: known for name in PACKAGES if (known := _version(name)) is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "device": kind,
        "num_processes": num_processes,
        "threads": torch.get_num_threads(),
    }
    if kind == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Revision of the checkout that a folder lies in, and whether files differed from it; None where there is none.

    A package that is installed inside somebody else's checkout, ignored there, belongs to none.

    Args:
        folder: of code.
    """
    listed = _git(folder, "ls-files", "--error-unmatch", "--", ".")
    revision = _git(folder, "rev-parse", "HEAD")
    if not listed or revision is None:
        return None
    changed = _git(folder, "status", "--porcelain")
    return {"revision": revision, "dirty": bool(changed)}


def without_folders(text: str) -> str:
    """A text without the names of the home and the working folder.

    Example:
        >>> without_folders(f"out={Path.cwd()}/runs/mine")
        'out=./runs/mine'
    """
    for folder, short in ((str(Path.cwd()), "."), (os.path.expanduser("~"), "~")):
        if len(folder) > 1:
            text = text.replace(folder + os.sep, short + os.sep)
    return text


def peak_memory(device: str | torch.device = "cpu") -> dict[str, int]:
    """Bytes of memory that this process had at most, and the GPU's where there is one; empty where nobody can say.

    Args:
        device: where it computes.
    """
    found = {}
    try:
        import resource
    except ImportError:  # not on Windows
        pass
    else:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["peak_memory"] = most if sys.platform == "darwin" else 1024 * most
    if torch.device(device).type == "cuda":
        found["peak_gpu_memory"] = torch.cuda.max_memory_allocated(device)
    return found


class Starts:
    """A JSON file with an entry per start of a run: a run that resumes may do so elsewhere.

    Each entry is its :func:`environment`, the update that it went on from, and how far it came in how many seconds, as
    of its last checkpoint.

    Args:
        path: of the file.
        resuming: keep the entries that are there.
    """

    def __init__(self, path: Path, *, resuming: bool = False) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = read_starts(path) if resuming else []

    def begin(self, entry: dict[str, Any], *, update: int, bytes_done: int) -> None:
        """Note a start.

        Args:
            entry: its environment.
            update: the last update that was there.
            bytes_done: bytes trained on until then.
        """
        self.entries.append({**entry, "from_update": update, "from_bytes": bytes_done})
        self.reach(update, bytes_done, 0.0)

    def reach(self, update: int, bytes_done: int, seconds: float) -> None:
        """Note how far the last start came.

        Args:
            update: the last update that is saved.
            bytes_done: bytes trained on.
            seconds: that it took since the start.
        """
        self.entries[-1].update(to_update=update, to_bytes=bytes_done, seconds=round(seconds, 3))
        replace_text(self.path, json.dumps(self.entries, indent=1) + "\n")


def read_starts(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of :class:`Starts`; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


def bytes_per_second(entries: list[dict[str, Any]]) -> float | None:
    """Speed of a run over all its starts, looks and checkpoints included; None before the first checkpoint.

    Args:
        entries: of :class:`Starts`.

    Example:
        >>> bytes_per_second([{"from_bytes": 0, "to_bytes": 600, "seconds": 3.0}])
        200.0
    """
    seconds = sum(entry["seconds"] for entry in entries)
    return sum(entry["to_bytes"] - entry["from_bytes"] for entry in entries) / seconds if seconds else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine(device: str) -> str:
    """One line on what the figures were taken on."""
    processor = platform.processor() or platform.machine()
    for text in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if text.startswith("model name"):
            processor = text.partition(":")[2].strip()
            break
    gpu = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{processor}, {torch.get_num_threads()} threads{gpu}; {versions}"
