"""Argument checks of the model's public methods.

Values are checked on the CPU; on an accelerator, where the host would have to wait, by asynchronous device assertions.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST = "boundaries must be 1 at the first byte of every row (a_0 = 1: there must be a first token)"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_byte_ids(byte_ids: Tensor, num_ids: int, *, rank: int = 2) -> None:
    """Require integer ids in ``[0, num_ids)`` of the given rank."""
    shape = {1: "[B]", 2: "[B, T]"}[rank]
    if not isinstance(byte_ids, Tensor):
        raise TypeError(f"byte_ids must be a tensor of shape {shape}, got {type(byte_ids).__name__}")
    if byte_ids.dtype not in _INTEGERS:
        raise TypeError(f"byte_ids must be an integer tensor, got {byte_ids.dtype}; allowed are {list(_INTEGERS)}")
    if byte_ids.dim() != rank:
        raise ValueError(f"byte_ids must have shape {shape}, got {list(byte_ids.shape)}")
    special = f" (256 to {num_ids - 1} are the special ids)" if num_ids > 256 else ""
    wide = byte_ids.long()  # as uint8, 256 would wrap around to 0
    _check_all((wide >= 0) & (wide < num_ids), byte_ids, f"byte_ids must lie in 0..{num_ids - 1}{special}")


def check_boundaries(boundaries: Tensor, shape: torch.Size, *, first: bool = True) -> None:
    """Require a string of 0 and 1 of the given shape that (if ``first``) begins with a boundary."""
    if not isinstance(boundaries, Tensor):
        raise TypeError(f"boundaries must be a tensor of shape {list(shape)}, got {type(boundaries).__name__}")
    if boundaries.dtype != torch.bool and boundaries.dtype not in _INTEGERS:
        raise TypeError(f"boundaries must be bool or integer, got {boundaries.dtype}")
    if boundaries.shape != shape:
        raise ValueError(f"boundaries must have the shape of byte_ids, {list(shape)}, got {list(boundaries.shape)}")
    if boundaries.dtype != torch.bool:
        _check_all((boundaries == 0) | (boundaries == 1), boundaries, "boundaries must be 0 or 1")
    if first:
        _check_all(boundaries[..., :1].bool(), boundaries[..., :1], _FIRST)


def check_first_boundaries(boundaries: Tensor, position: Tensor) -> None:
    """Require a boundary [B] in every row at ``position`` 0."""
    _check_all((position > 0) | (boundaries == 1), boundaries, _FIRST)


def check_rates(rates: float | Tensor, shape: torch.Size) -> None:
    """Require a target rate in (0, 1), or a tensor of them with the first dimensions of ``shape``."""
    bounds = "target_rate must lie strictly between 0 and 1"
    if not isinstance(rates, Tensor):
        if isinstance(rates, bool) or not isinstance(rates, (int, float)):
            raise TypeError(f"target_rate must be a number or a tensor of one per row, got {rates!r}")
        if not 0.0 < rates < 1.0:
            raise ValueError(f"{bounds}, got {rates}")
        return
    if not rates.dtype.is_floating_point:
        raise TypeError(f"target_rate must be a floating-point tensor, got {rates.dtype}")
    if rates.shape != shape[: rates.dim() or 1]:  # a single byte, without rows, has a rate without dimension
        raise ValueError(f"target_rate must have one rate per row, {list(shape[:1])}, got {list(rates.shape)}")
    _check_all((rates > 0) & (rates < 1), rates, bounds)


def check_pending(pending: Tensor, *, expected: bool) -> None:
    """Require that observing and deciding alternate in every row of ``pending`` [n]."""
    if pending.device.type != "cpu":
        torch._assert_async((pending == expected).all())
    elif not bool((pending == expected).all()):
        if expected:
            raise RuntimeError("decide needs an observed byte in every row; call observe first")
        raise RuntimeError("observe was called twice for a row; decide the boundary of the byte read last first")


def _check_all(condition: Tensor, values: Tensor, message: str) -> None:
    if torch.compiler.is_compiling():
        return
    if condition.device.type != "cpu":
        torch._assert_async(condition.all())
    elif not condition.all():
        first, *others = (~condition).nonzero().tolist()
        more = f" and {len(others)} more" if others else ""
        raise ValueError(f"{message}, got {values[tuple(first)].item()} at index {first}{more}")
