"""How long tokens are, and how undecided the policy is about them.

Shapes: B rows, T bytes, n tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rltok_rl.evaluation.words import (
    EdgeShare,
    split_character_share,
    white_space_share,
    word_edge_share,
    word_position_share,
)
from rltok_rl.models.segmentation import Segmentation
from rltok_rl.text import text_to_ids
from rltok_rl.utils import check_count

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


@dataclass(frozen=True)
class DrawnTexts:
    """Texts with their boundaries, one after the other: [N] each."""

    byte_ids: Tensor
    """int64; bytes 0, which are in no word and no character, stand between texts."""
    boundaries: Tensor
    """bool; True between texts, so that no token goes on from one to the next."""
    probabilities: Tensor
    """float32, of a boundary, given those that were drawn before."""
    counted: Tensor
    """bool, bytes whose boundary is a decision: not the first of a text, nor those between texts."""


def join_texts(drawn: Sequence[Segmentation], *, gap: int = 1) -> DrawnTexts:
    r"""Lay texts out one after the other, so that figures of one text are figures of all.

    Args:
        drawn: texts with their boundaries; one has 2 bytes at least.
        gap: bytes between texts: more than boundaries of one text may be moved and lie from their partners
            (:func:`~rltok_rl.evaluation.agreement.boundary_match`).

    Example:
        >>> one = Segmentation(b"to", torch.tensor([True, False]), torch.tensor([1.0, 0.25]))
        >>> bytes(join_texts([one, one]).byte_ids.tolist())
        b'to\x00to'
    """
    gap = check_count("gap", gap)
    if all(len(one.text) < 2 for one in drawn):
        raise ValueError(f"drawn must hold a text of at least 2 bytes (the first has no decision), got {len(drawn)}")
    between = {
        "byte_ids": torch.zeros(gap, dtype=torch.int64),
        "boundaries": torch.ones(gap, dtype=torch.bool),
        "probabilities": torch.ones(gap),
        "counted": torch.zeros(gap, dtype=torch.bool),
    }
    parts: dict[str, list[Tensor]] = {name: [] for name in between}
    for one in drawn:
        of_text = (text_to_ids(one.text), one.boundaries, one.probabilities, torch.arange(len(one.text)) > 0)
        for name, part in zip(between, of_text, strict=True):
            parts[name] += [part, between[name]]
    return DrawnTexts(**{name: torch.cat(found[:-1]) for name, found in parts.items()})


def boundary_figures(drawn: DrawnTexts) -> dict[str, Any]:
    """Where boundaries lie, how long tokens are, how undecided the policy was: plain values, by name.

    Args:
        drawn: texts with their boundaries.

    Returns:
        Of the boundaries that are decisions: ``bytes`` (with a decision), ``boundaries`` and their ``rate``;
        ``white_space``, ``word_edges``, ``word_positions`` and ``split_characters``, each with ``share`` (precision),
        ``chance``, ``covered`` (recall) and ``lift`` (enrichment); ``bytes_per_token`` with ``count``, ``mean``,
        ``spread``, ``quantiles`` and ``histogram``; ``entropy`` with ``bits_per_byte`` and ``most``, which a policy of
        this mean probability could have. nan where a ratio has no denominator.
    """
    byte_ids, boundaries, counted = drawn.byte_ids, drawn.boundaries, drawn.counted
    total, laid = int(counted.sum()), int((boundaries & counted).sum())
    given = (byte_ids, boundaries, counted)
    lengths = asdict(summarise_lengths(token_lengths(boundaries, counted)))
    mean = drawn.probabilities.double()[counted].mean()
    return {
        "bytes": total,
        "boundaries": laid,
        "rate": laid / total,
        "white_space": _plain(white_space_share(*given)),
        "word_edges": {name: _plain(one) for name, one in word_edge_share(*given).items()},
        "word_positions": {
            side: {name: _plain(one) for name, one in found.items()}
            for side, found in word_position_share(*given).items()
        },
        "split_characters": _plain(split_character_share(*given)),
        "bytes_per_token": {
            **lengths,
            "quantiles": {f"{q:g}": value for q, value in lengths["quantiles"].items()},
            "histogram": list(lengths["histogram"]),
        },
        "entropy": {
            "bits_per_byte": policy_entropy(drawn.probabilities, counted),
            "most": policy_entropy(mean[None].clamp(0.0, 1.0)),
        },
    }


def _plain(one: EdgeShare) -> dict[str, float]:
    return {**asdict(one), "lift": one.lift}
