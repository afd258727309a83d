"""Boundaries drawn by a policy, with an exact number in every block of bytes.

    a_t ~ Bernoulli(sigmoid(l_t + logit(m_t / n_t))),        m_t = k - sum_{s<t} a_s,   n_t = n - t

``m_t`` boundaries are left for the ``n_t`` bytes left of a block of n, including t. If none is left, none is drawn; if
as many are left as bytes, all are. With l = 0 all strings with k boundaries are equally likely, as in
:func:`~rltok_rl.functional.boundary_rules.select_exactly`. No decision depends on later bytes, unlike in the
conditional Bernoulli distribution or in the top k of perturbed scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.boundary_rules import exact_count
from rltok_rl.functional.takes import takes

FORCED = 1e9
"""Logit of a decision that the count makes: its sigmoid is exactly 1 or 0, whatever the policy."""


@takes("boundaries: decisions *B T", "rate: number [0, 1]", "block: whole [1, inf)")
def budget_offsets(boundaries: Tensor, rate: float, block: int) -> Tensor:
    """Compute the offsets [*B, T] that the count adds to the policy's logits, for whole boundary strings; float64.

        o_t = logit(m_t / n_t),        +-FORCED where it is infinite, and +FORCED at the first byte

    Any number but 0 is a boundary.

    Example:
        >>> budget_offsets(torch.tensor([1, 0, 0, 1]), 0.5, 4).sigmoid()
        tensor([1.0000, 0.3333, 0.5000, 1.0000], dtype=torch.float64)
    """
    position = torch.arange(boundaries.shape[-1], device=boundaries.device)
    counts = boundaries.bool().long()
    before = counts.cumsum(-1) - counts  # of the whole text
    return _offset(before - before[..., position - position % block], position, rate, block)


def _offset(drawn: Tensor, position: Tensor, rate: float, block: int) -> Tensor:
    """Offsets [*L] of single bytes, after ``drawn`` [*L] boundaries in their blocks."""
    share = (exact_count(rate, block) - drawn).double() / (block - position % block)
    offset = torch.logit(share.clamp(0.0, 1.0)).clamp(-FORCED, FORCED)  # clamped for impossible strings
    return torch.where(position == 0, FORCED, offset)


@takes("logits: known *B T", "uniforms: uniforms? *B T", "rate: number [0, 1]", "block: whole [1, inf)")
def draw_within_budget(logits: Tensor, uniforms: Tensor | None, rate: float, block: int) -> Tensor:
    """Draw boundary strings [*B, T], byte by byte.

    ``uniforms`` [*B, T] are in [0, 1); None draws the likelier decision. A shorter last block may have another number.
    """
    drawn, out = logits.new_zeros(logits.shape[:-1], dtype=torch.int64), []
    for t in range(logits.shape[-1]):
        here = None if uniforms is None else uniforms[..., t]
        boundary, drawn, _ = _draw(logits[..., t], here, torch.full_like(drawn, t), drawn, rate, block)
        out.append(boundary)
    return torch.stack(out, -1) if out else logits.bool()


@takes(
    "logits: known *B",
    "uniforms: uniforms? *B",
    "position, drawn: int *B",
    "rate: number [0, 1]",
    "block: whole [1, inf)",
)
def draw_next(
    logits: Tensor, uniforms: Tensor | None, position: Tensor, drawn: Tensor, rate: float, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the byte at ``position`` [*B], after ``drawn`` [*B] boundaries in its block.

    Returns its boundary, the boundaries so far in its block, and the offset.
    """
    return _draw(logits, uniforms, position.long(), drawn.long(), rate, block)


def _draw(
    logits: Tensor, uniforms: Tensor | None, position: Tensor, drawn: Tensor, rate: float, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.where(position % block == 0, 0, drawn)
    offset = _offset(drawn, position, rate, block)
    # A random number of 0 has an infinite logit, and must not draw what the count forbids.
    threshold = 0.0 if uniforms is None else torch.logit(uniforms.double(), eps=1e-15)
    boundary = logits.double() + offset > threshold
    return boundary, drawn + boundary.long(), offset


@takes("logits: float *L", "boundaries: decisions *L")
def string_log_prob(logits: Tensor, boundaries: Tensor) -> Tensor:
    """Compute the log-probability of each decision from logits with offsets, 0 where the count leaves no choice.

    Any number but 0 is a boundary.
    """
    return F.logsigmoid(torch.where(boundaries.bool(), logits, -logits))
