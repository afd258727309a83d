"""Speed of training on a GPU: bytes per second, and model FLOPs utilisation (MFU)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import torch

from rltok_rl.utils import is_gpu

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
