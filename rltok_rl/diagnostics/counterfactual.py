"""Counterfactual returns: each decision taken both ways, with the same random numbers afterwards.

Shapes: B rows, T decisions, K of them flipped, n pairs of continuations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.returns import check_gamma
from rltok_rl.models.checks import check_boundaries, check_byte_ids
from rltok_rl.models.incremental import decide, observe
from rltok_rl.models.unet import UNet
from rltok_rl.sampling.thresholds import draw_boundary


@dataclass(frozen=True)
class Counterfactuals:
    """Returns with and without a boundary at K decisions."""

    positions: Tensor  # [K] the decisions, the same in every row
    boundaries: Tensor  # [B, K] bool, what had been decided
    probs: Tensor  # [B, K] probability of a boundary there
    differences: Tensor  # [B, K, n] return with the boundary minus return without, per pair of continuations

    @property
    def difference(self) -> Tensor:
        """[B, K] Q(1) - Q(0), the mean over pairs."""
        return self.differences.mean(-1)

    @property
    def advantage(self) -> Tensor:
        """[B, K] advantage of the rollout's decision over the policy's average: ``(a_t - p_t) (Q(1) - Q(0))``."""
        return (self.boundaries.to(self.probs.dtype) - self.probs) * self.difference


@torch.no_grad()
def counterfactual_returns(
    model: UNet,
    byte_ids: Tensor,
    boundaries: Tensor,
    positions: Tensor,
    *,
    gamma: float,
    uniforms: Tensor,
) -> Counterfactuals:
    """Flip decisions one at a time and compare the returns.

    Rows are read once through the cache, which branches at each of the K positions: two continuations per pair, with
    and without the boundary, draw their later boundaries with the same uniforms. The early exit does not depend on
    boundaries, so the difference is the same for the reward relative to it and for the log-likelihood.

    Args:
        model: the U-Net.
        byte_ids: [B, T + 1] texts.
        boundaries: [B, T] bool, the decisions that are flipped one at a time.
        positions: [K] int64 in 1..T-1, increasing; the first decision is forced.
        gamma: discount of the returns, in [0, 1].
        uniforms: [B, n, T] in [0, 1); pair j of row b draws its later boundaries with them.
    """
    check_byte_ids(byte_ids, model.config.num_ids)
    num_rows, num_steps = byte_ids.shape[0], byte_ids.shape[1] - 1
    check_boundaries(boundaries, torch.Size((num_rows, num_steps)))
    check_gamma(gamma)
    if uniforms.dim() != 3 or uniforms.shape[0] != num_rows or uniforms.shape[2] != num_steps or not uniforms.shape[1]:
        raise ValueError(f"uniforms must be [{num_rows}, n >= 1, {num_steps}], got {[*uniforms.shape]}")
    places = positions.tolist()
    if positions.dim() != 1 or not places or places != sorted({*places} & {*range(1, num_steps)}):
        raise ValueError(f"positions must be [K >= 1] and increase within 1..{num_steps - 1}, got {places}")
    pairs, device = uniforms.shape[1], byte_ids.device
    base = torch.arange(num_rows, device=device)
    starts = torch.cartesian_prod(base, torch.arange(pairs, device=device), torch.arange(2, device=device)).T
    cache = model.new_cache(num_rows)
    totals = torch.zeros(num_rows, pairs, 2, len(places), dtype=torch.float64, device=device)
    probs = []
    # Of each branch: its text, its pair, without (0) or with (1) the boundary, number of the decision, its first byte.
    branches = torch.empty(5, 0, dtype=torch.int64, device=device)
    for t in range(num_steps):
        row, pair = branches[:2]
        seen = observe(model, cache, byte_ids[torch.cat((base, row)), t])
        drawn = draw_boundary(seen.boundary_logit[num_rows:], uniforms[row, pair, t])
        if t in places:
            probs.append(seen.boundary_logit[:num_rows].sigmoid())
            origin = starts.new_tensor([[places.index(t)], [t]]).expand(2, starts.shape[1])
            branches = torch.cat((branches, torch.cat((starts, origin))), 1)
            cache = cache.take(torch.cat((torch.arange(cache.num_rows, device=device), starts[0])))
            drawn = torch.cat((drawn, starts[2].bool()))
        row, pair, side, number, born = branches
        predicted = decide(model, cache, torch.cat((boundaries[:, t], drawn)))
        gained = byte_log_prob(predicted.final_logits[num_rows:], byte_ids[row, t + 1]).double()
        totals.index_put_((row, pair, side, number), gained * gamma ** (t - born).double(), accumulate=True)
    differences = (totals[:, :, 1] - totals[:, :, 0]).transpose(1, 2)
    return Counterfactuals(positions, boundaries[:, positions], torch.stack(probs, 1), differences)
