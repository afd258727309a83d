"""Random states, and equality of states of training."""

from __future__ import annotations

from typing import Any

import torch


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator on the CPU."""
    return torch.Generator().manual_seed(seed)


def same(one: Any, two: Any) -> bool:
    """Return whether two states are equal to the last bit, types included."""
    if type(one) is not type(two):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and bool(torch.equal(one.cpu(), two.cpu()))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two or one != one and two != two)
