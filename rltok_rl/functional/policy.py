"""The boundary policy on tensors: logits, log-probabilities, entropies.

    l_t = base_t + sum_{j=1..w} a_{t-j} lags_{t,j},        a_t ~ Bernoulli(sigmoid(l_t))           (Eq. 19-23)

``base`` [*B, T] and ``lags`` [*B, T, w] are scaled, and ``base`` includes the target rate's bias; boundaries before the
text are 0. The sum runs from the oldest lag to the newest. Every sampler adds in this order, so that logits recomputed
in parallel equal the sampled ones bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.reduction import Mask, wide
from rltok_rl.functional.takes import takes


@takes("logits: float *L", "cap: number (0, inf)")
def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Squash into (-cap, cap), with slope 1 at 0: ``cap * tanh(logits / cap)``."""
    return cap * torch.tanh(logits / cap)


@takes("base: float *L", "lags: float *L w", "recent: real *L w", "cap: number (0, inf)")
def lagged_logit(base: Tensor, lags: Tensor, recent: Tensor, *, cap: float | None = None) -> Tensor:
    """Compute boundary logits [*L] from the boundaries before each, ``recent`` [*L, w] (Eq. 21, 23).

    ``recent[..., j - 1]`` is the boundary j bytes ago, 0/1 or bool. The result is at least float32.
    """
    dtype = wide(base, lags)
    return _lag_sum(base.to(dtype), (lags.to(dtype) * recent).unbind(-1), cap)


@takes("base: float *B T", "lags: float *B T w", "boundaries: real *B T", "cap: number (0, inf)")
def boundary_logits(base: Tensor, lags: Tensor, boundaries: Tensor, *, cap: float | None = None) -> Tensor:
    """Compute the logits [*B, T] of a whole boundary string [*B, T], with gradient; at least float32.

    Example:
        >>> boundary_logits(torch.zeros(3), torch.ones(3, 1), torch.tensor([1, 0, 1]))
        tensor([0., 1., 0.])
    """
    num_lags, length, dtype = lags.shape[-1], base.shape[-1], wide(base, lags)
    padded = F.pad(boundaries.to(dtype), (num_lags, 0))  # [*B, w + T], w zeros before the text
    # Slices of one string: the backward pass would keep a [*B, T, w] copy.
    recent = [padded[..., num_lags - j : num_lags - j + length] for j in range(1, num_lags + 1)]
    # Unbound once, so that the gradient of lags is stacked once.
    unbound = lags.to(dtype).unbind(-1)
    return _lag_sum(base.to(dtype), [term * drawn for term, drawn in zip(unbound, recent, strict=True)], cap)


def _lag_sum(logits: Tensor, terms: Sequence[Tensor], cap: float | None) -> Tensor:
    """The one place where torch sums a logit; ``terms[j - 1]`` [*L] is ``a_{t-j} lags_{t,j}``, which is exact."""
    for term in reversed(terms):  # oldest first
        logits = logits + term
    return logits if cap is None else soft_cap(logits, cap)


@takes("boundaries: real *B T", "num_lags: whole [0, 10_000]")
def recent_boundaries(boundaries: Tensor, num_lags: int) -> Tensor:
    """Return the w boundaries before each byte, [*B, T, w]: ``[..., t, j - 1]`` is a_{t-j}, 0 before the text.

    Example:
        >>> recent_boundaries(torch.tensor([1, 0, 1]), 2).tolist()
        [[0, 0], [1, 0], [0, 1]]
    """
    if num_lags == 0:
        return boundaries.new_zeros(*boundaries.shape, 0)
    # w zeros in front; the window that ends just before t is [t, t + w) of the padded string, oldest first.
    windows = F.pad(boundaries, (num_lags, 0)).unfold(-1, num_lags, 1)[..., : boundaries.shape[-1], :]
    return windows.flip(-1)


@takes("logits: float *L", "boundaries: decisions *L", "forced: bool *L")
def boundary_log_prob(logits: Tensor, boundaries: Tensor, *, forced: Mask = None) -> Tensor:
    """Compute the log-probability of each decision, ``log pi(a_t) = a_t log p_t + (1 - a_t) log (1 - p_t)``.

    ``forced`` [*L] marks decisions that were not the policy's: 0, without gradient. If the sampler got -1, 0 and 1,
    that is ``forced >= 0``. Any number but 0 is a boundary.

    Example:
        >>> boundary_log_prob(torch.zeros(2), torch.tensor([0, 1])).exp()
        tensor([0.5000, 0.5000])
    """
    log_probs = -F.softplus(logits * (1 - 2 * boundaries.bool()))
    return log_probs if forced is None else log_probs.masked_fill(forced, 0.0)


@takes("logits: float *L", "boundaries: decisions *L", "forced: bool *L")
def imitation_loss(logits: Tensor, boundaries: Tensor, *, forced: Mask = None) -> Tensor:
    """Compute the behaviour-cloning loss, the cross-entropy of given decisions: ``-mean_t log pi(a_t)``, forced ones 0.

    Example:
        >>> imitation_loss(torch.zeros(4), torch.tensor([0, 1, 0, 0])).exp()
        tensor(2.)
    """
    return -boundary_log_prob(logits, boundaries, forced=forced).mean()


@takes("logits: float *L", "forced: bool *L")
def boundary_entropy(logits: Tensor, *, forced: Mask = None) -> Tensor:
    """Compute entropies in nats, ``H_t = softplus(-|l_t|) + |l_t| sigmoid(-|l_t|)``; 0 if forced.

    In |l| both terms are small and exact for decided policies.
    """
    below = torch.where(logits < 0, logits, -logits)  # -|l|
    entropy = F.softplus(below) - below * torch.sigmoid(below)
    return entropy if forced is None else entropy.masked_fill(forced, 0.0)
