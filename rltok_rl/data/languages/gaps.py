"""Random lengths, told by the chance that they end here."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

GapLaw = Literal["memoryless", "uniform"]


class Gaps:
    """Lengths g = 0, 1, 2, ... with hazard ``h_k = P(g = k | g >= k)``; the last hazard given holds for all later k.

    Args:
        hazards: [K + 1] float64 in [0, 1], the last one positive.

    Example:
        >>> gaps = Gaps.uniform(shortest=2, mean=3)  # 2, 3 or 4
        >>> gaps.hazards
        tensor([0.0000, 0.0000, 0.3333, 0.5000, 1.0000], dtype=torch.float64)
        >>> round(gaps.mean, 4), round(gaps.entropy, 4)  # ln 3
        (3.0, 1.0986)
    """

    def __init__(self, hazards: Tensor) -> None:
        self.hazards = hazards.double()
        ended = (1 - self.hazards).cumprod(0)
        #: [K + 1] P(g >= k)
        self.survival = torch.cat((ended.new_ones(1), ended[:-1]))

    @classmethod
    def make(cls, law: GapLaw, shortest: int, mean: float) -> Gaps:
        """Gaps of a law by name.

        Args:
            law: ``"memoryless"`` or ``"uniform"``.
            shortest: length of the shortest.
            mean: mean length.
        """
        if isinstance(shortest, bool) or not isinstance(shortest, int) or shortest < 0:
            raise ValueError(f"shortest_gap must be an integer of at least 0, got {shortest!r}")
        if not shortest <= mean < float("inf"):
            raise ValueError(f"mean_gap must be finite and at least shortest_gap={shortest}, got {mean}")
        if law == "memoryless":
            return cls.memoryless(shortest=shortest, mean=mean)
        if law == "uniform":
            return cls.uniform(shortest=shortest, mean=mean)
        raise ValueError(f"gap_law must be one of ['memoryless', 'uniform'], got {law!r}")

    @classmethod
    def memoryless(cls, *, shortest: int, mean: float) -> Gaps:
        """From the shortest on, the chance to end stays the same: ``1 / (1 + mean - shortest)``."""
        hazards = torch.zeros(shortest + 1, dtype=torch.float64)
        hazards[-1] = 1 / (1 + mean - shortest)
        return cls(hazards)

    @classmethod
    def uniform(cls, *, shortest: int, mean: float) -> Gaps:
        """All lengths from the shortest to ``2 mean - shortest``, equally often."""
        longest = 2 * mean - shortest
        if longest != int(longest):
            raise ValueError(f"mean_gap must be a whole or a half number for uniform gaps, got {mean}")
        left = int(longest) + 1 - torch.arange(int(longest) + 1, dtype=torch.float64)
        return cls(torch.where(torch.arange(len(left)) < shortest, 0.0, 1 / left))

    @property
    def mean(self) -> float:
        """E[g] = sum_{k >= 1} P(g >= k)."""
        return float(self.tail(1))

    @property
    def entropy(self) -> float:
        """H(g) in nats: what it costs to be asked at every k whether the gap ends."""
        last = len(self.hazards) - 1
        before = self.survival[:-1] * binary_entropy(self.hazards[:-1])
        return float(before.sum() + self.tail(last) * binary_entropy(self.hazards[-1]))

    def hazard(self, k: Tensor) -> Tensor:
        """h_k, of any shape."""
        return self.hazards[k.clamp(min=0, max=len(self.hazards) - 1)]

    def at_least(self, k: int) -> Tensor:
        """P(g >= k)."""
        last = len(self.hazards) - 1
        return self.survival[min(k, last)] * (1 - self.hazards[-1]) ** max(k - last, 0)

    def tail(self, k: int) -> Tensor:
        """sum_{j >= k} P(g >= j): how often, per gap, at least k bytes of it have been read."""
        last = len(self.hazards) - 1
        return self.survival[k:last].sum() + self.at_least(max(k, last)) / self.hazards[-1]

    def blurred_hazard(self, k: int) -> Tensor:
        """Chance that the gap ends here, for one who only knows that at least k bytes of it have been read.

            P(g >= k) / sum_{j >= k} P(g >= j)

        Args:
            k: bytes known to have been read.
        """
        tail = self.tail(k)
        return self.at_least(k) / tail if tail > 0 else self.hazards[-1]

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Lengths [*shape] int64."""
        uniforms = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
        ended = 1 - self.survival[1:]  # P(g <= k) for k < K
        lengths = torch.searchsorted(ended, uniforms[0], right=True)
        if self.hazards[-1] == 1:
            return lengths
        more = (torch.log1p(-uniforms[1]) / torch.log1p(-self.hazards[-1])).long()  # geometric, from K on
        return torch.where(lengths == len(ended), lengths + more, lengths)


def binary_entropy(p: Tensor) -> Tensor:
    """Entropy of a coin in nats, 0 at 0 and 1."""
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))
