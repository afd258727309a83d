"""Pure maths on tensors [*B, T]: no modules, no keys, no state."""

"""What is taken from returns to make advantages.

A baseline that does not depend on the decision it judges leaves the expected policy gradient as it is and takes noise
from it (Section 2.4). All functions take returns [*B, T], compare the rows of all leading dimensions at each position,
and say what they do to the expected gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.reduction import check_mask, masked_mean, sum_and_count, zero_masked


def no_baseline(returns: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None) -> Tensor:
    """The returns themselves, ``A = G``: unbiased, and as noisy as they are.

    Args:
        returns: [*B, T].
        mask: [*B, T] bool, True where a step is real; None for all.
        process_group: not used.

    Returns:
        [*B, T], 0 where masked.

    Example:
        >>> no_baseline(torch.tensor([3.0, 5.0]), mask=torch.tensor([True, False]))
        tensor([3., 0.])
    """
    _check_returns(returns, mask)
    return zero_masked(returns, mask)


def batch_centred(returns: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None) -> Tensor:
    """Subtract the mean over rows at the same position (Eq. 17).

        A_{t,b} = G_{t,b} - (1/n) sum_b' G_{t,b'}

    The mean holds the row itself, which shrinks the expected gradient by exactly (n - 1)/n where rows are independent;
    :func:`leave_one_out` undoes that.

    Args:
        returns: [*B, T], at least two rows.
        mask: [*B, T] bool, True where a step is real; None for all. n counts the real rows of a position.
        process_group: average over the rows of all its processes.

    Returns:
        [*B, T], 0 where masked, and where a position has one real row alone.

    Example:
        >>> batch_centred(torch.tensor([[1.0], [2.0], [6.0]])).T
        tensor([[-2., -1.,  3.]])
    """
    centred, _ = _centre(returns, mask, process_group, "batch_centred")
    return centred.to(returns.dtype)


def leave_one_out(returns: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None) -> Tensor:
    """Subtract the mean over the other rows at the same position: unbiased.

        A_{t,b} = G_{t,b} - 1/(n-1) sum_{b' != b} G_{t,b'}  =  n/(n-1) (G_{t,b} - mean_b' G_{t,b'})

    Args:
        returns: [*B, T], at least two rows.
        mask: [*B, T] bool, True where a step is real; None for all. n counts the real rows of a position.
        process_group: compare with the rows of all its processes.

    Returns:
        [*B, T], 0 where masked. A position with one real row alone has no others to compare with: 0 too, so that such
        decisions get no gradient, and the others the one they should have.

    Example:
        >>> leave_one_out(torch.tensor([[1.0], [2.0], [6.0]])).T
        tensor([[-3.0000, -1.5000,  4.5000]])

    Reference: Kool, van Hoof and Welling, Buy 4 REINFORCE Samples, Get a Baseline for Free!, 2019
    """
    centred, count = _centre(returns, mask, process_group, "leave_one_out")
    return (centred * (count / (count - 1).clamp(min=1))).to(returns.dtype)


def group_centred(
    returns: Tensor,
    *,
    group_size: int,
    exclude_self: bool = True,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Subtract the mean over rows of the same group at the same position.

        A_{t,b} = G_{t,b} - 1/(g-1) sum_{b' != b in the group of b} G_{t,b'}

    Rows that read one text with boundaries drawn independently share all that the text contributes to their returns, so
    that subtracting it leaves what boundaries did.

    Args:
        returns: [B, T] where rows come in groups: 0 .. g-1, g .. 2g-1, and so on.
        group_size: g, at least 2; divides B.
        exclude_self: subtract the mean of the others (unbiased) instead of the mean of all (shrinks by (g-1)/g).
        mask: [B, T] bool, True where a step is real; None for all.
        process_group: not used: a group lives on one process.

    Returns:
        [B, T], 0 where masked.

    Example:
        >>> group_centred(torch.tensor([[1.0], [2.0], [10.0], [14.0]]), group_size=2).T
        tensor([[-1.,  1., -4.,  4.]])

    Reference: https://arxiv.org/abs/2402.03300, without its division by the spread
    """
    if returns.dim() != 2 or group_size < 2 or len(returns) % group_size:
        raise ValueError(
            f"group_size must be at least 2 and divide the rows of returns [B, T], got group_size={group_size} "
            f"and returns {[*returns.shape]}"
        )
    _check_returns(returns, mask)
    apart = returns.unflatten(0, (-1, group_size)).transpose(0, 1)  # [g, B / g, T]: the group is the leading dimension
    apart_mask = None if mask is None else mask.unflatten(0, (-1, group_size)).transpose(0, 1)
    total, count = sum_and_count(apart, apart_mask, dim=0)
    centred = zero_masked(apart - total / count.clamp(min=1), apart_mask)
    if exclude_self:
        centred = centred * (count / (count - 1).clamp(min=1))
    return centred.transpose(0, 1).flatten(0, 1).to(returns.dtype)


