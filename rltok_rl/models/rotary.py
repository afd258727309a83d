"""Rotary positions: queries and keys turn with their position, so that scores see only distances."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """Cosines and sines of every position's angles."""

    cos: Tensor  # [*L, 1, head_size / 2], float32; the 1 stands for the heads
    sin: Tensor  # [*L, 1, head_size / 2]


def rotary(positions: Tensor, head_size: int, base: float) -> Rotary:
    """Return the angles ``position * base^(-2i / head_size)`` as cosines and sines.

    Tokens pass the position of their boundary byte, so that bytes and tokens share one clock.

    Args:
        positions: [*L] integer positions.
        head_size: channels of one head, even.
        base: base of the frequencies.
    """
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angles = positions.to(torch.float32)[..., None, None] * base**-exponents  # [*L, 1, head_size / 2]
    return Rotary(angles.cos(), angles.sin())


def rotate(x: Tensor, angles: Rotary) -> Tensor:
    """Turn channel i together with channel ``i + head_size / 2`` by the angle of its position.

    Args:
        x: [*L, H, head_size] queries or keys.
        angles: the positions' cosines and sines.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos.to(x.dtype), angles.sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
