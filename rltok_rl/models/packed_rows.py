"""Rows that follow each other in one sequence: where each begins, and whose a place is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedRows:
    """Where the rows of a packed sequence lie."""

    num_tokens: Tensor
    """[B] int64, at least 1."""
    room: int
    """N."""
    most: int
    """No row is longer, as far as the host knows."""

    @property
    def starts(self) -> Tensor:
        """[B] place of each row's first token."""
        return self.num_tokens.cumsum(0) - self.num_tokens

    @property
    def real(self) -> Tensor:
        """[N] bool, places that hold a token."""
        return self._places < self.num_tokens.sum()

    @property
    def row(self) -> Tensor:
        """[N] the row of each token; the last one's behind it."""
        return (torch.searchsorted(self.starts, self._places, right=True) - 1).clamp(min=0)

    @property
    def begin(self) -> Tensor:
        """[N] place of the first token of each token's row; of places that hold none, their own."""
        return torch.where(self.real, self.starts.index_select(0, self.row), self._places)

    @property
    def number(self) -> Tensor:
        """[N] how many tokens of its row come before each; 0 in places that hold none."""
        return self._places - self.begin

    @property
    def longest(self) -> int:
        """S; an accelerator makes the host wait."""
        return int(self.num_tokens.max()) if len(self.num_tokens) else 0

    @property
    def _places(self) -> Tensor:
        return torch.arange(self.room, device=self.num_tokens.device)
