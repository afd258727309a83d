"""How much room packed tokens get, in shapes that repeat.

Shapes: B rows, T bytes, N tokens of all rows.

N is another number in every batch, and with every new shape programs are compiled, memory is cut and graphs are
captured anew. The room for N tokens is therefore a multiple of m tokens,

    m = max(16, the largest power of two that is at most N / 64),

which leaves fewer than m places empty: less than 1/64 of the tokens from N = 1,024 on, half of that on average. Empty
places lie behind the last row and belong to none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

SMALLEST_BUCKET = 16
"""Tokens of a bucket at least."""
BUCKETS = 64
"""Buckets of a total at least, where they are no smaller than that."""


def bucketed(total: int) -> int:
    """The room for a total number of tokens: the next multiple of its bucket.

    Example:
        >>> [bucketed(n) for n in (0, 1, 800, 6500, 26000)]
        [0, 16, 800, 6528, 26112]
    """
    part = total // BUCKETS
    size = max(SMALLEST_BUCKET, 1 << part.bit_length() >> 1)
    return -(-total // size) * size


def bucketed_totals(totals: Tensor) -> Tensor:
    """The same of totals on a device, without looking at them: [*L] int64 to [*L].

    Example:
        >>> bucketed_totals(torch.tensor([0, 1, 800, 6500, 26000])).tolist()
        [0, 16, 800, 6528, 26112]
    """
    powers = 2 ** torch.arange(SMALLEST_BUCKET.bit_length() - 1, 40, device=totals.device)  # [p]
    fits = (powers <= totals.unsqueeze(-1) // BUCKETS).sum(-1)  # how many are no larger
    size = powers[(fits - 1).clamp(min=0)]
    return -(totals // -size) * size


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Packed tokens, and how much room they get.

    Example:
        >>> Packing(tokens=0.25).room_for(1000, num_rows=4)
        256
    """

    bucketed: bool = True
    """Whether totals are rounded up, so that shapes repeat."""
    tokens: float | None = None
    """Tokens per byte that there is room for; more are an error. None makes room for as many as there are, for which an
    accelerator makes the host wait."""
    second: float | None = None
    """With ``tokens``: tokens of tokens per token that there is room for; None is room for any."""
    attention: Literal["auto", "varlen", "flex", "padded", "rows"] = "auto"
    """How attention is computed, a method of ``rltok_rl.models.varlen``; ``"auto"`` takes the fastest that the device
    has."""

    def __post_init__(self) -> None:
        """Refuse what gives no room, by name."""
        for name in ("tokens", "second"):
            share = getattr(self, name)
            if share is not None and not 0 < share < math.inf:
                raise ValueError(f"{name} must be a positive number or None, got {share}")
        if self.second is not None and self.tokens is None:
            raise ValueError(f"second must be None where tokens is None: no room is set aside, got {self.second}")

    def room_for(self, num_bytes: int, num_rows: int) -> int | None:
        """Places for the tokens of ``num_bytes`` bytes in ``num_rows`` rows, where that is known beforehand.

        Args:
            num_bytes: of all rows.
            num_rows: B; each has a first token besides.
        """
        if self.tokens is None:
            return None
        return self.rounded(min(num_bytes, math.ceil(self.tokens * num_bytes) + num_rows))

    def places(self, total: Tensor, num_bytes: int, num_rows: int) -> Tensor:
        """The room that a total on a device gets, without looking at it.

        Args:
            total: number of tokens.
            num_bytes: of all rows.
            num_rows: B.
        """
        room = self.room_for(num_bytes, num_rows)
        if room is not None:
            return torch.full_like(total, room)
        return bucketed_totals(total) if self.bucketed else total

    def rounded(self, total: int) -> int:
        """The room that a total gets."""
        return bucketed(total) if self.bucketed else total

    @property
    def above(self) -> Packing:
        """That of tokens of tokens among tokens."""
        second = 1.0 if self.second is None else self.second
        return replace(self, tokens=None if self.tokens is None else second, second=None)


Layout = Literal["padded", "packed"] | Packing
"""How ragged rows of tokens are laid out: ``"padded"`` to the longest; ``"packed"``, nothing between rows and no place
empty; or packed with a room that is said."""


def as_packing(layout: Layout) -> Packing | None:
    """How tokens are packed; None where they are padded.

    Args:
        layout: ``"padded"``, ``"packed"`` or a :class:`Packing`.
    """
    if isinstance(layout, Packing):
        return layout
    if layout not in ("padded", "packed"):
        raise ValueError(f"layout must be one of ['padded', 'packed'] or a Packing, got {layout!r}")
    return Packing(bucketed=False) if layout == "packed" else None
