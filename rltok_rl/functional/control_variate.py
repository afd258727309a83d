"""Control variate: a baseline fitted by linear regression on other rows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from rltok_rl.functional.reduction import Group, Mask, zero_masked
from rltok_rl.functional.takes import readable, takes

MOST_REGRESSORS = 2048
"""Regressors of :func:`control_variate`: a fit of F takes F^2 numbers and F^3 operations per fold."""
_MOST_NUMBERS = 2**22  # of regressors that are in memory at a time in float64, if a row has fewer


@takes(
    "returns: float *B T",
    "regressors: real *B T F+",
    "ridge: number [0, inf)",
    "folds: whole [2, inf)",
    "mask: bool *B T",
)
def control_variate(
    returns: Tensor,
    regressors: Tensor,
    *,
    ridge: float = 1e-3,
    folds: int = 2,
    mask: Mask = None,
    process_group: Group = None,
) -> Tensor:
    """Subtract the return that a linear regression, fitted on other rows, expects: unbiased (Greensmith et al., 2004).

        A_{t,b} = G_{t,b} - u_{-f(b)} - w_{-f(b)} . z_{t,b}
        (u, w)_{-f} = argmin mean_{t, b not in f} (G_{t,b} - u - w . z_{t,b})^2 + ridge sum_k var(z_k) w_k^2

    Rows of returns [*B, T] are dealt into folds in turn (as many as rows: leave one out), and no row is judged by
    weights that it helped to fit. ``regressors`` z [*B, T, F] may be anything that the row's decisions from t on do not
    influence: the text, also its future, the early exit's outputs, earlier boundaries. F is at most
    :data:`MOST_REGRESSORS`. ``ridge`` above 0 admits constant or collinear regressors. A ``process_group`` fits on the
    rows of all its processes, without gradient.

    Example:
        >>> x = torch.arange(8.0).view(4, 2)
        >>> control_variate(3 * x + 1, x[..., None], ridge=0.0).abs().max() < 1e-4
        tensor(True)
    """
    shape, width = (returns.shape[:-1].numel(), returns.shape[-1]), regressors.shape[-1]
    if width > MOST_REGRESSORS:
        raise ValueError(f"regressors must be at most {MOST_REGRESSORS} per step, got {width}")
    targets = zero_masked(returns, mask).double().reshape(shape)  # [n, T]
    real = torch.ones_like(targets) if mask is None else mask.reshape(shape).double()
    before, num_rows = _rows_before(len(targets), process_group, returns.device)
    if num_rows < 2:
        raise ValueError(
            f"control_variate fits on other rows than it judges and needs at least 2 of them, got returns "
            f"{[*returns.shape]}; baselines 'running_mean' and 'none' work with one"
        )
    if not 2 <= folds <= num_rows:
        raise ValueError(f"folds must lie in 2..{num_rows}, the number of rows, got {folds}")
    fold = (torch.arange(len(targets), device=returns.device) + before) % folds  # [n]

    # In float64, because products of regressors lose half of the digits, and in parts, because that needs memory.
    size = max(1, _MOST_NUMBERS // max(1, shape[1] * width))
    parts = [slice(first, first + size) for first in range(0, max(1, shape[0]), size)]
    known = regressors.reshape(*shape, width)
    kept = None if mask is None else mask.reshape(*shape, 1)

    def features(rows: slice) -> Tensor:
        """Return regressors [n', T, F]."""
        return (known[rows] if kept is None else known[rows].masked_fill(~kept[rows], 0.0)).double()

    sums = targets.new_zeros(folds, width + 2, width + 2)
    for rows in parts:  # one matrix per row has all sums: of 1, z, G and their products
        columns = torch.cat((real[rows].unsqueeze(-1), features(rows), targets[rows].unsqueeze(-1)), -1)
        sums = sums.index_add(0, fold[rows], columns.mT @ columns)
    if process_group is not None:
        sums = sums.detach().contiguous()
        dist.all_reduce(sums, group=process_group)
    others = 1 - torch.eye(folds, dtype=sums.dtype, device=sums.device)
    constant, slopes = _fit((others @ sums.flatten(1)).view_as(sums), ridge)
    explained = torch.cat([(features(rows) @ slopes[fold[rows]].unsqueeze(-1)).squeeze(-1) for rows in parts])
    expected = constant[fold].unsqueeze(-1) + explained
    return zero_masked(returns - expected.view(returns.shape), mask).to(returns.dtype)


def _fit(sums: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Constants [K] and slopes [K, F] of K fits, from sums of products of (1, z, G), [K, 1 + F + 1, 1 + F + 1]."""
    moments = sums / sums[:, :1, :1].clamp(min=1)
    mean, mean_target = moments[:, 0, 1:-1], moments[:, 0, -1]  # [K, F], [K]
    covariance = moments[:, 1:-1, 1:-1] - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    with_target = moments[:, 1:-1, -1] - mean * mean_target.unsqueeze(-1)
    squares, variance = (m.diagonal(dim1=-2, dim2=-1) for m in (moments[:, 1:-1, 1:-1], covariance))
    varies = (variance > 1e-12 * squares).to(sums.dtype)  # what is left of a constant is rounding
    # In units of deviations, so that neither the penalty nor the rounding depends on a regressor's unit.
    scale = varies / torch.where(varies > 0, variance, 1.0).sqrt()
    correlation = covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    factor, _ = torch.linalg.cholesky_ex(correlation + torch.diag_embed(1 - varies + ridge))
    if readable(sums):
        pivots = factor.detach().diagonal(dim1=-2, dim2=-1)  # nearly 0 or NaN if rounding decides the fit
        if not bool((pivots.square() > 1e-10).all()) or (ridge == 0 and not bool(varies.all())):
            raise ValueError(
                f"regressors must not be constant or combinations of one another on the rows of the other folds, or "
                f"ridge must be larger, got ridge={ridge}"
            )
    slopes = torch.cholesky_solve((with_target * scale).unsqueeze(-1), factor).squeeze(-1) * scale
    return mean_target - (mean * slopes).sum(-1), slopes


def _rows_before(num_rows: int, process_group: Group, device: torch.device) -> tuple[int, int]:
    """Number of rows of the processes before this one, and of all."""
    if process_group is None:
        return 0, num_rows
    counts = torch.zeros(process_group.size(), dtype=torch.int64, device=device)
    counts[process_group.rank()] = num_rows
    dist.all_reduce(counts, group=process_group)
    rows = counts.tolist()
    return sum(rows[: process_group.rank()]), sum(rows)