def z_normalised(
    returns: Tensor,
    *,
    eps: float = 1e-8,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Subtract the mean over all steps and divide by their standard deviation: PPO's habit.

        A = (G - mean G) / (std G + eps),        0 where all returns are equal

    Not an unbiased estimate of anything: the scale depends on the decisions that it judges. It keeps steps of one size
    whatever the rewards are.

    Args:
        returns: [*B, T], at least two real steps.
        eps: added to the standard deviation.
        mask: [*B, T] bool, True where a step is real; None for all.
        process_group: statistics of all its processes.

    Returns:
        [*B, T], 0 where masked.

    Example:
        >>> z_normalised(torch.tensor([[1.0, 3.0]]))
        tensor([[-1.,  1.]])

    Reference: https://arxiv.org/abs/2006.05990 measures what it does to PPO
    """
    if returns.numel() < 2:
        raise ValueError(f"z_normalised needs at least 2 steps, got returns {[*returns.shape]}")
    _check_returns(returns, mask)
    wide = returns.to(torch.promote_types(returns.dtype, torch.float32))
    mean = masked_mean(wide, mask, process_group=process_group)
    deviation = zero_masked(wide - mean, mask)
    variance = masked_mean(deviation.square(), mask, process_group=process_group)
    # A spread within the rounding of the mean is none: equal returns would come out as noise of size 1. The root is
    # taken of what is not 0, where its slope is finite.
    spreads = variance > (8 * torch.finfo(deviation.dtype).eps * mean).square()
    spread = torch.where(spreads, variance, 1.0).sqrt()
    return torch.where(spreads, deviation / (spread + eps), 0.0).to(returns.dtype)


class RunningMean(NamedTuple):
    """What :func:`running_mean` remembers."""

    total: Tensor  # [T] decayed sum of the returns of earlier batches, per position
    count: Tensor  # type: ignore[assignment]  # [T] decayed number of them; hides tuple.count

    @classmethod
    def empty(cls, num_steps: int, *, device: torch.device | str | None = None) -> RunningMean:
        """Nothing seen yet."""
        return cls(torch.zeros(num_steps, device=device), torch.zeros(num_steps, device=device))


def running_mean(
    returns: Tensor,
    state: RunningMean,
    *,
    decay: float = 0.9,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> tuple[Tensor, RunningMean]:
    """Subtract, per position, the mean over earlier batches: unbiased, and usable with a single row.

        A_{t,b} = G_{t,b} - S_t / N_t,      then  S_t <- decay S_t + sum_b G_{t,b},      N_t <- decay N_t + n_t

    A batch enters the mean only for those after it. Sums and counts fade together, so that nothing pulls the mean
    towards its start at 0.

    Args:
        returns: [*B, T].
        state: what earlier batches left; ``RunningMean.empty(T)`` at first, which subtracts nothing.
        decay: what a batch weighs after one more, in [0, 1].
        mask: [*B, T] bool, True where a step is real; None for all.
        process_group: remember the rows of all its processes.

    Returns:
        Advantages [*B, T], 0 where masked, and the next state.

    Example:
        >>> first, state = running_mean(torch.tensor([[4.0]]), RunningMean.empty(1))
        >>> second, state = running_mean(torch.tensor([[5.0]]), state)
        >>> first, second
        (tensor([[4.]]), tensor([[1.]]))

    Reference: Williams, Simple Statistical Gradient-Following Algorithms (reinforcement comparison), 1992
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay must lie in [0, 1], got {decay}")
    if state.total.shape != returns.shape[-1:]:
        raise ValueError(f"state must hold the {returns.shape[-1]} positions of returns, got {[*state.total.shape]}")
    _check_returns(returns, mask)
    known = state.total / state.count.clamp(min=torch.finfo(state.count.dtype).tiny)
    advantages = zero_masked(returns - known, mask).to(returns.dtype)
    rows = returns.detach().reshape(-1, returns.shape[-1])
    row_mask = None if mask is None else mask.reshape(rows.shape)
    total, count = (x.squeeze(0) for x in sum_and_count(rows, row_mask, dim=0, process_group=process_group))
    return advantages, RunningMean(decay * state.total + total, decay * state.count + count)


def _check_returns(returns: Tensor, mask: Tensor | None) -> None:
    """Require floating-point returns, whose mean they can be compared with, and a mask that fits."""
    if not returns.dtype.is_floating_point:
        raise TypeError(f"returns must be a floating-point tensor, got {returns.dtype}")
    check_mask(mask, returns, "returns")


def _centre(
    returns: Tensor, mask: Tensor | None, process_group: ProcessGroup | None, name: str
) -> tuple[Tensor, Tensor]:
    """Returns minus their mean over rows at each position, and the number of real rows there."""
    _check_returns(returns, mask)
    leading = tuple(range(returns.dim() - 1))
    num_rows = returns[..., :1].numel() if returns.shape[-1] else 2
    if process_group is not None:
        num_rows *= process_group.size()
    if not leading or num_rows < 2:
        raise ValueError(
            f"{name} compares rows with each other and needs at least 2 of them, got returns {[*returns.shape]}; "
            f"running_mean and no_baseline work with one"
        )
    total, count = sum_and_count(returns, mask, dim=leading, process_group=process_group)
    return zero_masked(returns - total / count.clamp(min=1), mask), count  # at least float32


__all__ = [
    "BASELINES",
    "WORDS",
    "RunningMean",
    "batch_centred",
    "control_variate",
    "group_centred",
    "leave_one_out",
    "no_baseline",
    "running_mean",
    "z_normalised",
]

BASELINES: dict[str, Callable[..., Tensor]] = {
    "none": no_baseline,
    "batch_centred": batch_centred,
    "leave_one_out": leave_one_out,
    "z_normalised": z_normalised,
}
"""Baselines by name that need nothing beside the returns: ``(returns, *, mask, process_group) -> advantages``."""

WORDS = {"batch_mean": "batch_centred", "normalised": "z_normalised", "siblings": "group_centred"}
"""Words of the command line (``baseline=siblings``) that have another name here."""

"""Fixed rules that say where a token ends, as functions of bytes, of entropies and of random numbers.

All boundaries here close a token at the byte they stand at, and are known once that byte has been read. Papers that let
a token *start* at byte t + 1 draw the same string one byte later.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def exact_count(rate: float, length: int) -> int:
    """Boundaries of a string of ``length`` bytes at ``rate``, the one at its first byte included.

        k = ceil(rate T)

    Args:
        rate: boundaries per byte, in (0, 1].
        length: T.

    Example:
        >>> exact_count(0.25, 4096), exact_count(0.2, 4096), exact_count(0.2, 5)
        (1024, 820, 1)
    """
    return math.ceil(rate * length - 1e-9)  # 0.2 * 5 is to count as 1, though 0.2 is a little more than a fifth


def select_exactly(uniforms: Tensor, rate: float, block: int) -> Tensor:
    """Boundaries at random, as many in every block as the rate says: all such strings are equally likely.

        a_t = [u_t (n - t) < k - sum_{s<t} a_s],        a_0 = 1,  n bytes and k boundaries in a block

    A byte is taken with the share of boundaries still to be drawn among the bytes still to come, so that no byte after
    t has a say (selection sampling; Knuth, The Art of Computer Programming, 3.4.2).

    Args:
        uniforms: [*B, T] in [0, 1).
        rate: boundaries per byte, in (0, 1].
        block: n, bytes that a count is kept over; a last block that is shorter takes what it happens to get.

    Returns:
        [*B, T] bool.

    Example:
        >>> select_exactly(torch.tensor([0.9, 0.9, 0.1, 0.5]), 0.5, 4)
        tensor([ True, False,  True, False])
    """
    drawn, out = torch.zeros_like(uniforms[..., 0]), []
    for t in range(uniforms.shape[-1]):
        boundary, drawn = select_next(uniforms[..., t], torch.full_like(drawn, t), drawn, rate, block)
        out.append(boundary)
    return torch.stack(out, -1)


def select_next(uniforms: Tensor, position: Tensor, drawn: Tensor, rate: float, block: int) -> tuple[Tensor, Tensor]:
    """One byte of :func:`select_exactly`.

    Args:
        uniforms: [*B] in [0, 1).
        position: [*B] of the byte, t.
        drawn: [*B] boundaries drawn in its block before it.
        rate: boundaries per byte.
        block: bytes of a block.

    Returns:
        [*B] bool, and [*B] the boundaries drawn in the block with it.
    """
    place = position % block
    drawn = torch.where(place == 0, 0, drawn)
    # The first byte of a text always has a boundary; those of further blocks are bytes like others.
    boundary = (uniforms * (block - place) < exact_count(rate, block) - drawn) | (position == 0)
    return boundary, drawn + boundary.to(drawn.dtype)


def spacelike(byte_ids: Tensor) -> Tensor:
    """Bytes that may begin a token in SpaceByte: all but ASCII letters, digits, and the later bytes of characters.

    Args:
        byte_ids: [*B, T] bytes; special ids count as spacelike.

    Returns:
        [*B, T] bool.

    Example:
        >>> spacelike(torch.tensor(list("a é".encode())))  # the first byte of é, not its second
        tensor([False,  True,  True, False])

    Reference: https://arxiv.org/abs/2404.14408
    """
    wide = byte_ids.long()
    digit = (wide >= 0x30) & (wide <= 0x39)
    letter = ((wide | 0x20) >= 0x61) & ((wide | 0x20) <= 0x7A) & (wide < 0x80)
    later = (wide >= 0x80) & (wide <= 0xBF)
    return ~(digit | letter | later)


def spacebyte(byte_ids: Tensor) -> Tensor:
    """A boundary at every spacelike byte that follows one which is not.

        a_t = [spacelike(x_t) and not spacelike(x_{t-1})]

    Args:
        byte_ids: [*B, T].

    Returns:
        [*B, T] bool; nothing before the text is spacelike.

    Example:
        >>> spacebyte(torch.tensor(list(b"to be, or"))).int()
        tensor([0, 0, 1, 0, 0, 1, 0, 0, 0], dtype=torch.int32)
    """
    here = spacelike(byte_ids)
    return here & ~F.pad(here[..., :-1], (1, 0))


def entropy_spikes(entropies: Tensor, lags: int = 2, *, margin: float = 0.0) -> Tensor:
    """A boundary where the next byte is harder to tell than after each of the bytes before (Nawrot et al.).

        a_t = [H_t > H_{t-j} + margin for j = 1 .. k]

    Args:
        entropies: [*B, T] of the next byte after t.
        lags: k.
        margin: in nats; 0 in the paper.

    Returns:
        [*B, T] bool. The first byte has a boundary; before the text there is nothing to compare with.

    Example:
        >>> entropy_spikes(torch.tensor([1.0, 2.0, 1.5, 1.8, 3.0])).int()
        tensor([1, 1, 0, 0, 1], dtype=torch.int32)

    Reference: https://arxiv.org/abs/2211.09761
    """
    out = torch.ones_like(entropies, dtype=torch.bool)
    for lag in range(1, lags + 1):
        out &= entropies > F.pad(entropies, (lag, 0), value=-math.inf)[..., : entropies.shape[-1]] + margin
    return out


def entropy_rise(entropies: Tensor) -> Tensor:
    """How much harder the next byte has become to tell, ``H_t - H_{t-1}`` (BLT, approximately monotonic rule).

    Args:
        entropies: [*B, T].

    Returns:
        [*B, T]; minus infinity at the first byte.

    Example:
        >>> entropy_rise(torch.tensor([1.0, 2.0, 1.5]))
        tensor([   -inf,  1.0000, -0.5000])

    Reference: https://arxiv.org/abs/2412.09871
    """
    return entropies - F.pad(entropies[..., :-1], (1, 0), value=math.inf)


def never_twice(wanted: Tensor) -> Tensor:
    """A boundary where one is wanted and the byte before has none (BLT, combined rule).

        a_t = [wanted_t and not a_{t-1}],        a_0 = 1

    In a run of wanted ones every second is drawn, which needs no loop.

    Args:
        wanted: [*B, T] bool.

    Returns:
        [*B, T] bool.

    Example:
        >>> never_twice(torch.tensor([0, 1, 1, 1, 0, 1, 1]).bool()).int()
        tensor([1, 0, 1, 0, 0, 1, 0], dtype=torch.int32)

    Reference: https://arxiv.org/abs/2412.09871
    """
    places = torch.arange(wanted.shape[-1], device=wanted.device)
    wanted = wanted | (places == 0)
    last_gap = torch.where(wanted, -1, places).cummax(-1).values
    return wanted & ((places - last_gap) % 2 == 1)


def threshold_for_rate(scores: Tensor, rate: float) -> float:
    """The threshold that a share ``rate`` of scores exceeds.

    Args:
        scores: [*L] finite numbers.
        rate: share, in [0, 1].

    Returns:
        The largest score that is not to exceed it. Equal scores cannot be told apart: where there are some, fewer may.

    Example:
        >>> threshold_for_rate(torch.tensor([0.0, 1.0, 2.0, 3.0]), 0.25)
        2.0
    """
    ordered = scores.flatten().sort(descending=True).values
    if not len(ordered):
        raise ValueError("scores must hold at least one number, got none")
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate must lie in [0, 1], got {rate}")
    count = round(rate * len(ordered))
    return float(ordered[count]) if count < len(ordered) else float(ordered[-1]) - 1.0

"""Boundaries drawn by a policy, as many in every block of bytes as the rate says.

    a_t ~ Bernoulli(sigmoid(l_t + logit(m_t / n_t))),        m_t = k - sum_{s<t} a_s,   n_t = n - t

``m_t`` boundaries are left for the ``n_t`` bytes left of a block of n, t itself included. Where none is left, none is
drawn; where as many are left as bytes, all are. With l = 0 all strings with k boundaries are equally likely, as
:func:`~rltok_rl.functional.boundary_rules.select_exactly` draws them. Weighing strings by the product of their odds
(conditional Bernoulli) or by the largest of perturbed scores would let bytes to come have a say; here none has.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.boundary_rules import exact_count

FORCED = 1e9
"""Logit of a decision that the count has taken: its sigmoid is 1 or 0 exactly, and no policy moves it."""


def budget_offsets(boundaries: Tensor, rate: float, block: int) -> Tensor:
    """What the count adds to the policy's logits, for a whole boundary string at once.

        o_t = logit(m_t / n_t),        +-FORCED where it is infinite, and +FORCED at the first byte

    Args:
        boundaries: [*B, T] bool or 0/1, True at the first byte.
        rate: boundaries per byte, in (0, 1].
        block: n, bytes that a count is kept over.

    Returns:
        [*B, T] float64, without gradient.

    Example:
        >>> budget_offsets(torch.tensor([1, 0, 0, 1]), 0.5, 4).sigmoid()
        tensor([1.0000, 0.3333, 0.5000, 1.0000], dtype=torch.float64)
    """
    length = boundaries.shape[-1]
    place = torch.arange(length, device=boundaries.device) % block
    counts = boundaries.long()
    before = counts.cumsum(-1) - counts  # of the whole text
    opening = torch.arange(length, device=boundaries.device) - place  # where a byte's block begins
    return budget_offset(before - before[..., opening], place, rate, block, first=opening + place == 0)


def budget_offset(drawn: Tensor, place: Tensor, rate: float, block: int, *, first: Tensor) -> Tensor:
    """The same for bytes one by one.

    Args:
        drawn: [*L] boundaries drawn in the block of a byte before it.
        place: [*L] of the byte in its block.
        rate: boundaries per byte.
        block: bytes of a block.
        first: [*L] bool, whether it is the first byte of its text.
    """
    share = (exact_count(rate, block) - drawn).double() / (block - place)
    offset = torch.logit(share.clamp(0.0, 1.0)).clamp(-FORCED, FORCED)  # impossible strings have no share at all
    return torch.where(first, FORCED, offset)


def draw_within_budget(logits: Tensor, uniforms: Tensor | None, rate: float, block: int) -> Tensor:
    """Draw boundary strings; each decision waits for the one before.

    Args:
        logits: [*B, T] the policy's logits l.
        uniforms: [*B, T] in [0, 1); None takes the likelier decision.
        rate: boundaries per byte, in (0, 1].
        block: n; a last block that is shorter takes what it happens to get.

    Returns:
        [*B, T] bool, True at the first byte.

    Example:
        >>> draw_within_budget(torch.tensor([0.0, 3.0, 3.0, 0.0]), None, 0.5, 4).int()
        tensor([1, 1, 0, 0], dtype=torch.int32)
    """
    drawn, out = torch.zeros_like(logits[..., 0], dtype=torch.int64), []
    for t in range(logits.shape[-1]):
        position = torch.full_like(drawn, t)
        boundary, drawn, _ = draw_next(
            logits[..., t], None if uniforms is None else uniforms[..., t], position, drawn, rate, block
        )
        out.append(boundary)
    return torch.stack(out, -1)


def draw_next(
    logits: Tensor, uniforms: Tensor | None, position: Tensor, drawn: Tensor, rate: float, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One byte of :func:`draw_within_budget`.

    Args:
        logits: [*B] the policy's.
        uniforms: [*B] in [0, 1), or None.
        position: [*B] of the byte, t.
        drawn: [*B] boundaries drawn in its block before it.
        rate: boundaries per byte.
        block: bytes of a block.

    Returns:
        [*B] bool, [*B] the boundaries drawn in the block with it, and [*B] what the count added to the logits.
    """
    place = position % block
    drawn = torch.where(place == 0, 0, drawn)
    offset = budget_offset(drawn, place, rate, block, first=position == 0)
    # Random numbers of 0, whose logit is infinite, are not to draw what the count forbids.
    threshold = 0.0 if uniforms is None else torch.logit(uniforms.double(), eps=1e-15)
    boundary = logits.double() + offset > threshold
    return boundary, drawn + boundary.long(), offset


def string_log_prob(logits: Tensor, boundaries: Tensor) -> Tensor:
    """Log-probability of each decision of a string, 0 where the count left no choice.

    Args:
        logits: [*B, T] the policy's logits and the count's offsets together.
        boundaries: [*B, T] bool or 0/1.

    Returns:
        [*B, T].

    Example:
        >>> string_log_prob(torch.tensor([1e9, 0.0]), torch.tensor([1, 0])).exp()
        tensor([1.0000, 0.5000])
    """
    return F.logsigmoid(torch.where(boundaries.bool(), logits, -logits))

"""A baseline that is fitted: what anything known before a decision says about the return to come."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.functional.reduction import check_mask, zero_masked

_COLLINEAR = "regressors must not be constant or combinations of one another on the rows of the other folds"


def control_variate(
    returns: Tensor,
    regressors: Tensor,
    *,
    ridge: float = 1e-3,
    folds: int = 2,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Subtract what a linear regression, fitted on other rows, expects of the return: unbiased.

        A_{t,b} = G_{t,b} - u_{-f(b)} - w_{-f(b)} . z_{t,b}
        (u, w)_{-f} = argmin mean_{t, b not in f} (G_{t,b} - u - w . z_{t,b})^2 + ridge sum_k var(z_k) w_k^2

    Rows are dealt into folds in turn, and a row is judged by weights that never saw it. Regressors may hold anything
    that the row's decisions from t on do not influence: the text, later bytes included, what the early exit makes of
    it, the boundaries before t. The constant u is there always, and costs nothing.

    Args:
        returns: [*B, T].
        regressors: [*B, T, F] the z.
        ridge: strength of the penalty, in units of each regressor's variance. More than 0 admits regressors that are
            constant or repeat one another.
        folds: at least 2; at most the number of rows, which leaves out one row at a time.
        mask: [*B, T] bool, True where a step is real; None for all.
        process_group: fit on the rows of all its processes, in the order of their ranks. No gradient reaches the fit
            then.

    Returns:
        [*B, T], 0 where masked. Where the other folds have no real step, nothing is subtracted.

    Example:
        >>> x = torch.arange(8.0).view(4, 2)
        >>> control_variate(3 * x + 1, x[..., None], ridge=0.0).abs().max() < 1e-4
        tensor(True)

    Reference: Greensmith, Bartlett and Baxter, Variance Reduction Techniques for Gradient Estimates, 2004
    """
    if not returns.dtype.is_floating_point:
        raise TypeError(f"returns must be a floating-point tensor, got {returns.dtype}")
    if regressors.shape[:-1] != returns.shape:
        raise ValueError(f"regressors must be {[*returns.shape, 'F']}, got {[*regressors.shape]}")
    if not 0 <= ridge < float("inf"):
        raise ValueError(f"ridge must be at least 0, got {ridge}")
    check_mask(mask, returns, "returns")
    length, width = regressors.shape[-2:]
    # In float64: products of regressors spend half of the digits, and the systems are small.
    targets = zero_masked(returns, mask).double().reshape(-1, length)  # [n, T]
    real = torch.ones_like(targets) if mask is None else mask.reshape(-1, length).double()
    features = zero_masked(regressors, None if mask is None else mask.unsqueeze(-1)).double()
    features = features.reshape(-1, length, width)  # [n, T, F]
    before, num_rows = _rows_before(len(targets), process_group, returns.device)
    if num_rows < 2:
        raise ValueError(
            f"control_variate fits on other rows than it judges and needs at least 2 of them, got returns "
            f"{[*returns.shape]}; running_mean and no_baseline work with one"
        )
    if not 2 <= folds <= num_rows:
        raise ValueError(f"folds must lie in 2..{num_rows}, the number of rows, got {folds}")
    fold = (torch.arange(len(targets), device=returns.device) + before) % folds  # [n]

    # One matrix per row holds every sum that is needed: of 1, of z, of G, and of all their products.
    columns = torch.cat((real.unsqueeze(-1), features, targets.unsqueeze(-1)), -1)  # [n, T, 1 + F + 1]
    sums = targets.new_zeros(folds, width + 2, width + 2).index_add(0, fold, columns.mT @ columns)
    if process_group is not None:
        sums = sums.detach().contiguous()
        dist.all_reduce(sums, group=process_group)
    others = 1 - torch.eye(folds, dtype=sums.dtype, device=sums.device)
    constant, slopes = _fit((others @ sums.flatten(1)).view_as(sums), ridge)
    expected = constant[fold].unsqueeze(-1) + (features @ slopes[fold].unsqueeze(-1)).squeeze(-1)
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
    deviation = torch.where(varies > 0, variance, 1.0).sqrt()
    scale = varies / deviation
    correlation = covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    factor, _ = torch.linalg.cholesky_ex(correlation + torch.diag_embed(1 - varies + ridge))
    if sums.device.type == "cpu" and not torch.compiler.is_compiling() and _singular(factor, varies, ridge):
        raise ValueError(f"{_COLLINEAR}, or ridge must be larger, got ridge={ridge}")
    slopes = torch.cholesky_solve((with_target * scale).unsqueeze(-1), factor).squeeze(-1) * scale
    return mean_target - (mean * slopes).sum(-1), slopes


def _singular(factor: Tensor, varies: Tensor, ridge: float) -> bool:
    """Whether a fit is decided by rounding: a pivot that is nearly 0 or, where the factorisation failed, NaN."""
    constant = ridge == 0 and not bool(varies.all())
    return constant or not bool((factor.detach().diagonal(dim1=-2, dim2=-1).square() > 1e-10).all())


def _rows_before(num_rows: int, process_group: ProcessGroup | None, device: torch.device) -> tuple[int, int]:
    """How many rows the processes before this one hold, and how many all hold."""
    if process_group is None:
        return 0, num_rows
    counts = torch.zeros(process_group.size(), dtype=torch.int64, device=device)
    counts[process_group.rank()] = num_rows
    dist.all_reduce(counts, group=process_group)
    held = counts.tolist()
    return sum(held[: process_group.rank()]), sum(held)

"""Drawing the next byte from its logits."""

from __future__ import annotations

import torch
from torch import Tensor


def filter_logits(logits: Tensor, *, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Rule out unlikely bytes by setting their logits to minus infinity.

    ``top_k`` keeps the k largest logits (more, where some tie with the k-th). ``top_p`` keeps the smallest set of most
    likely bytes whose probabilities sum to at least p; the likeliest byte always stays. Both: first k, then p.

    Args:
        logits: [*B, V].
        top_k: how many bytes to keep, at least 1.
        top_p: how much probability to keep, in (0, 1].

    Returns:
        [*B, V].

    Example:
        >>> filter_logits(torch.tensor([0.0, 2.0, 1.0]), top_k=2)
        tensor([-inf, 2., 1.])
    """
    if top_k is not None:
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1 or None, got {top_k}")
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p is not None and top_p != 1.0:  # rounding would drop the least likely bytes at 1
        if not 0.0 < top_p <= 1.0:
            raise ValueError(f"top_p must lie in (0, 1] or be None, got {top_p}")
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        enough_before = probs.cumsum(-1) - probs >= top_p  # the likelier bytes already hold p
        enough_before[..., 0] = False
        drop = torch.zeros_like(enough_before).scatter(-1, order, enough_before)
        logits = logits.masked_fill(drop, float("-inf"))
    return logits


def sample_bytes(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one byte per row from ``softmax(logits / temperature)``, filtered.

    Args:
        logits: [B, V] next-byte logits.
        temperature: 1 samples the model's distribution, 0 takes the likeliest byte.
        top_k: see :func:`filter_logits`.
        top_p: see :func:`filter_logits`.
        generator: source of the random numbers.

    Returns:
        [B] int64 bytes.
    """
    if not temperature >= 0.0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    if logits.device.type == "cpu" and bool(logits.isnan().any()):
        raise ValueError(f"logits must be numbers, got nan in row {int(logits.isnan().any(-1).nonzero()[0])}")
    if temperature == 0.0:
        filter_logits(logits, top_k=top_k, top_p=top_p)  # refuse what sampling would refuse
        return logits.argmax(-1)
    # Relative to the largest, which stays 0 however cold it gets.
    relative = logits.float() - logits.float().amax(-1, keepdim=True)
    filtered = filter_logits(relative / temperature, top_k=top_k, top_p=top_p)
    return torch.multinomial(filtered.softmax(-1), 1, generator=generator).squeeze(-1)

"""Things of a user's own, named by where they lie: ``module:Name``."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any


def is_import_path(name: str) -> bool:
    """Whether a name says where something lies, and is none of this library's words.

    Args:
        name: of anything.

    Example:
        >>> is_import_path("my_package.judging:Mine"), is_import_path("leave_one_out")
        (True, False)
    """
    return ":" in name


def import_path(argument: str, name: str) -> Any:
    """What lies at ``module:Name``; modules are found as ``python -m`` finds them, in the working folder too.

    Args:
        argument: what messages call it.
        name: a module, a colon, and a name in the module.

    Example:
        >>> import_path("baseline.name", "rltok_rl.functional.baselines:leave_one_out").__name__
        'leave_one_out'
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise ValueError(f"{argument} must be a word, or module:Name as Python imports it, got {name!r}")
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be newer than the last look at its folder
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise ImportError(
            f"{argument} must name a module that is installed or lies in the working folder, got {name!r}: "
            f"there is no {error.name!r}"
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            meant = did_you_mean(part, [one for one in vars(found) if not one.startswith("_")])
            raise ValueError(f"{argument} must name something in the module, got {name!r}: no {part!r} there{meant}")
        found = getattr(found, part)
    return found


def did_you_mean(name: str, allowed: Iterable[str], words: Mapping[str, str] | None = None) -> str:
    """The end of a message that names what may have been meant; empty where nothing is near.

    Args:
        name: that does not exist.
        allowed: names that do.
        words: other words for names, by the word.

    Example:
        >>> did_you_mean("runing_mean", ["leave_one_out", "running_mean"])
        "; did you mean 'running_mean'?"
    """
    names = list(allowed)
    named = (words or {}).get(name)
    near = [named] if named in names else difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

"""Log-likelihoods of bytes, and their unit."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def byte_log_prob(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-likelihood of given bytes, without a log-softmax over all of them being kept.

        log p(y_t) = logits_{t, y_t} - log sum_v exp logits_{t, v}

    Args:
        logits: [*B, T, V] next-byte logits.
        targets: [*B, T] the bytes y_t.

    Returns:
        [*B, T] log-likelihoods in nats, at least in float32.

    Example:
        >>> byte_log_prob(torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([0.2500])
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits [*B, T, V] and targets [*B, T] must agree, got {[*logits.shape]} and {[*targets.shape]}"
        )
    if targets.device.type == "cpu" and targets.numel():
        low, high = (int(x) for x in targets.aminmax())
        if low < 0 or high >= logits.shape[-1]:
            allowed = f"0..{logits.shape[-1] - 1} (special ids are read, never predicted)"
            raise ValueError(f"targets must lie in {allowed}, got values from {low} to {high}")
    taken = logits.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return taken.to(dtype) - logits.to(dtype).logsumexp(-1)


def byte_log_prob_in_parts(head: Callable[[Tensor], Tensor], states: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Log-likelihood of given bytes from states, with the predictions of a few positions held at a time.

        log p(y_t) = z_{t, y_t} - log sum_v exp z_{t, v},      z_t = head(s_t)

    A part keeps its states alone for the backward pass, which computes its logits z again: [chunk, V] of them exist at
    a time, forward and backward, instead of [*B, T, V]. Each value is computed as :func:`byte_log_prob` does.

    Args:
        head: [n, D] states to [n, V] logits, position by position.
        states: [*B, T, D] states s_t.
        targets: [*B, T] the bytes y_t.
        chunk: positions of a part.

    Returns:
        [*B, T] log-likelihoods in nats, at least in float32.

    Example:
        >>> states, targets = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
        >>> byte_log_prob_in_parts(lambda x: x, states, targets, 2).exp()[0]
        tensor([0.2500, 0.2500, 0.2500])
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")

    def part(some: Tensor, wanted: Tensor) -> Tensor:
        return byte_log_prob(head(some), wanted)

    # Split, whose backward pass puts the parts together once; slices would each make a tensor of the whole.
    parts = zip(states.reshape(-1, states.shape[-1]).split(chunk), targets.reshape(-1).split(chunk), strict=True)
    again = torch.is_grad_enabled()
    found = [
        checkpoint(part, *both, use_reentrant=False, preserve_rng_state=False) if again else part(*both)
        for both in parts
    ]
    return torch.cat(found).view(targets.shape).clone()  # a tensor of its own, as FSDP wants of what a module returns


def next_byte_log_prob(logits: Tensor, byte_ids: Tensor) -> Tensor:
    """Log-likelihood of each next byte, ``log p(x_{t+1} | x_<=t)`` for t = 0 .. T - 2.

    Args:
        logits: [*B, T, V] logits; position t predicts byte t + 1, and the last position predicts nothing given.
        byte_ids: [*B, T] the bytes.

    Returns:
        [*B, T - 1] log-likelihoods in nats ([*B, 0] where T is 0).
    """
    return byte_log_prob(logits[..., :-1, :], byte_ids[..., 1:])


def log_mean_exp(log_values: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of a mean, from logarithms, without leaving their range.

        log (1/k) sum_j exp(v_j) = logsumexp_j v_j - log k

    Where exp(v_j) are k unbiased estimates of a likelihood p, so is their mean, and its logarithm is a lower bound of
    log p in expectation: it rises with k, towards log p.

    Args:
        log_values: [*L] with k >= 1 entries along ``dim``.
        dim: the dimension that the mean is over.

    Returns:
        [*L] without ``dim``.

    Example:
        >>> log_mean_exp(torch.tensor([0.25, 0.75]).log()).exp()
        tensor(0.5000)
        >>> log_mean_exp(torch.tensor([-2000.0, -2000.0]))
        tensor(-2000.)

    Reference: https://arxiv.org/abs/1509.00519
    """
    if not log_values.shape[dim]:
        raise ValueError(f"log_values must have at least one entry along dim {dim}, got {[*log_values.shape]}")
    return log_values.logsumexp(dim) - math.log(log_values.shape[dim])


def bits_per_byte(nats: Tensor | float, num_bytes: int) -> Tensor | float:
    """Turn a summed negative log-likelihood in nats into bits per byte.

        bpb = nats / (ln 2 * num_bytes)

    Args:
        nats: total cost in nats.
        num_bytes: bytes it was paid for.

    Example:
        >>> round(bits_per_byte(8 * math.log(2), 4), 6)
        2.0
    """
    if num_bytes < 1:
        raise ValueError(f"num_bytes must be at least 1, got {num_bytes}")
    return nats / (math.log(2) * num_bytes)

"""Figures that tell how a policy update goes: scalars over real steps, without gradient."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.functional.policy_gradient import Clip, clip_bounds
from rltok_rl.functional.reduction import check_mask, masked_mean, sum_and_count, zero_masked


@torch.no_grad()
def effective_sample_size(
    log_ratios: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> Tensor:
    """Share of the steps that importance weights leave in effect, in (0, 1]; 1 on-policy, and where there are none.

        ESS = (sum_t r_t)^2 / (n sum_t r_t^2)

    Args:
        log_ratios: [*L] log pi(a_t) - log pi_old(a_t).
        mask: [*L] bool, True where a step counts.
        process_group: over the steps of all its processes.

    Returns:
        [].

    Example:
        >>> effective_sample_size(torch.zeros(5))
        tensor(1.)

    Reference: Kish, Survey Sampling, 1965
    """
    check_mask(mask, log_ratios, "log_ratios")
    wide = log_ratios.to(torch.promote_types(log_ratios.dtype, torch.float32))
    # Relative to the largest, so that no weight overflows; the share does not depend on the scale.
    kept = wide if mask is None else wide.masked_fill(~mask, float("-inf"))
    largest = kept.max() if kept.numel() else kept.new_tensor(float("-inf"))
    if process_group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=process_group)
    weights = (kept - largest).exp()
    first, count = sum_and_count(weights, mask, process_group=process_group)
    second, _ = sum_and_count(weights.square(), mask, process_group=process_group)
    return torch.where(count > 0, first.square() / (count * second).clamp(min=1), 1.0).reshape(())


@torch.no_grad()
def approximate_kl(
    log_ratios: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> Tensor:
    """Divergence of the new policy from the one that decided, ``mean_t (r_t - 1 - log r_t)``: never negative.

    Args:
        log_ratios: [*L] log pi(a_t) - log pi_old(a_t).
        mask: [*L] bool, True where a step counts.
        process_group: over the steps of all its processes.

    Example:
        >>> approximate_kl(torch.zeros(5))
        tensor(0.)

    Reference: http://joschu.net/blog/kl-approx.html (its third estimator)
    """
    quiet = zero_masked(log_ratios, mask)
    return masked_mean(torch.expm1(quiet) - quiet, mask, process_group=process_group)


@torch.no_grad()
def clip_fraction(
    log_ratios: Tensor, clip: Clip, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> Tensor:
    """Share of the steps whose ratio lies outside the clip range.

    Args:
        log_ratios: [*L] log pi(a_t) - log pi_old(a_t).
        clip: epsilon, or (low, high).
        mask: [*L] bool, True where a step counts.
        process_group: over the steps of all its processes.

    Example:
        >>> clip_fraction(torch.tensor([0.0, 1.0]), 0.2)
        tensor(0.5000)
    """
    low, high = clip_bounds(clip)
    ratios = zero_masked(log_ratios, mask).exp()
    return masked_mean(((ratios < 1 - low) | (ratios > 1 + high)).to(ratios.dtype), mask, process_group=process_group)


@torch.no_grad()
def mean_and_spread(
    values: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over real steps.

    Args:
        values: [*L].
        mask: [*L] bool, True where a step counts.
        process_group: over the steps of all its processes.

    Example:
        >>> mean_and_spread(torch.tensor([1.0, 3.0]))
        (tensor(2.), tensor(1.))
    """
    mean = masked_mean(values, mask, process_group=process_group)
    return mean, masked_mean((values.to(mean.dtype) - mean).square(), mask, process_group=process_group).sqrt()

"""Hashes of byte n-grams: which row of a table belongs to the last n bytes."""

from __future__ import annotations

from torch import Tensor

PRIME = 1_000_000_007
"""Base of the polynomial, as in BLT."""


def ngram_hash(byte_ids: Tensor, size: int, buckets: int) -> Tensor:
    """Rolling polynomial hash of every n-gram, in 64-bit integers that wrap around.

        h_t = ( sum_{k=0..n-1} x_{t-n+1+k} * 1000000007^k  mod 2^64 )  mod buckets

    The sum is read as a signed number, and the remainder is never negative. Bytes before the text are 0, so that an
    n-gram that begins before it equals one that begins with bytes 0.

    Args:
        byte_ids: [*B, n - 1 + T] int64, of which the first n - 1 are the bytes before the T that are asked about.
        size: n, at least 1.
        buckets: rows of the table.

    Returns:
        [*B, T] int64 in 0 .. buckets - 1.

    Example:
        >>> import torch
        >>> ngram_hash(torch.tensor([0, 0, 97, 98, 97]), 3, 1000).tolist()
        [673, 401, 456]

    Reference: https://arxiv.org/abs/2412.09871
    """
    length = byte_ids.shape[-1] - size + 1
    total = byte_ids.narrow(-1, 0, length)  # k = 0, the oldest byte
    for k in range(1, size):
        total = total + byte_ids.narrow(-1, k, length) * signed(PRIME**k)
    return total.remainder(buckets)


def signed(number: int) -> int:
    """The 64-bit signed integer that a whole number wraps around to.

    Args:
        number: any integer.

    Example:
        >>> signed(2**63), signed(-1)
        (-9223372036854775808, -1)
    """
    return (number + 2**63) % 2**64 - 2**63

"""Numbers that callers give, checked by name."""

from __future__ import annotations

import operator


def check_count(name: str, value: object, *, minimum: int = 1) -> int:
    """Require an integer of at least ``minimum``; NumPy's integers are integers too.

    Args:
        name: what the message calls it.
        value: what was given.
        minimum: the least that is allowed.

    Example:
        >>> check_count("num_steps", 3)
        3
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return count

"""The boundary policy on tensors: logits from their terms, log-probabilities, entropies.

    l_t = base_t + sum_{j=1..w} a_{t-j} lags_{t,j},        a_t ~ Bernoulli(sigmoid(l_t))           (Eq. 19-23)

``base`` and ``lags`` come scaled, with the target rate's bias in ``base``; boundaries before the text are 0. The sum
runs in one fixed order, from the oldest lag to the newest. Floating-point addition depends on its order, and every
sampler adds in this one, so that logits recomputed in parallel equal the sampled ones bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Squash into (-cap, cap), with slope 1 at 0: ``cap * tanh(logits / cap)``.

    Args:
        logits: any shape.
        cap: the bound, positive and finite.

    Example:
        >>> soft_cap(torch.tensor([0.1, 100.0]), 6.0)
        tensor([0.1000, 6.0000])
    """
    if not 0 < cap < math.inf:
        raise ValueError(f"cap must be positive and finite, got {cap}")
    return cap * torch.tanh(logits / cap)


def lagged_logit(base: Tensor, lags: Tensor, recent: Tensor, *, cap: float | None = None) -> Tensor:
    """Boundary logits, given the boundaries before each (Eq. 21, 23).

    Args:
        base: [*L] base terms.
        lags: [*L, w]; ``lags[..., j - 1]`` counts if a boundary was drawn j bytes ago.
        recent: [*L, w] 0/1 or bool, ``recent[..., j - 1]`` is the boundary j bytes ago.
        cap: soft cap, or None.

    Returns:
        [*L] logits, at least in float32.

    Example:
        >>> lagged_logit(torch.tensor([-1.0]), torch.tensor([[0.5, 0.25]]), torch.tensor([[0, 1]]))
        tensor([-0.7500])
    """
    return _lag_sum(base, lags, recent.to(precision(base, lags)).unbind(-1), cap)


def boundary_logits(base: Tensor, lags: Tensor, boundaries: Tensor, *, cap: float | None = None) -> Tensor:
    """Logits of a whole boundary string at once, with gradient.

    Args:
        base: [*B, T] base terms.
        lags: [*B, T, w] lag terms.
        boundaries: [*B, T] 0/1 or bool.
        cap: soft cap, or None.

    Returns:
        [*B, T] logits l_t, at least in float32; beyond the terms themselves, memory grows as T.

    Example:
        >>> boundary_logits(torch.zeros(3), torch.ones(3, 1), torch.tensor([1, 0, 1]))
        tensor([0., 1., 0.])
    """
    check_terms(base, lags)
    if boundaries.shape != base.shape:
        raise ValueError(f"boundaries must have the shape of base, {[*base.shape]}, got {[*boundaries.shape]}")
    num_lags, length = lags.shape[-1], base.shape[-1]
    padded = F.pad(boundaries.to(precision(base, lags)), (num_lags, 0))  # [*B, w + T], w zeros before the text
    # Slices of one string instead of a [*B, T, w] copy of the boundaries, which the backward pass would keep.
    recent = [padded[..., num_lags - j : num_lags - j + length] for j in range(1, num_lags + 1)]
    return _lag_sum(base, lags, recent, cap)


def precision(base: Tensor, lags: Tensor) -> torch.dtype:
    """The dtype that logits are summed in: the wider of the two terms', at least float32.

    Example:
        >>> precision(torch.zeros(1).bfloat16(), torch.zeros(1, 2).bfloat16())
        torch.float32
    """
    return torch.promote_types(torch.promote_types(base.dtype, lags.dtype), torch.float32)


def _lag_sum(base: Tensor, lags: Tensor, recent: Sequence[Tensor], cap: float | None) -> Tensor:
    """The one place where a logit is summed in torch; ``recent[j - 1]`` [*L] is the boundary j bytes ago."""
    dtype = precision(base, lags)
    logits = base.to(dtype)
    # Unbound once, so that the gradient of lags is stacked once, not filled in lag by lag.
    terms = lags.to(dtype).unbind(-1)
    for term, drawn in zip(reversed(terms), reversed(recent), strict=True):  # oldest first; times 0 or 1 is exact
        logits = logits + term * drawn
    return logits if cap is None else soft_cap(logits, cap)


def recent_boundaries(boundaries: Tensor, num_lags: int) -> Tensor:
    """What the policy sees at each byte of the boundaries before it.

    Args:
        boundaries: [*B, T].
        num_lags: w.

    Returns:
        [*B, T, w]: ``[..., t, j - 1]`` is a_{t-j}, 0 before the text.

    Example:
        >>> recent_boundaries(torch.tensor([1, 0, 1]), 2).tolist()
        [[0, 0], [1, 0], [0, 1]]
    """
    if num_lags == 0:
        return boundaries.new_zeros(*boundaries.shape, 0)
    # w zeros in front; the window that ends just before t is [t, t + w) of the padded string, oldest first.
    windows = F.pad(boundaries, (num_lags, 0)).unfold(-1, num_lags, 1)[..., : boundaries.shape[-1], :]
    return windows.flip(-1)


def boundary_log_prob(logits: Tensor, boundaries: Tensor, *, forced: Tensor | None = None) -> Tensor:
    """Log-probability of each boundary decision, ``log pi(a_t) = a_t log p_t + (1 - a_t) log (1 - p_t)``.

    Args:
        logits: [*L] l_t.
        boundaries: [*L] the decisions a_t.
        forced: [*L] bool (or broadcastable), decisions that were not the policy's: their log-probability is 0. Where
            the sampler was given -1, 0 and 1, that is ``forced >= 0``.

    Returns:
        [*L] log-probabilities, no gradient where forced.

    Example:
        >>> boundary_log_prob(torch.zeros(2), torch.tensor([0, 1])).exp()
        tensor([0.5000, 0.5000])
    """
    if boundaries.shape != logits.shape:
        raise ValueError(f"boundaries must have the shape of logits, {[*logits.shape]}, got {[*boundaries.shape]}")
    log_probs = -F.softplus(torch.where(boundaries.bool(), -logits, logits))
    return log_probs if forced is None else log_probs.masked_fill(_mask(forced), 0.0)


def boundary_entropy(logits: Tensor, *, forced: Tensor | None = None) -> Tensor:
    """Entropy of each decision in nats, ``H_t = softplus(-|l_t|) + |l_t| sigmoid(-|l_t|)``.

    Written in |l|, where both terms are small and exact for decided policies.

    Args:
        logits: [*L] l_t.
        forced: [*L] bool, decisions that were not the policy's: their entropy is 0.

    Returns:
        [*L] entropies in [0, ln 2].

    Example:
        >>> boundary_entropy(torch.tensor([0.0, 1000.0]))
        tensor([0.6931, 0.0000])
    """
    size = torch.where(logits < 0, -logits, logits)
    entropy = F.softplus(-size) + size * torch.sigmoid(-size)
    return entropy if forced is None else entropy.masked_fill(_mask(forced), 0.0)


def _mask(forced: Tensor) -> Tensor:
    """Require bool: 0 is a decision in the sampler's ``forced`` and "free" in a mask."""
    if forced.dtype != torch.bool:
        raise TypeError(f"forced must be a bool mask here (forced >= 0 of the sampler's), got {forced.dtype}")
    return forced


def check_terms(base: Tensor, lags: Tensor) -> None:
    """Require float terms [*B, T] and [*B, T, w] of one device."""
    for name, terms in (("base", base), ("lags", lags)):
        if not isinstance(terms, Tensor) or not terms.dtype.is_floating_point:
            given = str(terms.dtype) if isinstance(terms, Tensor) else type(terms).__name__
            raise TypeError(f"{name} must be a floating-point tensor, got {given}")
    if base.dim() < 1 or lags.shape[:-1] != base.shape:
        raise ValueError(f"base must be [*B, T] and lags [*B, T, w], got {[*base.shape]} and {[*lags.shape]}")
    if base.device != lags.device:
        raise ValueError(f"base and lags must be on one device, got {base.device} and {lags.device}")

"""What to make large so that good decisions become likelier. Per step, higher is better; a loss negates once.

No function here detaches anything: advantages and old log-probabilities arrive without a gradient, because losses see
to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rltok_rl.functional.reduction import check_mask, zero_masked
from rltok_rl.functional.returns import check_gamma, check_rewards, generalized_advantage, reverse_scan, wide

Clip = float | tuple[float, float]


def score_function(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE: ``A_t log pi(a_t)``, whose gradient is an unbiased estimate of the return's (Eq. 13).

    Args:
        log_probs: [*L] log pi(a_t), with gradient.
        advantages: [*L] A_t.

    Returns:
        [*L].

    Example:
        >>> score_function(torch.tensor([-1.0]), torch.tensor([2.0]))
        tensor([-2.])
    """
    _same_shape(log_probs=log_probs, advantages=advantages)
    return log_probs * advantages


def clipped_ratio(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """PPO's pessimistic bound on the importance-weighted advantage.

        min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t),      r_t = pi(a_t) / pi_old(a_t)

    Args:
        log_probs: [*L] log pi(a_t), with gradient.
        old_log_probs: [*L] of the policy that decided.
        advantages: [*L] A_t.
        clip: epsilon for both sides, or (low, high); low in [0, 1].

    Returns:
        [*L].

    Example:
        >>> clipped_ratio(torch.tensor([0.0]), torch.tensor([-1.0]), torch.tensor([1.0]), 0.2)
        tensor([1.2000])

    Reference: https://arxiv.org/abs/1707.06347
    """
    _same_shape(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    low, high = clip_bounds(clip)
    log_ratios = log_probs - old_log_probs
    least, most = _log1p(-low), _log1p(high)
    # The lesser of the two products, clipped before the exponential: a ratio that overflows would have gradient NaN.
    clipped = torch.where(advantages >= 0, log_ratios.clamp(max=most), log_ratios.clamp(min=least))
    return clipped.exp() * advantages


def importance_weighted(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    max_weight: float | None = None,
    whole_row: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Decisions of another policy, each weighted by how much likelier the learner makes it.

        w_t A_t log pi(a_t),      w_t = min(r_t, max_weight), taken as a constant,      r_t = pi(a_t) / pi_old(a_t)

    Weights of single steps correct each decision for itself; the decisions around it stay those of the old policy.
    Where an advantage depends on them too, the weight that makes the expected gradient right is that of the whole row,
    ``prod_u r_u``, which is unbiased for any old policy that can decide as the new one does, and noisy beyond short
    rows.

    Args:
        log_probs: [*L] log pi(a_t), with gradient.
        old_log_probs: [*L] of the policy that decided.
        advantages: [*L] A_t.
        max_weight: largest weight; None leaves them free.
        whole_row: weigh each step by the product over its row, the last dimension.
        mask: [*L] bool, steps that count in such products; None for all.

    Returns:
        [*L]. With weights of single steps, its gradient equals that of ``r_t A_t`` where no weight is cut.

    Example:
        >>> importance_weighted(torch.tensor([-0.5]), torch.tensor([-0.5]), torch.tensor([2.0]))
        tensor([-1.])

    Reference: Precup, Sutton and Singh, Eligibility Traces for Off-Policy Policy Evaluation, 2000
    """
    _same_shape(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    if max_weight is not None and not max_weight > 0:
        raise ValueError(f"max_weight must be positive or None, got {max_weight}")
    check_mask(mask, log_probs, "log_probs")
    log_weights = log_probs.detach() - old_log_probs  # a constant by definition, not a loss's decision
    if whole_row:
        log_weights = zero_masked(log_weights, mask).sum(-1, keepdim=True)
    if max_weight is not None:
        log_weights = log_weights.clamp(max=math.log(max_weight))
    return log_weights.exp() * advantages * log_probs


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    log_ratios: Tensor,
    gamma: float | Tensor,
    *,
    lmbda: float | Tensor = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V-trace: values and advantages of one policy from the decisions of another.

        delta_t = rho_t (R_{t+1} + gamma V_{t+1} - V_t)         v_t - V_t = delta_t + gamma c_t (v_{t+1} - V_{t+1})
        A_t = rho_t (R_{t+1} + gamma v_{t+1} - V_t)
        rho_t = min(r_t, rho_clip),  c_t = lambda min(r_t, c_clip),  r_t = pi(a_t) / pi_old(a_t)

    Args:
        rewards: [*B, T].
        values: [*B, T] V where each step begins.
        next_values: [*B, T] V where it ends.
        log_ratios: [*B, T] log pi(a_t) - log pi_old(a_t).
        gamma: discount in [0, 1].
        lmbda: in [0, 1].
        rho_clip: largest weight of a temporal difference.
        c_clip: largest weight of what comes after.
        done: [*B, T] bool, steps that end an episode; None for none. Wherever ``terminated`` is, so is this.
        terminated: [*B, T] bool, those after which no value remains; None takes ``done``.
        mask: [*B, T] bool, True where a step is real.

    Returns:
        Advantages and targets v_t, [*B, T] each, 0 where masked.

    Example:
        >>> zero = torch.zeros(2)
        >>> vtrace(torch.ones(2), zero, zero, zero, 0.5)[1]
        tensor([1.5000, 1.0000])

    Reference: https://arxiv.org/abs/1802.01561
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    _same_shape(rewards=rewards, values=values, next_values=next_values, log_ratios=log_ratios)
    for name, value in (("rho_clip", rho_clip), ("c_clip", c_clip)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    dtype = rewards.dtype
    rewards, values, log_ratios = (x.to(wide(rewards)) for x in (rewards, values, log_ratios))
    log_ratios = zero_masked(log_ratios, mask)
    # Clipped before the exponential: a ratio that overflows would have gradient NaN.
    rho, c = (log_ratios.clamp(max=math.log(clip)).exp() for clip in (rho_clip, c_clip))
    one_step = generalized_advantage(  # lambda = 0: the temporal differences alone
        rewards, values, next_values, gamma, 0.0, done=done, terminated=terminated, mask=mask
    )
    ended = done if terminated is None else terminated if done is None else done | terminated
    goes_on = gamma if ended is None else gamma * (~ended).to(c.dtype)
    excess = reverse_scan(rho * one_step, goes_on * lmbda * c)  # v_t - V_t
    after = torch.nn.functional.pad(excess[..., 1:], (0, 1))  # v_{t+1} - V_{t+1}
    advantages = zero_masked(rho * (one_step + goes_on * after), mask)
    return advantages.to(dtype), zero_masked(values + excess, mask).to(dtype)


def clip_bounds(clip: Clip) -> tuple[float, float]:
    """``clip`` as (low, high), checked."""
    low, high = clip if isinstance(clip, Sequence) else (clip, clip)  # a list where it comes from a file
    numbers = not isinstance(low, Tensor)  # buffers of a loss: looking at them would stall the device
    if numbers and (not 0.0 <= low <= 1.0 or not high >= 0.0):
        raise ValueError(f"clip must be epsilon in [0, 1], or (low in [0, 1], high >= 0), got {clip}")
    return low, high


def _log1p(x: float | Tensor) -> float | Tensor:
    """``log(1 + x)`` of a number or of a buffer, -inf at -1."""
    if isinstance(x, Tensor):
        return x.log1p()
    return math.log1p(x) if x > -1 else -math.inf


def _same_shape(**tensors: Tensor) -> None:
    shapes = {name: [*x.shape] for name, x in tensors.items()}
    if len({tuple(shape) for shape in shapes.values()}) != 1:
        raise ValueError(f"{', '.join(shapes)} must share a shape, got {', '.join(map(str, shapes.values()))}")

"""Keeping the number of boundaries per byte at a target: losses on boundary logits.

All controls take ``(logits, boundaries, target)`` and return one loss, so that one can stand for another. What a
control knows of the rate spans all real steps of the batch, and all processes where a group is given; averaged over
processes, its gradient is that of the whole batch. None of them takes a coefficient: losses do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup

from rltok_rl.functional.reduction import check_mask, loss_mean, masked_mean, zero_masked


def check_target(target: float) -> float:
    """Require a rate strictly between 0 and 1."""
    if not 0.0 < target < 1.0:
        raise ValueError(f"target must lie strictly between 0 and 1, got {target}")
    return target


def straight_through(boundaries: Tensor, probs: Tensor) -> Tensor:
    """Decisions in value, probabilities in gradient: ``a + p - sg(p)``.

    Args:
        boundaries: [*L] the decisions a, bool or 0/1.
        probs: [*L] their probabilities p.

    Returns:
        [*L].

    Example:
        >>> p = torch.tensor([0.25, 0.75], requires_grad=True)
        >>> straight_through(torch.tensor([1, 0]), p).tolist()
        [1.0, 0.0]

    Reference: https://arxiv.org/abs/1308.3432
    """
    return boundaries.to(probs.dtype) + probs - probs.detach()


def logit_pressure(
    logits: Tensor,
    boundaries: Tensor,
    target: float | Tensor,
    *,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Push all logits down together while the mean probability is above the target, and up below it (Eq. 24).

        L = mean_t(l_t) sg(mean_t(p_t) - target)

    The push is the same for every logit, so that it shifts the threshold without saturating anything: the gradient of
    the probability itself would leave decided logits alone.

    Targets may differ from step to step. Then steps with one target share a mean, and are pushed by their own distance:

        L = mean_t( l_t sg(mean_u(p_u) - target_t) ),       the mean over all u with target_u = target_t

    With one target for all that is the loss above. Texts that drew their targets at random hold each its own.

    Args:
        logits: [*L] l_t.
        boundaries: [*L] the decisions; not used.
        target: boundaries per byte, in (0, 1); [*L] of each step.
        mask: [*L] bool, True where a decision was the policy's.
        process_group: take the mean probability over all its processes.

    Returns:
        [] loss; its value means nothing, its gradient does.

    Example:
        >>> logit_pressure(torch.tensor([0.0, 2.0]), torch.tensor([0, 1]), 0.5)
        tensor(0.1904)
    """
    if isinstance(target, Tensor):
        return _pressures(logits, boundaries, target, mask, process_group)
    _check(logits, boundaries, target, mask)
    mean_prob = masked_mean(zero_masked(logits, mask).detach().sigmoid(), mask, process_group=process_group)
    return loss_mean(logits, mask, process_group=process_group) * (mean_prob - target)


def _pressures(
    logits: Tensor, boundaries: Tensor, targets: Tensor, mask: Tensor | None, process_group: ProcessGroup | None
) -> Tensor:
    """The pressure of steps with targets of their own."""
    _check(logits, boundaries, 0.5, mask)
    if targets.shape != logits.shape:
        raise ValueError(f"target must have the shape of logits, {[*logits.shape]}, got {[*targets.shape]}")
    counted = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
    probs = zero_masked(logits, mask).detach().sigmoid()
    values, group = targets.unique(return_inverse=True)  # [n], [*L]
    sums = _sums(probs.masked_fill(~counted, 0.0), group, len(values))  # [n]
    counts = _sums(counted.to(probs.dtype), group, len(values))
    if process_group is not None:
        sums, counts = _sums_everywhere(values, sums, counts, process_group)
    error = (sums / counts.clamp(min=1) - values)[group].masked_fill(~counted, 0.0)  # [*L]
    return loss_mean(logits * error, mask, process_group=process_group)


def _sums(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    return values.new_zeros(num_groups).index_add(0, group.flatten(), values.flatten())


def _sums_everywhere(
    values: Tensor, sums: Tensor, counts: Tensor, process_group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Sums and counts [n] of the groups named by ``values`` [n], over processes that know other groups too."""
    width = torch.tensor(len(values), device=values.device)
    dist.all_reduce(width, op=dist.ReduceOp.MAX, group=process_group)
    mine = sums.new_zeros(3, int(width))  # a place that is not filled counts nothing
    mine[:, : len(values)] = torch.stack((values.to(sums.dtype), sums, counts))
    gathered = [torch.empty_like(mine) for _ in range(process_group.size())]
    dist.all_gather(gathered, mine, group=process_group)
    everyone = torch.cat(gathered, 1)  # [3, all groups of all]
    same = (everyone[0] == values.to(sums.dtype)[:, None]).to(sums.dtype)  # [n, all]
    return same @ everyone[1], same @ everyone[2]


def ratio_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """The load-balancing loss of H-Net, written for a rate ``alpha = 1/N``.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha),        F = mean_t sg(a_t),  G = mean_t p_t

    1 where F = G = alpha, and 1 for every G where F = alpha: at the target there is no gradient. It is not bounded
    below by 1 where F and G differ.

    Args and returns as for :func:`logit_pressure`; F is that of all processes.

    Example:
        >>> ratio_loss(torch.tensor([0.0, 0.0]), torch.tensor([0, 1]), 0.5)
        tensor(1.)

    Reference: https://arxiv.org/abs/2507.07955
    """
    _check(logits, boundaries, target, mask)
    rate = masked_mean(boundaries.to(logits.dtype), mask, process_group=process_group)
    mean_prob = loss_mean(zero_masked(logits, mask).sigmoid(), mask, process_group=process_group)
    return load_balance(rate, mean_prob, target)


def load_balance(rate: Tensor, mean_prob: Tensor, target: float) -> Tensor:
    """The value of the ratio loss from its two means, for probabilities that come without logits.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha)

    Args:
        rate: [*L] F, boundaries per byte.
        mean_prob: [*L] G, their mean probability.
        target: alpha, in (0, 1).

    Example:
        >>> load_balance(torch.tensor(0.1), torch.tensor(0.6), 0.2)
        tensor(0.7500)
    """
    return rate * mean_prob / target + (1 - rate) * (1 - mean_prob) / (1 - target)


def binomial_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """How unlikely each row's number of boundaries is, were they drawn at the target rate (Nawrot et al.).

        L = -mean_b (1/n_b) log Binomial(k_b; n_b, target),        k_b = sum_t a_{t,b}, straight through to p

    Args:
        logits: [*B, T] l_t.
        boundaries: [*B, T] the decisions.
        target: boundaries per byte, in (0, 1).
        mask: [*B, T] bool, True where a decision was the policy's; n_b counts them.
        process_group: the processes whose rows are averaged over.

    Returns:
        [] loss in nats per byte.

    Example:
        >>> binomial_loss(torch.zeros(1, 4), torch.tensor([[1, 0, 1, 0]]), 0.5)  # -log(6 / 16) / 4
        tensor(0.2452)

    Reference: https://arxiv.org/abs/2211.09761
    """
    _check(logits, boundaries, target, mask)
    drawn = straight_through(boundaries, zero_masked(logits, mask).sigmoid())
    k = zero_masked(drawn, mask).sum(-1)
    n = torch.full_like(k, logits.shape[-1]) if mask is None else mask.sum(-1).to(k.dtype)
    return loss_mean(binomial_cost(k, n, target), n > 0, process_group=process_group)


def binomial_cost(k: Tensor, n: Tensor, target: float) -> Tensor:
    """Cost per trial of k successes among n at the target rate, ``-(1/n) log Binomial(k; n, target)``.

    Args:
        k: [*L] successes, straight through where they are to carry a gradient.
        n: [*L] trials, of the same dtype; a row without trials costs 0.
        target: rate in (0, 1).

    Example:
        >>> binomial_cost(torch.tensor(2.0), torch.tensor(4.0), 0.5)
        tensor(0.2452)
    """
    target_odds = torch.tensor(target, dtype=torch.float64).logit().item()
    choose = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_likelihood = choose + k * target_odds + n * torch.log1p(torch.tensor(-target, dtype=torch.float64)).item()
    return -log_likelihood / n.clamp(min=1)


def hinge_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    slack: float = 0.005,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """How far the rate is outside a band around the target; nothing inside it.

        L = max(r - (target + slack), 0) + max((target - slack) - r, 0),        r = mean_t a_t, straight through to p

    FlexiTokens has a band of its own, from three standard deviations below its target up to the target.

    Args and returns as for :func:`logit_pressure`; r is that of all processes.

    Example:
        >>> hinge_loss(torch.zeros(4), torch.tensor([1, 0, 1, 0]), 0.25, slack=0.05)
        tensor(0.2000)

    Reference: https://arxiv.org/abs/2507.12720
    """
    _check(logits, boundaries, target, mask)
    if slack < 0:
        raise ValueError(f"slack must be at least 0, got {slack}")
    drawn = straight_through(boundaries, zero_masked(logits, mask).sigmoid())
    rate = loss_mean(drawn, mask, process_group=process_group)
    seen = masked_mean(drawn.detach(), mask, process_group=process_group)  # the side is everybody's
    above, below = (seen > target + slack).to(rate.dtype), (seen < target - slack).to(rate.dtype)
    return above * (rate - target - slack) + below * (target - slack - rate)


class Controller(NamedTuple):
    """What a proportional-integral controller remembers."""

    integral: Tensor  # [] sum of the errors so far
    coefficient: Tensor  # [] what it multiplies its signal with

    @classmethod
    def empty(cls, *, device: torch.device | str | None = None) -> Controller:
        """Nothing seen yet."""
        return cls(torch.zeros((), device=device), torch.zeros((), device=device))


def controller_update(
    state: Controller, error: Tensor, *, proportional: float, integral: float, limit: float = math.inf
) -> Controller:
    """One step of a proportional-integral controller.

        I' = I + clip(e, -limit, limit),        c' = proportional e + integral I'

    Without a limit the long way to a far target would fill the integral, which then has to be emptied beyond it.

    Args:
        state: integral and coefficient before.
        error: [] rate minus target.
        proportional: gain of the error.
        integral: gain of the sum of errors.
        limit: largest error that is added to the sum.

    Returns:
        The state after; its coefficient is the push towards fewer boundaries.

    Example:
        >>> controller_update(Controller.empty(), torch.tensor(0.5), proportional=2.0, integral=1.0).coefficient
        tensor(1.5000)

    Reference: https://arxiv.org/abs/2410.20771 (MrT5 controls its deletion rate so)
    """
    total = state.integral + error.clamp(-limit, limit)
    return Controller(total, proportional * error + integral * total)


def controlled_logits(
    logits: Tensor, coefficient: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None
) -> Tensor:
    """The loss of a PI controller: ``c mean_t(l_t)``, the pressure of Eq. 24 with a coefficient that remembers.

    Args:
        logits: [*L].
        coefficient: [] c, without gradient.
        mask: [*L] bool.
        process_group: the processes that train together.

    Returns:
        [] loss.

    Example:
        >>> controlled_logits(torch.tensor([0.0, 2.0]), torch.tensor(0.5))
        tensor(0.5000)
    """
    return coefficient * loss_mean(logits, mask, process_group=process_group)


def priced_boundaries(
    logits: Tensor, price: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None
) -> Tensor:
    """The loss of a price per boundary: ``price mean_t(p_t)``, its expected cost given the boundaries before.

    With a price that follows the sum of errors this is dual ascent on the constraint; with a proportional part beside
    it, the method of multipliers, which does not swing. To let the cost reach earlier decisions too, charge it from
    the rewards instead: :func:`~rltok_rl.functional.rewards.charge_boundaries`.

    Args:
        logits: [*L].
        price: [] nats per boundary, without gradient.
        mask: [*L] bool.
        process_group: the processes that train together.

    Returns:
        [] loss.

    Example:
        >>> priced_boundaries(torch.tensor([0.0, 0.0]), torch.tensor(0.5))
        tensor(0.2500)

    Reference: https://arxiv.org/abs/2007.03964 (a controller of a Lagrange multiplier)
    """
    return price * loss_mean(zero_masked(logits, mask).sigmoid(), mask, process_group=process_group)


RATE_CONTROLS: dict[str, Callable[..., Tensor]] = {
    "logit_pressure": logit_pressure,
    "ratio": ratio_loss,
    "binomial": binomial_loss,
    "hinge": hinge_loss,
}
"""Controls by name that need no memory: ``(logits, boundaries, target, *, mask, process_group) -> loss``."""


def _check(logits: Tensor, boundaries: Tensor, target: float, mask: Tensor | None) -> None:
    check_target(target)
    check_mask(mask, logits, "logits")
    if boundaries.shape != logits.shape:
        raise ValueError(f"boundaries must have the shape of logits, {[*logits.shape]}, got {[*boundaries.shape]}")

"""Means over real steps, of one process or of all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def check_mask(mask: Tensor | None, values: Tensor, name: str) -> None:
    """Require a bool mask of the shape of ``values``, which the message calls ``name``."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True where a step is real, got {mask.dtype}")
    if mask.shape != values.shape:
        raise ValueError(f"mask must have the shape of {name}, {[*values.shape]}, got {[*mask.shape]}")


def zero_masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """``values`` with 0 where there is no real step, whatever stood there, NaN included; no gradient there."""
    return values if mask is None else values.masked_fill(~mask, 0.0)


def sum_and_count(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | tuple[int, ...] | None = None,
    process_group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum and number of real steps, of this process or of all.

    Args:
        values: [*L].
        mask: [*L] bool, True where a step is real; None for all.
        dim: dimensions to sum over, kept with size 1; None for all of them.
        process_group: whose sums to add up. Sums over processes carry no gradient.

    Returns:
        Two tensors of one shape; the count is at least float32.
    """
    check_mask(mask, values, "values")
    dims = tuple(range(values.dim())) if dim is None else dim
    dtype = torch.promote_types(values.dtype, torch.float32)
    total = zero_masked(values, mask).sum(dims, keepdim=True, dtype=dtype)
    real = torch.ones_like(values, dtype=dtype) if mask is None else mask.to(dtype)
    count = real.sum(dims, keepdim=True)
    if process_group is None:
        return total, count
    both = torch.stack((total.detach(), count))
    dist.all_reduce(both, group=process_group)
    return both[0], both[1]


def masked_mean(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | tuple[int, ...] | None = None,
    keepdim: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Mean over real steps; 0 where there are none.

    Args:
        values: [*L].
        mask: [*L] bool, True where a step is real; None for all.
        dim: dimensions to average over; None for all of them.
        keepdim: keep them with size 1.
        process_group: average over all its processes. The result is then a statistic: it carries no gradient.

    Returns:
        The mean, at least in float32.

    Example:
        >>> masked_mean(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    total, count = sum_and_count(values, mask, dim=dim, process_group=process_group)
    mean = total / count.clamp(min=1)
    if keepdim:
        return mean
    return mean.reshape(()) if dim is None else mean.squeeze(dim)


def loss_mean(values: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None) -> Tensor:
    """Mean of a loss, whose gradient is right after data-parallel training has averaged it over processes.

        sum_here * num_processes / count_everywhere

    The average of this over processes is the mean over all real steps everywhere. The mean of means would weigh a step
    more where a process has few of them.

    Args:
        values: [*L] losses of steps, with gradient.
        mask: [*L] bool, True where a step counts; None for all.
        process_group: the processes that train together; None for one.

    Returns:
        [] loss; differentiable with respect to this process's values.

    Example:
        >>> loss_mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """
    if process_group is None:
        return masked_mean(values, mask)
    total, _ = sum_and_count(values, mask)
    _, count = sum_and_count(values.detach(), mask, process_group=process_group)
    return (total * dist.get_world_size(process_group) / count.clamp(min=1)).reshape(())

"""Discounted sums over time in a logarithmic number of steps: returns, TD(lambda), generalised advantages.

Everything here is one recurrence run backwards, ``G_t = x_t + c_t G_{t+1}``. Time is the last dimension, T long.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltok_rl.functional.reduction import check_mask, zero_masked


def check_gamma(gamma: float | Tensor, name: str = "gamma") -> float | Tensor:
    """Require a number in [0, 1], or a tensor of one; return it as a float, or as a tensor without dimensions.

    A tensor is looked at on the CPU only, outside compiled code; it is never turned into a number, which would make the
    host wait and cut the graph.
    """
    if isinstance(gamma, Tensor):
        if gamma.numel() != 1:
            raise ValueError(f"{name} must be one number, got a tensor of shape {[*gamma.shape]}")
        if gamma.device.type != "cpu" or torch.compiler.is_compiling():
            return gamma.reshape(())
    value = float(gamma.detach() if isinstance(gamma, Tensor) else gamma)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return gamma.reshape(()) if isinstance(gamma, Tensor) else value


def check_rewards(rewards: Tensor, mask: Tensor | None) -> None:
    """Require floating-point rewards that are finite at real steps; values are looked at on the CPU only.

    Infinity is refused with NaN: times the 0 of an episode's end it would be NaN in the episode before.
    """
    if not rewards.dtype.is_floating_point:
        raise TypeError(f"rewards must be a floating-point tensor, got {rewards.dtype}")
    if rewards.dim() < 1:
        raise ValueError("rewards must have shape [*B, T], got []")
    check_mask(mask, rewards, "rewards")
    if rewards.device.type != "cpu" or torch.compiler.is_compiling():
        return
    real = zero_masked(rewards.detach(), mask)
    if math.isfinite(real.sum().item()):  # one fast pass: what is not finite shows in the sum
        return
    wrong = ~real.isfinite()
    if bool(wrong.any()):  # otherwise finite numbers whose sum is not
        first = wrong.nonzero()[0].tolist()
        raise ValueError(f"rewards must be finite numbers, got {real[tuple(first)].item()} at index {first}")


def reverse_scan(x: Tensor, decay: float | Tensor) -> Tensor:
    """Run ``G_t = x_t + c_t G_{t+1}`` from the end, with ``G_T = 0``, in log2 T steps on whole tensors.

    Twice the reach at every step: ``G^(2s)_t = G^(s)_t + (c_t ... c_{t+s-1}) G^(s)_{t+s}``. Sums of pairs round
    less than a loop does. There is no matrix product in it, which autocast would round to bfloat16.

    Args:
        x: [*B, T] finite numbers.
        decay: the c_t, [*B, T] (c_{T-1} meets nothing), or one number for all, as a float or a tensor.

    Returns:
        [*B, T], differentiable with respect to both.

    Example:
        >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 0.5]))
        tensor([1.5000, 1.0000, 1.0000])
        >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), 0.5)
        tensor([1.7500, 1.5000, 1.0000])
    """
    total, reach, length = x, 1, x.shape[-1]
    if isinstance(decay, Tensor) and decay.dim():
        if x.shape != decay.shape:
            raise ValueError(f"x and decay must share a shape, got {[*x.shape]} and {[*decay.shape]}")
        products = decay.to(x)  # c_t ... c_{t+reach-1}, where so many follow
        while reach < length:
            reached = torch.addcmul(total[..., :-reach], products[..., : length - reach], total[..., reach:])
            total = torch.cat((reached, total[..., -reach:]), -1)
            products = products[..., :-reach] * products[..., reach:]
            reach *= 2
        return total
    product = decay.to(x) if isinstance(decay, Tensor) else decay  # c^reach
    while reach < length and not _vanishes(product, x.dtype):
        near, far = total[..., :-reach], total[..., reach:]
        # The same sum twice; a number costs one pass over memory less where it is a number.
        reached = near + product * far if isinstance(product, Tensor) else torch.add(near, far, alpha=product)
        total = torch.cat((reached, total[..., -reach:]), -1)
        product, reach = product * product, 2 * reach
    return total


def _vanishes(product: float | Tensor, dtype: torch.dtype) -> bool:
    """Whether a number rounds to 0 in ``dtype``, so that adding multiples of it changes nothing."""
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return not isinstance(product, Tensor) and product <= smallest / 2


def discounted_return(
    rewards: Tensor, gamma: float | Tensor, *, done: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Sum each step's future rewards, weighting a reward k steps ahead by gamma^k (Eq. 16).

        G_t = sum_{k >= 0} gamma^k R_{t+1+k},        so        G_t = R_{t+1} + gamma G_{t+1}

    ``R_{t+1}`` is the reward of the step that decision t begins, the first that it can influence, and stands at index
    t. The paper counts from 1 and gives the reward of byte i the index i.

    Args:
        rewards: [*B, T] reward of each step, higher is better.
        gamma: discount in [0, 1], a number or a tensor of one; 0 keeps each reward alone, 1 sums to the end.
        done: [*B, T] bool, steps that end an episode: what comes after them belongs to another. None for none.
        mask: [*B, T] bool, True where a step is real. Rewards elsewhere do not count, and returns there are 0; time
            does not stop there, so that a mask is for padding before or behind a sequence.

    Returns:
        [*B, T] in the dtype of ``rewards``, summed at least in float32; differentiable.

    Example:
        >>> discounted_return(torch.tensor([[1.0, 0.0, 2.0]]), 0.5)
        tensor([[1.5000, 1.0000, 2.0000]])
    """
    gamma = check_gamma(gamma)
    check_rewards(rewards, mask)
    x = zero_masked(rewards, mask).to(wide(rewards))
    returns = reverse_scan(x, _decay(gamma, _ends(done, rewards, "done"), x))
    return zero_masked(returns, mask).to(rewards.dtype)


def generalized_advantage(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float | Tensor,
    lmbda: float | Tensor,
    *,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Sum discounted temporal differences: TD errors at lambda = 0, returns minus values at lambda = 1.

        delta_t = R_{t+1} + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}

    As in TorchRL: ``terminated`` cuts the value of what follows, ``done`` (an end of either kind) cuts the sum, and a
    last step that is not done still counts the value of what follows.

    Args:
        rewards: [*B, T].
        values: [*B, T] V of the state in which each step begins.
        next_values: [*B, T] V of the state in which it ends.
        gamma: discount in [0, 1].
        lmbda: in [0, 1].
        done: [*B, T] bool; None for none. Wherever ``terminated`` is, so is this.
        terminated: [*B, T] bool; None takes ``done``.
        mask: [*B, T] bool, True where a step is real.

    Returns:
        [*B, T], 0 where masked; differentiable.

    Example:
        >>> one = torch.ones(1, 2)
        >>> generalized_advantage(one, 0 * one, 0 * one, 0.5, 1.0)
        tensor([[1.5000, 1.0000]])

    Reference: https://arxiv.org/abs/1506.02438
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    for name, given in (("values", values), ("next_values", next_values)):
        if given.shape != rewards.shape:
            raise ValueError(f"{name} must have the shape of rewards, {[*rewards.shape]}, got {[*given.shape]}")
    ended, absorbed = _absorbing(_ends(done, rewards, "done"), _ends(terminated, rewards, "terminated"))
    # Widened first: a product with gamma in bfloat16 would be rounded before it is added.
    reward, value, ahead = (zero_masked(x, mask).to(wide(rewards)) for x in (rewards, values, next_values))
    deltas = reward + gamma * (ahead if absorbed is None else ahead.masked_fill(absorbed, 0.0)) - value
    advantages = reverse_scan(deltas, _decay(gamma * lmbda, ended, deltas))
    return zero_masked(advantages, mask).to(rewards.dtype)


def td_lambda_return(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float | Tensor,
    lmbda: float | Tensor,
    *,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The return that TD(lambda) regresses on, ``V_t + A_t`` of :func:`generalized_advantage`.

        G_t = R_{t+1} + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1})

    The equation holds where the value after a step is the value before the next, which a target network for
    ``next_values`` would not give. Args and semantics as there.

    Example:
        >>> one = torch.ones(1, 2)
        >>> td_lambda_return(one, 0 * one, one, 0.5, 0.0)
        tensor([[1.5000, 1.5000]])

    Reference: Sutton, Learning to Predict by the Methods of Temporal Differences, 1988
    """
    options = {"done": done, "terminated": terminated, "mask": mask}
    advantages = generalized_advantage(rewards, values, next_values, gamma, lmbda, **options)
    return zero_masked(values, mask) + advantages


def wide(x: Tensor) -> torch.dtype:
    """The dtype to sum ``x`` in: its own, at least float32. In bfloat16 even gamma = 0.99 is another number."""
    return torch.promote_types(x.dtype, torch.float32)


def _ends(flags: Tensor | None, like: Tensor, name: str) -> Tensor | None:
    if flags is None:
        return None
    if flags.dtype != torch.bool:
        raise TypeError(f"{name} must be bool, got {flags.dtype}")
    if flags.shape != like.shape:
        raise ValueError(f"{name} must have the shape of rewards, {[*like.shape]}, got {[*flags.shape]}")
    return flags


def _decay(factor: float | Tensor, cut: Tensor | None, like: Tensor) -> float | Tensor:
    """[*B, T] the factor where the sum goes on and 0 where it is cut; the factor itself where it never is."""
    return factor if cut is None else (~cut).to(like.dtype) * factor


def _absorbing(done: Tensor | None, terminated: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """``done`` and ``terminated``, the missing one made from the other: what terminates is done."""
    if terminated is None:
        return done, done
    return (terminated if done is None else done | terminated), terminated

"""What a boundary decision is paid: rewards per byte, higher is better.

The reward of the step that ends in byte ``x_{t+1}`` is made of what the model knew about that byte. Anything that does
not depend on the boundaries may be taken away from it without changing the expected policy gradient (Section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def early_exit_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """How much better the byte was predicted through the tokens than without them (Eq. 15).

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) - log p_early(x_{t+1} | x_<=t)

    Args:
        final_log_prob: [*B, T] log-likelihood of the byte under the whole model, in nats.
        early_log_prob: [*B, T] the same under the early exit.
        early_entropy: [*B, T] entropy of the early exit's prediction; not used.

    Returns:
        [*B, T].

    Example:
        >>> early_exit_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(2.)
    """
    return final_log_prob - early_log_prob


def log_likelihood_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """The log-likelihood alone, ``R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t)``: plain REINFORCE (Eq. 13).

    Args and returns as for :func:`early_exit_reward`; only ``final_log_prob`` is used.

    Example:
        >>> log_likelihood_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(-1.)
    """
    return final_log_prob


def entropy_relative_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """The log-likelihood relative to what the early exit expected of itself.

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) + H(p_early(. | x_<=t))

    ``-H`` is the early exit's mean log-likelihood under its own prediction: known before the byte is, and free of its
    luck, so that it takes away less noise than the early exit's log-likelihood itself.

    Args and returns as for :func:`early_exit_reward`; ``early_log_prob`` is not used.

    Example:
        >>> entropy_relative_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(1.)
    """
    return final_log_prob + early_entropy


REWARDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "early_exit": early_exit_reward,
    "log_likelihood": log_likelihood_reward,
    "entropy_relative": entropy_relative_reward,
}
"""Every reward by name; all take the same arguments, so that one can stand for another."""


def charge_boundaries(rewards: Tensor, boundaries: Tensor, price: float) -> Tensor:
    """Make boundaries cost something, so that the rate becomes part of the objective instead of a constraint.

        R'_{t+1} = R_{t+1} - price a_t

    Args:
        rewards: [*B, T].
        boundaries: [*B, T] the decisions a_t, bool or 0/1.
        price: nats per boundary.

    Returns:
        [*B, T].

    Example:
        >>> charge_boundaries(torch.zeros(2), torch.tensor([1, 0]), 0.5)
        tensor([-0.5000,  0.0000])
    """
    return rewards - price * boundaries.to(rewards.dtype) if price else rewards


def prediction_entropy(logits: Tensor) -> Tensor:
    """Entropy of a next-byte prediction, ``H = log sum_v exp l_v - sum_v p_v l_v``, in nats.

    Args:
        logits: [*B, T, V].

    Returns:
        [*B, T], at least in float32.

    Example:
        >>> prediction_entropy(torch.zeros(4))
        tensor(1.3863)
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.logsumexp(-1) - (wide.softmax(-1) * wide).sum(-1)

"""H-Net's rule: a boundary where neighbouring states are unlike, and what of it is differentiable.

The same for bytes that become tokens and for tokens that become tokens of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SMALLEST = 1e-4  # smoothing shares keep this distance from 0 and 1


def routing_probability(queries: Tensor, keys: Tensor) -> Tensor:
    """How unlike two neighbours are, ``p_t = (1 - cos(q_{t-1}, k_t)) / 2``.

    Args:
        queries: [*L, D] of the states before.
        keys: [*L, D] of the states themselves.

    Returns:
        [*L] in [0, 1], in float32 at least.

    Example:
        >>> routing_probability(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
        tensor([0.0000, 0.5000])
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    cosine = nn.functional.cosine_similarity(queries.to(wide), keys.to(wide), dim=-1)
    return ((1 - cosine) / 2).clamp(0.0, 1.0)  # rounding may leave the interval


def confidence(probs: Tensor, boundaries: Tensor) -> Tensor:
    """How sure a decision was, straight through: 1 in value, with the gradient of ``c = p`` or ``1 - p``.

    Args:
        probs: [*L] p.
        boundaries: [*L] bool.
    """
    sure = torch.where(boundaries, probs, 1 - probs)
    return 1 + (sure - sure.detach())


def smoothing_shares(probs: Tensor) -> Tensor:
    """How much of itself each token keeps when tokens are smoothed, ``P = p`` cut to [1e-4, 1 - 1e-4].

    Args:
        probs: [*L] p.
    """
    return probs.clamp(_SMALLEST, 1 - _SMALLEST)

"""Which script a text is written in, byte by byte and from no later byte.

A character tells its script when its last byte has been read; digits, marks, spaces and symbols tell none. A byte is in
the script that was told last:

    s_t = script of the last character that ends at or before t and has one,        ``"other"`` before the first
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SCRIPTS = ("other", "latin", "devanagari", "cyrillic")
"""Scripts by number. Letters of all further scripts are ``"other"``."""

_NONE = -1
_RANGES = {  # first and last code points
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xBA, 0xBA), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x2AF)]
    + [
        (0x1D00, 0x1DBF),
        (0x1E00, 0x1EFF),
        (0x2C60, 0x2C7F),
        (0xA720, 0xA7FF),
        (0xFB00, 0xFB06),
        (0xFF21, 0xFF3A),
        (0xFF41, 0xFF5A),
    ],
    # Bengali and Telugu go with Devanagari, as in MAGNET's configuration.
    "devanagari": [(0x900, 0x963), (0x966, 0x9FF), (0xC00, 0xC7F), (0xA8E0, 0xA8FF)],
    "cyrillic": [(0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)],
    # Marks, symbols, combining accents, pictures: of no script.
    "": [(0x0, 0x40), (0x5B, 0x60), (0x7B, 0xA9), (0xAB, 0xB9), (0xBB, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7)]
    + [(0x2B0, 0x36F), (0x964, 0x965), (0x2000, 0x2BFF), (0x3000, 0x3004), (0x3008, 0x3020), (0xFE00, 0xFE0F)]
    + [(0xFEFF, 0xFEFF), (0xFF01, 0xFF20), (0x1F000, 0x1FAFF), (0xE0000, 0xE01EF)],
}


def script_told(byte_ids: Tensor) -> Tensor:
    """The script of the character that ends at each byte.

    Args:
        byte_ids: [*B, T] bytes; what is no text, and special ids, tell nothing.

    Returns:
