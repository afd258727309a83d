"""Effects of decisions, fitted by linear regression over the batches of a run."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rltok_rl.functional.reduction import Group, Mask
from rltok_rl.functional.takes import takes
from rltok_rl.ranges import check_number


class EffectSums(NamedTuple):
    """The memory of :func:`linear_effect`: decayed sums over earlier decisions, float64."""

    squares: Tensor  # [F, F] of (a - p)^2 phi phi^T
    products: Tensor  # [F] of (a - p) G phi

    @classmethod
    def empty(cls, num_features: int, *, device: torch.device | str | None = None) -> EffectSums:
        """Return the memory before the first batch."""
        size = int(check_number("num_features", num_features, "[1, 1e5]", whole=True))
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in ((size, size), (size,))))


@takes(
    "returns: float *B T",
    "features: real *B T F+",
    "drawn: bool *B T",
    "probs: float *B T",
    "decay: number [0, 1]",
    "ridge: number [1e-12, 1e12]",
    "mask: bool *B T",
)
def linear_effect(
    returns: Tensor,
    features: Tensor,
    drawn: Tensor,
    probs: Tensor,
    state: EffectSums,
    *,
    decay: float = 0.98,
    ridge: float = 0.01,
    mask: Mask = None,
    process_group: Group = None,
) -> tuple[Tensor, EffectSums]:
    """Predict what a boundary changes from features of the state, and average over decisions exactly.

        w = argmin sum (G_{t,b} - (a_{t,b} - p_{t,b}) w . phi_{t,b})^2 + ridge sum_k s_k w_k^2
        D_t = w . phi_t,     A_t = p_t D_t if a_t = 1, else -(1 - p_t) D_t

    The sum is over this batch and earlier ones, whose weight decays; s is the diagonal of its normal equations. With
    these advantages the gradient ``A_t grad log pi(a_t)`` is ``p_t (1 - p_t) D_t grad logit_t`` whichever decision was
    drawn: D_t replaces the noise of one return by a regression over many. It is the expected gradient if the effects
    of decisions are linear in the features and have not changed since the earlier batches; otherwise it has a bias.
    Compatible function approximation (Sutton et al., 1999) with a memory, and expected policy gradients (Ciosek and
    Whiteson, 2018).

    Returns advantages [*B, T] and the next state; ``EffectSums.empty(F)`` is the first. ``returns`` G may have a
    baseline subtracted. ``features`` phi [*B, T, F] are what is known before the decision; one of them should be
    constant.

    Example:
        >>> drawn = torch.tensor([[True, False]])
        >>> returns, ones, half = torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, 1), torch.full((1, 2), 0.5)
        >>> advantages, _ = linear_effect(returns, ones, drawn, half, EffectSums.empty(1), ridge=1e-9)
        >>> advantages  # a boundary gains 2, at a probability of one half
        tensor([[ 1., -1.]])
    """
    if not isinstance(state, EffectSums):
        raise TypeError(f"state must be EffectSums, got {type(state).__name__}")
    width = features.shape[-1]
    if state.squares.shape != (width, width) or state.products.shape != (width,):
        raise ValueError(f"state must hold the {width} features, got {[*state.squares.shape]}")
    if state.squares.device != returns.device:
        raise ValueError(f"returns and state must be on one device, got {returns.device} and {state.squares.device}")
    real = torch.ones_like(drawn) if mask is None else mask
    wide = features.double().masked_fill(~real.unsqueeze(-1), 0.0)
    score = (drawn.double() - probs.double()).masked_fill(~real, 0.0)  # [*B, T]
    scored = (wide * score.unsqueeze(-1)).reshape(-1, width)
    targets = returns.double().masked_fill(~real, 0.0).reshape(-1, 1)
    sums = (scored.mT @ torch.cat((scored, targets), -1)).detach()  # [F, F + 1]
    if process_group is not None:
        dist.all_reduce(sums, group=process_group)
    state = EffectSums(decay * state.squares + sums[:, :-1], decay * state.products + sums[:, -1])
    size = state.squares.diagonal()
    penalty = torch.where(size > 0, ridge * size, 1.0)  # a feature that was always 0 has no effect
    weights = torch.linalg.solve_ex(state.squares + torch.diag(penalty), state.products).result
    effects = wide @ weights
    advantages = effects * torch.where(drawn, probs.double(), probs.double() - 1)
    return advantages.masked_fill(~real, 0.0).to(returns.dtype), state
