"""Random seeds and states of torch, Python and NumPy."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed torch, Python and NumPy; with the same integer in all processes that train together."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of torch's, Python's and NumPy's generators, and of the device's if it is a GPU."""
    name, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Restore the states of :func:`random_states`; without one of a GPU, its generator keeps its own."""
    torch.set_rng_state(as_state(states["torch"]))
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(as_state(states["cuda"]), device)


def as_state(state: Tensor) -> Tensor:
    """Return a generator's state as torch wants it, on whatever device it was loaded."""
    return state.to("cpu", torch.uint8)
