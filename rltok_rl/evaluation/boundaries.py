"""Boundary metrics of documents: where boundaries lie, token lengths, and the entropy of the policy.

Shapes: n tokens; ``boundaries`` [*B, T] bool or 0/1, a text per row, where a_t ends a token after byte t; ``counted``
[*B, T] bool, bytes whose boundary is a decision, None for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rltok_rl.evaluation.affixes import affix_shares
from rltok_rl.evaluation.word_edges import (
    check_counted,
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
    """Bytes per token; nan if there is no token."""

    count: int  # n, tokens
    mean: float
    spread: float  # standard deviation over the tokens, with divisor n
    quantiles: dict[float, float]  # by q: the shortest length such that at least a share q of the tokens is no longer
    histogram: tuple[int, ...]  # tokens of 1, 2, .. bytes; the last entry counts all longer ones


def token_lengths(boundaries: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the lengths of all tokens that end at a counted boundary, [n] int64, row after row.

        n_s = t_s - t_{s-1},      t_0 < t_1 < .. the bytes with a boundary, t_{-1} = -1

    The token of one byte at a forced boundary is not counted; the next token begins after it. Bytes after the last
    boundary of a row form no token.

    Example:
        >>> token_lengths(torch.tensor([1, 0, 0, 1, 1, 0]), torch.arange(6) > 0)
        tensor([3, 1])
    """
    if counted is not None and counted.shape != boundaries.shape:
        raise ValueError(f"counted must have the shape of boundaries, {[*boundaries.shape]}, got {[*counted.shape]}")
    rows = boundaries.bool()[None].flatten(0, -2)  # [B, T]
    row, at = rows.nonzero(as_tuple=True)
    first = row.diff(prepend=row.new_full((1,), -1)) != 0
    lengths = torch.where(first, at + 1, at.diff(prepend=at.new_zeros(1)))
    return lengths if counted is None else lengths[counted.bool().reshape(rows.shape)[row, at]]


def summarise_lengths(lengths: Tensor) -> TokenLengths:
    """Compute mean, standard deviation, quantiles and histogram of token lengths [n].

    Tokens of :data:`LONGEST` bytes and more share the histogram's last bin.
    """
    count = len(lengths)
    if not count:
        return TokenLengths(0, math.nan, math.nan, dict.fromkeys(QUANTILES, math.nan), (0,) * LONGEST)
    exact, ordered = lengths.double(), lengths.sort().values
    return TokenLengths(
        count,
        float(exact.mean()),
        float(exact.std(correction=0)),
        {q: float(ordered[math.ceil(q * count - 1e-9) - 1]) for q in QUANTILES},
        tuple(lengths.clamp(max=LONGEST).bincount(minlength=LONGEST + 1)[1:].tolist()),
    )


def policy_entropy(probabilities: Tensor, counted: Tensor | None = None) -> float:
    """Compute the policy's mean entropy in bits per byte: of each decision given those before it.

        H = 1/n sum_{t counted} h(p_t),     h(p) = -p log2 p - (1 - p) log2(1 - p),     p_t = pi(a_t = 1 | a_<t)

    The sum over a text is an unbiased estimate, from one draw, of the entropy of the policy's boundary strings.

    Example:
        >>> policy_entropy(torch.tensor([0.5, 0.0, 1.0, 0.5]))
        0.5
    """
    probs = probabilities.double()[check_counted(counted, probabilities, "probabilities")]
    wrong = probs[~((probs >= 0) & (probs <= 1))]
    if len(wrong):
        raise ValueError(f"probabilities must lie in [0, 1], got {float(wrong[0])}")
    nats = torch.special.entr(probs) + torch.special.entr(1 - probs)  # 0 at 0 and at 1
    return float(nats.mean()) / math.log(2)


@dataclass(frozen=True)
class DrawnTexts:
    """Texts with their boundaries, one after the other: [N] each."""

    byte_ids: Tensor  # int64; between texts stand bytes 0, which are in no word and no character
    boundaries: Tensor  # bool; True between texts, so that no token crosses from one to the next
    probabilities: Tensor  # float32, of a boundary, given those drawn before
    counted: Tensor  # bool, bytes whose boundary is a decision: not the first of a text, nor those between texts


def join_texts(drawn: Sequence[Segmentation], *, gap: int = 1) -> DrawnTexts:
    r"""Join texts with ``gap`` bytes between them, so that metrics can be computed over all of them at once.

    The gap must exceed the shift and tolerance of comparisons (:func:`~rltok_rl.evaluation.boundary_match`).

    Example:
        >>> to = Segmentation(b"to", torch.tensor([True, False]), torch.tensor([1.0, 0.25]))
        >>> bytes(join_texts([to, to]).byte_ids.tolist())
        b'to\x00to'
    """
    gap = check_count("gap", gap)
    if all(len(text.text) < 2 for text in drawn):
        raise ValueError(f"drawn must hold a text of at least 2 bytes (the first has no decision), got {len(drawn)}")
    no, yes = torch.zeros(gap, dtype=torch.bool), torch.ones(gap, dtype=torch.bool)
    between = (torch.zeros(gap, dtype=torch.int64), yes, torch.ones(gap), no)
    parts: list[tuple[Tensor, ...]] = []
    for text in drawn:
        decided = torch.arange(len(text.text)) > 0
        parts += [between, (text_to_ids(text.text), text.boundaries, text.probabilities, decided)]
    return DrawnTexts(*(torch.cat(columns) for columns in zip(*parts[1:], strict=True)))


def boundary_metrics(drawn: DrawnTexts) -> dict[str, Any]:
    """Compute all metrics of the boundaries that are decisions, as plain values; nan where a ratio has no denominator.

    ``entropy["most"]`` is the largest that a policy of this mean probability can have.
    """
    text = (drawn.byte_ids, drawn.boundaries, drawn.counted)
    total, count = int(drawn.counted.sum()), int((drawn.boundaries & drawn.counted).sum())
    lengths = asdict(summarise_lengths(token_lengths(drawn.boundaries, drawn.counted)))
    mean = drawn.probabilities.double()[drawn.counted].mean()
    return {
        "bytes": total,
        "boundaries": count,
        "rate": count / total,
        "white_space": white_space_share(*text).plain(),
        "word_edges": {name: share.plain() for name, share in word_edge_share(*text).items()},
        "word_positions": {
            side: {name: share.plain() for name, share in shares.items()}
            for side, shares in word_position_share(*text).items()
        },
        "split_characters": split_character_share(*text).plain(),
        "affixes": {name: share.plain() for name, share in affix_shares(*text).items()},
        "bytes_per_token": {
            **lengths,
            "quantiles": {f"{q:g}": value for q, value in lengths["quantiles"].items()},
            "histogram": list(lengths["histogram"]),
        },
        "entropy": {
            "bits_per_byte": policy_entropy(drawn.probabilities, drawn.counted),
            "most": policy_entropy(mean[None].clamp(0.0, 1.0)),
        },
    }
