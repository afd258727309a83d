"""Random lengths by their hazards: the chance that a length is reached but not exceeded."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rltok_rl.utils import check_count

GapLaw = Literal["memoryless", "uniform"]


class Gaps:
    """Lengths g = 0, 1, 2, ... with hazards ``h_k = P(g = k | g >= k)``; the last hazard holds for all later k.

    With ``law="memoryless"``, each k from ``shortest`` on has the hazard ``1 / (1 + mean - shortest)``; with
    ``"uniform"``, all lengths from ``shortest`` to ``2 mean - shortest`` are equally likely.

    Example:
        >>> gaps = Gaps("uniform", shortest=2, mean=3)  # 2, 3 or 4
        >>> gaps.hazards
        tensor([0.0000, 0.0000, 0.3333, 0.5000, 1.0000], dtype=torch.float64)
    """

    def __init__(self, law: GapLaw, shortest: int, mean: float) -> None:
        check_count("shortest_gap", shortest, minimum=0)
        if not shortest <= mean < float("inf"):
            raise ValueError(f"mean_gap must be finite and at least shortest_gap={shortest}, got {mean}")
        if law == "memoryless":
            self.hazards = torch.zeros(shortest + 1, dtype=torch.float64)
            self.hazards[-1] = 1 / (1 + mean - shortest)
        elif law == "uniform":
            longest = 2 * mean - shortest
            if longest != int(longest):
                raise ValueError(f"mean_gap must be a whole or a half number for uniform gaps, got {mean}")
            left = int(longest) + 1 - torch.arange(int(longest) + 1, dtype=torch.float64)
            self.hazards = torch.where(torch.arange(len(left)) < shortest, 0.0, 1 / left)
        else:
            raise ValueError(f"gap_law must be one of ['memoryless', 'uniform'], got {law!r}")
        self.mean = float(mean)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Draw lengths, int64."""
        uniforms = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
        ended = 1 - (1 - self.hazards[:-1]).cumprod(0)  # P(g <= k) for k < K
        lengths = torch.searchsorted(ended, uniforms[0], right=True)
        if self.hazards[-1] == 1:
            return lengths
        more = (torch.log1p(-uniforms[1]) / torch.log1p(-self.hazards[-1])).long()  # geometric, from K on
        return torch.where(lengths == len(ended), lengths + more, lengths)
