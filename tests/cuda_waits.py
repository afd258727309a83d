"""Find where the host waits for a GPU, by torch's own detector."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cuda_waits(reaction: str = "error") -> Iterator[None]:
    """Let torch raise an ``error``, or ``warn``, where the host waits for the GPU in this block."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            torch.cuda.set_sync_debug_mode(reaction)
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
