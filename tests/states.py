"""Equality of states of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def same(one: Any, two: Any) -> bool:
    """Return whether two states are equal to the last bit, types included.

    Example:
        >>> same({"a": torch.ones(2), 1: (None, 0.1)}, {"a": torch.ones(2), 1: (None, 0.1)})
        True
    """
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bool(torch.equal(one.cpu(), two.cpu()))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two or one != one and two != two)
