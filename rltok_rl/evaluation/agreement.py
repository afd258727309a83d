"""Boundaries beside those of a reference: precision, recall, F1, and what chance would do.

A boundary ``a_t = 1`` ends a token after byte t. Strings are compared as they stand, byte by byte, and conventions
differ: a causal rule knows that a word is over one byte after its last letter, so that SpaceByte's boundaries stand at
the space, and those of BPE here at the first byte of the *next* piece. ``shift=-1`` moves a reference back to where an
oracle would end its tokens; ``tolerance`` lets boundaries be paired that lie a few bytes apart.

Shapes: B rows, T bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.utils import check_count


@dataclass(frozen=True)
class BoundaryMatch:
    """Boundaries beside those of a reference; nan where a ratio has no denominator."""

    precision: float  # of the boundaries, those that the reference has
    recall: float  # of the reference's, those that are found
    f1: float
    chance_f1: float  # on average, if as many boundaries lay anywhere


def move_boundaries(boundaries: Tensor, by: int) -> Tensor:
    """Every boundary ``by`` bytes later, or earlier where ``by`` is negative; those that leave the text are dropped.

    Args:
        boundaries: [*B, T] bool or 0/1.
        by: bytes.

    Example:
        >>> move_boundaries(torch.tensor([1, 0, 1, 0, 0]), -1).int()
        tensor([0, 1, 0, 0, 0], dtype=torch.int32)
    """
    length = boundaries.shape[-1]
    if abs(by) >= length:
        return torch.zeros_like(boundaries, dtype=torch.bool)
    moved = boundaries.bool().roll(by, -1)
    clock = torch.arange(length, device=boundaries.device)
    return moved & ((clock >= by) if by > 0 else (clock < length + by))


def count_pairs(boundaries: Tensor, reference: Tensor, tolerance: int = 0) -> int:
    """The most boundaries that can be paired with one of the reference each, no more than ``tolerance`` bytes away.

    Every boundary has one partner at most, so that a string of nothing but boundaries gains nothing by tolerance.
    Pairing from the left, each with the first that is near enough and free, is the most there can be.

    Args:
        boundaries: [*B, T] bool or 0/1.
        reference: [*B, T] likewise.
        tolerance: bytes.

    Example:
        >>> count_pairs(torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 0, 1]), tolerance=1)
        1
    """
    if check_count("tolerance", tolerance, minimum=0) == 0:
        return int((boundaries.bool() & reference.bool()).sum())
    mine, theirs = (_places(x, gap=tolerance) for x in (boundaries, reference))
    found = i = j = 0
    while i < len(mine) and j < len(theirs):
        if abs(mine[i] - theirs[j]) <= tolerance:
            found, i, j = found + 1, i + 1, j + 1
        elif mine[i] < theirs[j]:
            i += 1
        else:
            j += 1
    return found


def boundary_match(
    boundaries: Tensor,
    reference: Tensor,
    counted: Tensor | None = None,
    *,
    shift: int = 0,
    tolerance: int = 0,
    draws: int = 20,
) -> BoundaryMatch:
    """Precision, recall and F1 of boundaries against a reference's, and the F1 of chance at the same two rates.

        precision = m / n_a,     recall = m / n_r,     F1 = 2 m / (n_a + n_r)
        chance: m = n_a n_r / N without tolerance, which is its mean over all ways to lay n_a boundaries on N bytes

    m is the number of boundaries that have a partner (:func:`count_pairs`). With tolerance, chance is the mean F1 of
    ``draws`` strings of n_a boundaries laid at random, by random numbers that are the same every time.

    Args:
        boundaries: [*B, T] bool or 0/1.
        reference: [*B, T] likewise, on the same bytes.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all. Others are left out on both sides.
        shift: bytes that the reference is moved by first; -1 takes boundaries at the first byte of the next piece to
            the last byte of the piece itself.
        tolerance: bytes that partners may lie apart; rows do not touch.
        draws: strings at random, with a tolerance.

    Example:
        >>> mine, theirs = torch.tensor([0, 1, 0, 1, 1, 0, 0, 0]), torch.tensor([0, 1, 0, 0, 0, 1, 0, 0])
        >>> boundary_match(mine, theirs)
        BoundaryMatch(precision=0.3333333333333333, recall=0.5, f1=0.4, chance_f1=0.3)
        >>> boundary_match(mine, theirs, tolerance=1).f1
        0.8
    """
    counted = check_one_text(boundaries, reference, counted)
    mine = boundaries.bool() & counted
    theirs = move_boundaries(reference.bool() & counted, shift) & counted
    total, num_mine, num_theirs = (int(x.sum()) for x in (counted, mine, theirs))
    pairs = count_pairs(mine, theirs, tolerance)
    both = num_mine + num_theirs
    if tolerance == 0:
        by_chance = num_mine * num_theirs / total
    else:
        generator = torch.Generator().manual_seed(0)
        anywhere = (_laid(counted, num_mine, generator) for _ in range(check_count("draws", draws)))
        by_chance = sum(count_pairs(one, theirs, tolerance) for one in anywhere) / draws
    return BoundaryMatch(
        ratio(pairs, num_mine), ratio(pairs, num_theirs), ratio(2 * pairs, both), ratio(2 * by_chance, both)
    )


def check_one_text(boundaries: Tensor, other: Tensor, counted: Tensor | None, *, name: str = "boundaries") -> Tensor:
    """Require two strings of one text, and bytes to count: ``counted`` as bool, all bytes for None.

    Args:
        boundaries: [*B, T].
        other: [*B, T].
        counted: [*B, T] or None.
        name: what the message calls the strings.
    """
    if boundaries.shape != other.shape:
        raise ValueError(f"{name} must be of one text, got shapes {[*boundaries.shape]} and {[*other.shape]}")
    if counted is not None and counted.shape != boundaries.shape:
        raise ValueError(f"counted must have the shape of {name}, {[*boundaries.shape]}, got {[*counted.shape]}")
    counted = torch.ones_like(boundaries, dtype=torch.bool) if counted is None else counted.bool()
    if not bool(counted.any()):
        raise ValueError("counted must hold at least one byte, got none")
    return counted


def ratio(part: float, whole: float) -> float:
    """``part / whole``; nan where there is no whole."""
    return part / whole if whole else math.nan


def _places(boundaries: Tensor, gap: int) -> list[int]:
    """Places of all boundaries, rows one after the other and further apart than ``gap``."""
    rows = boundaries.bool()[None].flatten(0, -2)  # [B, T]
    row, at = rows.nonzero(as_tuple=True)
    return (row * (rows.shape[1] + gap) + at).tolist()


def _laid(counted: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """As many boundaries anywhere on the counted bytes."""
    places = counted.flatten().nonzero().squeeze(1)
    chosen = places[torch.randperm(len(places), generator=generator).to(places.device)[:number]]
    laid = torch.zeros(counted.numel(), dtype=torch.bool, device=counted.device)
    return laid.index_fill(0, chosen, True).view(counted.shape)


def jaccard(boundaries: Tensor, other: Tensor, counted: Tensor | None = None) -> float:
    """Boundaries that both strings have, of those that either has; nan where neither has one.

        J = #{a_t = b_t = 1} / #{a_t = 1 or b_t = 1}

    Args:
        boundaries: [*B, T] bool or 0/1.
        other: [*B, T] likewise.
        counted: [*B, T] bool; None for all.

    Example:
        >>> jaccard(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 1, 1, 1]))
        0.25
    """
    counted = check_one_text(boundaries, other, counted)
    mine, theirs = boundaries.bool() & counted, other.bool() & counted
    return ratio(int((mine & theirs).sum()), int((mine | theirs).sum()))


def cohen_kappa(boundaries: Tensor, other: Tensor, counted: Tensor | None = None) -> float:
    """Agreement of two strings beyond chance: 1 where they are equal, 0 where they agree as often as by chance.

        kappa = (o - e) / (1 - e),     o = #{a_t = b_t} / N,     e = r_a r_b + (1 - r_a)(1 - r_b)

    Args:
        boundaries: [*B, T] bool or 0/1, of rate r_a.
        other: [*B, T] likewise, of rate r_b.
        counted: [*B, T] bool, N bytes; None for all.

    Returns:
        In [-1, 1]; nan where both are all boundaries or both have none, which cannot but agree.

    Example:
        >>> cohen_kappa(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0]))
        0.5

    Reference: Cohen, A coefficient of agreement for nominal scales, 1960
    """
    counted = check_one_text(boundaries, other, counted)
    mine, theirs = boundaries.bool()[counted], other.bool()[counted]
    total, num_mine, num_theirs = len(mine), int(mine.sum()), int(theirs.sum())
    # Multiplied by N squared, so that equal counts cancel to the last bit.
    observed = int((mine == theirs).sum()) * total
    expected = num_mine * num_theirs + (total - num_mine) * (total - num_theirs)
    return ratio(observed - expected, total * total - expected)


def boundary_correlation(probabilities: Tensor, other: Tensor, counted: Tensor | None = None) -> float:
    """Pearson's correlation of boundary probabilities over the bytes of a text.

        c = sum_t (p_t - p)(q_t - q) / sqrt(sum_t (p_t - p)^2 sum_t (q_t - q)^2),     p, q the means

    Each policy's probabilities are given its own draws. Of strings that have none, 0 and 1 will do.

    Args:
        probabilities: [*B, T] p_t.
        other: [*B, T] q_t.
        counted: [*B, T] bool; None for all.

    Returns:
        In [-1, 1]; nan where one side is the same everywhere.

    Example:
        >>> round(boundary_correlation(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.4, 0.6])), 6)
        1.0
    """
    counted = check_one_text(probabilities, other, counted, name="probabilities")
    p, q = probabilities.double()[counted], other.double()[counted]
    if bool((p == p[0]).all()) or bool((q == q[0]).all()):
        return math.nan
    p, q = p - p.mean(), q - q.mean()
    found = float((p * q).sum() / (p.square().sum() * q.square().sum()).sqrt())
    return max(-1.0, min(1.0, found))


def agreement_matrix(
    strings: Sequence[Tensor], again: Sequence[Tensor], measure: Callable[[Tensor, Tensor], float]
) -> list[list[float]]:
    """Every string beside every other; on the diagonal beside another draw of its own.

        m_ij = (f(x_i, y_j) + f(y_i, x_j)) / 2,     x and y two draws of each

    The diagonal is what two draws of one policy have in common, and what two policies that are the same would come to.
    Off it the two draws are averaged; a string that is not random is its own second draw.

    Args:
        strings: M of [*B, T] on one text.
        again: M others, a second draw of each.
        measure: symmetric, such as :func:`cohen_kappa`.

    Returns:
        [M][M], symmetric.

    Example:
        >>> a, b = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0])
        >>> agreement_matrix([a, b], [a, b], jaccard)
        [[1.0, 0.5], [0.5, 1.0]]
    """
    if len(strings) != len(again):
        raise ValueError(f"strings and again must be as many, got {len(strings)} and {len(again)}")
    found = [[math.nan] * len(strings) for _ in strings]
    for i in range(len(strings)):
        for j in range(i, len(strings)):
            value = measure(strings[i], again[j])
            if i != j:
                value = (value + measure(again[i], strings[j])) / 2
            found[i][j] = found[j][i] = value
    return found
