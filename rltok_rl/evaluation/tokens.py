"""How long tokens are, and how undecided the policy is about them.

Shapes: B rows, T bytes, n tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.functional.numbers import check_count

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LONGEST = 16
"""Bytes from which on tokens share the last bin of a histogram."""


@dataclass(frozen=True)
class TokenLengths:
    """Bytes per token."""

    count: int
    """n, tokens."""
    mean: float
    """nan where there is no token, and so for all that follow."""
    spread: float
    """Standard deviation over the tokens, divided by n; 0 for tokens of one length."""
    quantiles: dict[float, float]
    """Shortest length l such that at least a share q of the tokens is no longer, by q."""
    histogram: tuple[int, ...]
    """Tokens of 1, 2, .. bytes; the last entry is all longer ones."""


def token_lengths(boundaries: Tensor, counted: Tensor | None = None) -> Tensor:
    """Lengths of all tokens that a counted boundary ends.

        n_s = t_s - t_{s-1},      t_0 < t_1 < .. the bytes with a boundary, t_{-1} = -1

    A forced boundary is not counted, and so is no token of one byte; the next one is counted from it. What follows the
    last boundary of a row has no end yet and is no token.

    Args:
        boundaries: [*B, T] bool or 0/1, one text a row; a_t ends a token after byte t.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all.

    Returns:
        [n] int64, row after row.

    Example:
        >>> token_lengths(torch.tensor([1, 0, 0, 1, 1, 0]))
        tensor([1, 3, 1])
        >>> token_lengths(torch.tensor([1, 0, 0, 1, 1, 0]), torch.arange(6) > 0)
        tensor([3, 1])
    """
    if counted is not None and counted.shape != boundaries.shape:
        raise ValueError(f"counted must have the shape of boundaries, {[*boundaries.shape]}, got {[*counted.shape]}")
    rows = boundaries.bool()[None].flatten(0, -2)  # [B, T]
    row, at = rows.nonzero(as_tuple=True)
    before = torch.cat((at.new_full((1,), -1), at[:-1]))[: len(at)]
    new_row = torch.cat((row.new_full((1,), -1), row[:-1]))[: len(row)] != row
    lengths = at - torch.where(new_row, -1, before)
    return lengths if counted is None else lengths[counted.bool().reshape(rows.shape)[row, at]]


def summarise_lengths(
    lengths: Tensor, *, quantiles: Sequence[float] = QUANTILES, longest: int = LONGEST
) -> TokenLengths:
    """Mean, standard deviation, quantiles and histogram of bytes per token.

        mean = sum_s n_s / n,      spread = sqrt(sum_s (n_s - mean)^2 / n)

    Args:
        lengths: [n] of tokens, 1 at least.
        quantiles: shares in (0, 1].
        longest: bytes from which on tokens share a bin.

    Example:
        >>> found = summarise_lengths(torch.tensor([1, 1, 4]), quantiles=(0.5, 1.0), longest=3)
        >>> found.mean, round(found.spread, 4), found.quantiles, found.histogram
        (2.0, 1.4142, {0.5: 1.0, 1.0: 4.0}, (2, 0, 1))
    """
    longest = check_count("longest", longest)
    wrong = [q for q in quantiles if not 0.0 < q <= 1.0]
    if wrong:
        raise ValueError(f"quantiles must lie in (0, 1], got {wrong[0]}")
    if len(lengths) and int(lengths.min()) < 1:
        raise ValueError(f"lengths must be at least 1, got {int(lengths.min())}")
    count = len(lengths)
    if not count:
        return TokenLengths(0, math.nan, math.nan, dict.fromkeys(quantiles, math.nan), (0,) * longest)
    exact, ordered = lengths.double(), lengths.sort().values
    mean = exact.mean()
    return TokenLengths(
        count,
        float(mean),
        float((exact - mean).square().mean().sqrt()),
        {q: float(ordered[max(0, math.ceil(q * count - 1e-9) - 1)]) for q in quantiles},
        tuple(lengths.clamp(max=longest).bincount(minlength=longest + 1)[1:].tolist()),
    )


def policy_entropy(probabilities: Tensor, counted: Tensor | None = None) -> float:
    """How undecided a policy is on average, in bits per byte: the entropy of each decision given those before it.

        H = 1/n sum_{t counted} h(p_t),     h(p) = -p log2 p - (1 - p) log2(1 - p),     p_t = pi(a_t = 1 | a_<t)

    The sum over a text is an unbiased estimate, from one draw, of the entropy of the policy's boundary strings.

    Args:
        probabilities: [*B, T] p_t, given the boundaries that were drawn before t.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all.

    Returns:
        In [0, 1]; 0 where all is decided.

    Example:
        >>> policy_entropy(torch.tensor([0.5, 0.0, 1.0, 0.5]))
        0.5
    """
    probs = probabilities.double()
    if counted is not None:
        if counted.shape != probs.shape:
            raise ValueError(f"counted must have the shape of probabilities, {[*probs.shape]}, got {[*counted.shape]}")
        probs = probs[counted.bool()]
    if not probs.numel():
        raise ValueError("counted must hold at least one byte, got none")
    if not bool(((probs >= 0) & (probs <= 1)).all()):
        raise ValueError(f"probabilities must lie in [0, 1], got {float(probs[~((probs >= 0) & (probs <= 1))][0])}")
    parts = torch.special.entr(probs) + torch.special.entr(1 - probs)  # nats, 0 at 0 and at 1
    return float(parts.mean()) / math.log(2)
