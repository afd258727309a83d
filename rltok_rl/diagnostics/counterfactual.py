"""Counterfactual returns: each decision taken both ways, with the same random numbers afterwards.

Shapes: B rows, T decisions, K of them flipped, n pairs of continuations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.functional.likelihood import byte_log_prob
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
    horizon: int | None = None,
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
        horizon: bytes after which a continuation stops; None reads to the end of the text.
    """
    num_rows, num_steps = boundaries.shape
    pairs = _check(model, byte_ids, boundaries, positions, gamma, uniforms, horizon)
    device = byte_ids.device
    base = torch.arange(num_rows, device=device)
    cache = model.new_cache(num_rows)
    # One entry per branch: whose text it reads, which slot of the result it adds to, which uniforms, with or without.
    row = slot = pair = torch.empty(0, dtype=torch.int64, device=device)
    born = row
    totals = torch.zeros(num_rows * len(positions) * pairs, 2, dtype=torch.float64, device=device)
    side = torch.empty(0, dtype=torch.int64, device=device)
    probs = []
    for t in range(num_steps):
        seen = observe(model, cache, byte_ids[torch.cat((base, row)), t])
        drawn = draw_boundary(seen.boundary_logit[num_rows:], uniforms[row, pair, t])
        found = (positions == t).nonzero().flatten()
        if len(found):
            probs.append(seen.boundary_logit[:num_rows].sigmoid())
            new_row = base.repeat_interleave(2 * pairs)
            new_pair = torch.arange(pairs, device=device).repeat_interleave(2).repeat(num_rows)
            new_side = torch.tensor([0, 1], device=device).repeat(num_rows * pairs)
            new_slot = (new_row * len(positions) + found) * pairs + new_pair
            cache = cache.take(torch.cat((torch.arange(cache.num_rows, device=device), new_row)))
            row, pair = torch.cat((row, new_row)), torch.cat((pair, new_pair))
            side, slot = torch.cat((side, new_side)), torch.cat((slot, new_slot))
            born = torch.cat((born, torch.full_like(new_row, t)))
            drawn = torch.cat((drawn, new_side.bool()))
        predicted = decide(model, cache, torch.cat((boundaries[:, t], drawn)))
        revealed = byte_ids[row, t + 1]
        gained = byte_log_prob(predicted.final_logits[num_rows:], revealed).double()
        totals.index_put_((slot, side), gained * gamma ** (t - born).double(), accumulate=True)
        if horizon is not None and bool((t + 1 - born >= horizon).any()):
            kept = (t + 1 - born < horizon).nonzero().flatten()
            cache = cache.take(torch.cat((base, num_rows + kept)))
            row, pair, side, slot, born = (x[kept] for x in (row, pair, side, slot, born))
    differences = (totals[:, 1] - totals[:, 0]).view(num_rows, len(positions), pairs)
    return Counterfactuals(positions, boundaries[:, positions], torch.stack(probs, 1), differences)


def _check(
    model: UNet,
    byte_ids: Tensor,
    boundaries: Tensor,
    positions: Tensor,
    gamma: float,
    uniforms: Tensor,
    horizon: int | None,
) -> int:
    """Check the arguments; return n."""
    check_byte_ids(byte_ids, model.config.num_ids)
    num_rows, num_steps = byte_ids.shape[0], byte_ids.shape[1] - 1
    check_boundaries(boundaries, torch.Size((num_rows, num_steps)))
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon must be at least 1 or None, got {horizon}")
    if uniforms.dim() != 3 or uniforms.shape[0] != num_rows or uniforms.shape[2] != num_steps or not uniforms.shape[1]:
        raise ValueError(f"uniforms must be [{num_rows}, n >= 1, {num_steps}], got {[*uniforms.shape]}")
    if positions.dim() != 1 or positions.dtype != torch.int64 or not len(positions):
        raise ValueError(f"positions must be int64 of shape [K >= 1], got {positions.dtype} {[*positions.shape]}")
    low, high = int(positions.min()), int(positions.max())
    if low < 1 or high >= num_steps or bool((positions.diff() <= 0).any()):
        raise ValueError(f"positions must increase within 1..{num_steps - 1}, got {positions.tolist()}")
    return uniforms.shape[1]
