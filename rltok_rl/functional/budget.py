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
