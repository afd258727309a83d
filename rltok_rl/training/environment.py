"""A run's environment: packages, device, revision, memory, speed, and the starts of a run that was resumed."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rltok_rl.data.disk import replace_text
from rltok_rl.foreign import COUNT, MOST_STATE, POSITIVE, TEXT, ValueKind, check_rows, read_json
from rltok_rl.fused import fused_state
from rltok_rl.utils import is_gpu
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
"""Packages whose versions are recorded if they are installed."""


def environment(*, device: str | torch.device = "cpu", command: str = "", num_processes: int = 1) -> dict[str, Any]:
    """Return command, versions, commit and machine of a run, without folder names."""
    kind = torch.device(device).type
    gpu = {"gpu": torch.cuda.get_device_name(device)} if kind == "cuda" else {}
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "command": without_folders(command),
        "rltok_rl": __version__,
        "git": git_state(Path(__file__).resolve().parent),
        "python": platform.python_version(),
        "packages": packages,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": kind,
        "num_processes": num_processes,
        "threads": torch.get_num_threads(),
        "fused": fused_state(),
        **gpu,
    }


def machine(device: str | torch.device) -> str:
    """Describe processor, vector instructions that torch uses, threads, GPU and versions in one line."""
    gpu = f", {torch.cuda.get_device_name(device)}" if torch.device(device).type == "cuda" else ""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    processor = f"{_processor()} ({torch.backends.cpu.get_cpu_capability()})"
    return f"{processor}, {torch.get_num_threads()} threads{gpu}; {versions}"


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return revision and dirtiness of a folder's checkout; None outside of one, or if git ignores the folder.

    ``dirty`` is None if ``git status`` fails or takes too long.
    """
    listed = _git(folder, "ls-files", "--error-unmatch", "--", ".")
    revision = _git(folder, "rev-parse", "HEAD")
    if not listed or revision is None:
        return None
    changes = _git(folder, "status", "--porcelain")
    return {"revision": revision, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def without_folders(text: str) -> str:
    """Replace the working folder by ``.`` and the home folder by ``~``.

    Example:
        >>> without_folders(f"out={Path.cwd()}/runs/mine")
        'out=./runs/mine'
    """
    for folder, short in ((str(Path.cwd()), "."), (os.path.expanduser("~"), "~")):
        if len(folder) > 1:
            text = text.replace(folder + os.sep, short + os.sep)
    return text


def peak_memory(device: str | torch.device = "cpu") -> dict[str, int]:
    """Return the peak memory of this process, and of its GPU, in bytes; not of a process on Windows."""
    peaks = {}
    if sys.platform != "win32":
        import resource

        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks["peak_memory"] = kilobytes if sys.platform == "darwin" else 1024 * kilobytes
    if torch.device(device).type == "cuda":
        peaks["peak_gpu_memory"] = torch.cuda.max_memory_allocated(device)
    return peaks


class CpuClock:
    """CPU seconds of this process and its threads since the clock was made; those of child processes are left out."""

    def __init__(self) -> None:
        self._start = time.process_time()

    @property
    def seconds(self) -> float:
        """CPU seconds so far, those spent in :meth:`paused` left out."""
        return time.process_time() - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the CPU seconds of a block."""
        begin = time.process_time()
        try:
            yield
        finally:
            self._start += time.process_time() - begin


class Starts:
    """A JSON file with an entry per start of a run, which may resume on another machine.

    Each entry is its :func:`environment`, with the update it resumed after, and the updates, seconds and CPU seconds up
    to its last checkpoint.
    """

    def __init__(self, path: Path, *, resuming: bool = False) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        try:
            self.entries = read_starts(path) if resuming else []
        except ValueError as error:
            print(f"warning: {error}; it begins again with this start", file=sys.stderr)

    def begin(self, entry: dict[str, Any], *, update: int, bytes_done: int) -> None:
        """Record a start; ``update`` is the one it resumes after, 0 for a new run."""
        self.entries.append({**entry, "from_update": update, "from_bytes": bytes_done})
        self.reach(update, bytes_done, 0.0, 0.0)

    def reach(self, update: int, bytes_done: int, seconds: float, cpu_seconds: float) -> None:
        """Record the last saved update of this start, its bytes, and the seconds and CPU seconds since the start."""
        reached = {"to_update": update, "to_bytes": bytes_done}
        self.entries[-1].update(reached, seconds=round(seconds, 3), cpu_seconds=round(cpu_seconds, 3))
        replace_text(self.path, json.dumps(self.entries, indent=1) + "\n")


CHANGES = {False: "", True: " with changes", None: " with unknown changes"}
"""Words after a revision by the ``dirty`` of :func:`git_state`."""
_GIT = ValueKind(
    "a revision and whether files differ from it, or null if unknown",
    lambda git: (
        isinstance(git, dict) and isinstance(git.get("revision"), str) and isinstance(git.get("dirty", ""), bool | None)
    ),
)
_REACHED = {"from_bytes": COUNT, "to_bytes": COUNT, "seconds": POSITIVE}
_START = {
    **_REACHED,
    "cpu_seconds": POSITIVE,
    **dict.fromkeys(("command", "rltok_rl", "python", "system", "processor", "cpu_capability", "device", "gpu"), TEXT),
    **dict.fromkeys(("num_processes", "threads", "from_update", "to_update"), COUNT),
    "packages": TEXT.by_name(),
    "git": _GIT.or_none(),
}


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a :class:`Starts` file; none if there is no file."""
    return check_rows(read_json(path, MOST_STATE), _START, path, _REACHED) if path.exists() else []


def bytes_per_second(entries: list[dict[str, Any]]) -> float | None:
    """Return a run's speed over all starts, evaluations and checkpoints included; None before the first checkpoint.

    Example:
        >>> bytes_per_second([{"from_bytes": 0, "to_bytes": 600, "seconds": 3.0}])
        200.0
    """
    seconds = sum(entry["seconds"] for entry in entries)
    return sum(entry["to_bytes"] - entry["from_bytes"] for entry in entries) / seconds if seconds else None


def cpu_seconds(entries: list[dict[str, Any]]) -> float | None:
    """Return the CPU seconds of training over all starts; None if one of them has not recorded its own.

    Example:
        >>> cpu_seconds([{"cpu_seconds": 3.0}, {"cpu_seconds": 0.5}]), cpu_seconds([{"cpu_seconds": 3.0}, {}])
        (3.5, None)
    """
    recorded = [entry["cpu_seconds"] for entry in entries if "cpu_seconds" in entry]
    return sum(recorded) if entries and len(recorded) == len(entries) else None


PEAKS = {
    r"\bA100\b": 312e12,
    r"\bH100 PCIe\b": 756e12,
    r"\bH[12]00 NVL\b": 835e12,
    r"\bH[12]00\b": 989e12,
    r"\bB200\b": 2250e12,
}
"""Dense bfloat16 FLOPs per second by pattern of the GPU's name; the first one that matches counts.

From NVIDIA's data sheets of A100, H100, H200 and HGX B200 (a part of eight); half of those "with sparsity".
"""


def peak_flops(name: str) -> float | None:
    """Return a GPU's peak in dense bfloat16 FLOPs per second; None if its name is not in :data:`PEAKS`.

    Example:
        >>> peak_flops("NVIDIA H100 80GB HBM3"), peak_flops("NVIDIA H100 PCIe"), peak_flops("NVIDIA GH200 480GB")
        (989000000000000.0, 756000000000000.0, None)
    """
    return next((peak for pattern, peak in PEAKS.items() if re.search(pattern, name)), None)


class Speed:
    """Clock of updates whose metrics are fetched together; without a GPU it measures nothing.

    ``name`` is the GPU's; metrics on the CPU have no times, so that a run's files are the same every time.
    """

    def __init__(self, name: str | None, world_size: int = 1) -> None:
        self.name, self.world_size = name, world_size
        self.peak = None if name is None else peak_flops(name)
        self._since: float | None = None

    @classmethod
    def of(cls, device: torch.device, world_size: int) -> Speed:
        """Return the clock of processes that each have a device like this one."""
        return cls(torch.cuda.get_device_name(device) if is_gpu(device) else None, world_size)

    def start(self) -> None:
        """Start the clock unless it is running."""
        self._since = time.perf_counter() if self._since is None else self._since

    def add_to(self, updates: Sequence[tuple[dict[str, float], float]], num_bytes: float) -> None:
        """Stop the clock and add ``bytes_per_second``, and ``mfu`` if the peak is known, to the metrics of updates.

        Each update has metrics and FLOPs; their time includes that of updates that are repeated. Without updates the
        clock keeps running.
        """
        if not updates or self._since is None:
            return
        seconds, self._since = (time.perf_counter() - self._since) / len(updates), None
        for metrics, flops in updates if self.name is not None else ():
            metrics["bytes_per_second"] = num_bytes / seconds
            if self.peak is not None:
                metrics["mfu"] = flops / (seconds * self.peak * self.world_size)
