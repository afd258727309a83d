"""Agreement of boundaries: precision, recall and F1 against a reference, Cohen's kappa, Jaccard, correlation.

A boundary ``a_t = 1`` ends a token after byte t. Conventions differ: a causal rule such as SpaceByte knows that a word
is over one byte after its last letter, and BPE's boundaries stand at the first byte of the *next* piece. ``shift=-1``
moves a reference back to where an oracle would end its tokens; ``tolerance`` pairs boundaries a few bytes apart.

Shapes: strings are [*B, T], bool or 0/1; ``counted`` [*B, T] bool marks bytes whose boundary is a decision, None all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.evaluation.word_edges import check_counted, ratio
from rltok_rl.utils import check_count


@dataclass(frozen=True)
class BoundaryMatch:
    """Boundaries compared with a reference's; nan where a ratio has no denominator."""

    precision: float
    recall: float
    f1: float
    chance_f1: float  # expected F1 of as many boundaries at random places


def move_boundaries(boundaries: Tensor, by: int) -> Tensor:
    """Move boundaries ``by`` bytes to the right (left if negative); those that leave the text are dropped.

    Example:
        >>> move_boundaries(torch.tensor([1, 0, 1, 0, 0]), -1).long()
        tensor([0, 1, 0, 0, 0])
    """
    length = boundaries.shape[-1]
    clock = torch.arange(length, device=boundaries.device)
    return boundaries.bool().roll(by, -1) & (clock >= by) & (clock < length + by)


def count_pairs(boundaries: Tensor, reference: Tensor, tolerance: int = 0) -> int:
    """Count the largest matching of boundaries with a reference's, partners at most ``tolerance`` bytes apart.

    Every boundary has at most one partner, so boundaries everywhere gain nothing by tolerance.

    Example:
        >>> count_pairs(torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 0, 1]), tolerance=1)
        1
    """
    if check_count("tolerance", tolerance, minimum=0) == 0:
        return int((boundaries.bool() & reference.bool()).sum())
    mine, theirs = (_places(string, gap=tolerance) for string in (boundaries, reference))
    pairs = i = j = 0  # pairing each, from the left, with the first free partner in reach is optimal
    while i < len(mine) and j < len(theirs):
        if abs(mine[i] - theirs[j]) <= tolerance:
            pairs, i, j = pairs + 1, i + 1, j + 1
        elif mine[i] < theirs[j]:
            i += 1
        else:
            j += 1
    return pairs


def boundary_match(
    boundaries: Tensor,
    reference: Tensor,
    counted: Tensor | None = None,
    *,
    shift: int = 0,
    tolerance: int = 0,
    draws: int = 20,
) -> BoundaryMatch:
    """Compute precision, recall and F1 against a reference moved by ``shift`` bytes, and the F1 of chance.

        precision = m / n_a,     recall = m / n_r,     F1 = 2 m / (n_a + n_r),     m from :func:`count_pairs`
        chance: m = n_a n_r / N without tolerance, its mean over all ways to lay n_a boundaries on N bytes

    With a tolerance, chance is the mean F1 of ``draws`` random strings of n_a boundaries, with fixed random numbers.

    Example:
        >>> mine, theirs = torch.tensor([0, 1, 0, 1, 1, 0, 0, 0]), torch.tensor([0, 1, 0, 0, 0, 1, 0, 0])
        >>> boundary_match(mine, theirs)
        BoundaryMatch(precision=0.3333333333333333, recall=0.5, f1=0.4, chance_f1=0.3)
    """
    counted = _check_strings(boundaries, reference, counted)
    mine = boundaries.bool() & counted
    theirs = move_boundaries(reference.bool() & counted, shift) & counted
    total, num_mine, num_theirs = (int(x.sum()) for x in (counted, mine, theirs))
    pairs = count_pairs(mine, theirs, tolerance)
    if tolerance == 0:
        by_chance = num_mine * num_theirs / total
    else:
        generator = torch.Generator().manual_seed(0)
        strings = (_random_string(counted, num_mine, generator) for _ in range(check_count("draws", draws)))
        by_chance = sum(count_pairs(string, theirs, tolerance) for string in strings) / draws
    both = num_mine + num_theirs
    return BoundaryMatch(
        ratio(pairs, num_mine), ratio(pairs, num_theirs), ratio(2 * pairs, both), ratio(2 * by_chance, both)
    )


def jaccard(boundaries: Tensor, other: Tensor, counted: Tensor | None = None) -> float:
    """Compute the Jaccard index, ``#{a_t = b_t = 1} / #{a_t = 1 or b_t = 1}``; nan if neither has a boundary."""
    counted = _check_strings(boundaries, other, counted)
    mine, theirs = boundaries.bool()[counted], other.bool()[counted]
    return ratio(int((mine & theirs).sum()), int((mine | theirs).sum()))


def cohen_kappa(boundaries: Tensor, other: Tensor, counted: Tensor | None = None) -> float:
    """Compute agreement beyond chance: 1 for equal strings, 0 if they agree as often as by chance.

        kappa = (o - e) / (1 - e),     o = #{a_t = b_t} / N,     e = r_a r_b + (1 - r_a)(1 - r_b)

    r_a and r_b are the rates of boundaries on N counted bytes; nan if both strings are all boundaries or have none.

    Example:
        >>> cohen_kappa(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0]))
        0.5

    Reference: Cohen, A coefficient of agreement for nominal scales, 1960
    """
    counted = _check_strings(boundaries, other, counted)
    mine, theirs = boundaries.bool()[counted], other.bool()[counted]
    total, num_mine, num_theirs = len(mine), int(mine.sum()), int(theirs.sum())
    # Multiplied by N squared, so that equal counts cancel to the last bit.
    observed = int((mine == theirs).sum()) * total
    expected = num_mine * num_theirs + (total - num_mine) * (total - num_theirs)
    return ratio(observed - expected, total * total - expected)


def boundary_correlation(probabilities: Tensor, other: Tensor, counted: Tensor | None = None) -> float:
    """Compute Pearson's correlation of two policies' boundary probabilities on a text; nan if one is constant.

    Each policy's probabilities are given its own draws; strings without probabilities count as 0 and 1.
    """
    counted = _check_strings(probabilities, other, counted, name="probabilities")
    p, q = probabilities.double()[counted], other.double()[counted]
    if bool((p == p[0]).all() | (q == q[0]).all()):
        return math.nan
    p, q = p - p.mean(), q - q.mean()
    return max(-1.0, min(1.0, float((p * q).sum() / (p.square().sum() * q.square().sum()).sqrt())))


def agreement_matrix(
    strings: Sequence[Tensor], again: Sequence[Tensor], measure: Callable[[Tensor, Tensor], float]
) -> list[list[float]]:
    """Compare M strings on one text with each other, by a symmetric measure: [M][M].

        m_ij = (f(x_i, y_j) + f(y_i, x_j)) / 2,     x = strings and y = again two draws of each

    The diagonal compares two draws of the same policy, the upper bound for equal policies. Deterministic strings are
    compared with themselves.

    Example:
        >>> a, b = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0])
        >>> agreement_matrix([a, b], [a, b], jaccard)
        [[1.0, 0.5], [0.5, 1.0]]
    """
    if len(strings) != len(again):
        raise ValueError(f"strings and again must be as many, got {len(strings)} and {len(again)}")
    both = range(len(strings))
    values = [[measure(strings[i], again[j]) for j in both] for i in both]
    return [[(values[i][j] + values[j][i]) / 2 for j in both] for i in both]


def _check_strings(string: Tensor, other: Tensor, counted: Tensor | None, *, name: str = "boundaries") -> Tensor:
    """Require two strings of one text; return ``counted`` as bool."""
    if string.shape != other.shape:
        raise ValueError(f"{name} must be of one text, got shapes {[*string.shape]} and {[*other.shape]}")
    return check_counted(counted, string, name)


def _places(boundaries: Tensor, gap: int) -> list[int]:
    """Places of all boundaries, rows one after the other and further apart than ``gap``."""
    rows = boundaries.bool()[None].flatten(0, -2)  # [B, T]
    row, at = rows.nonzero(as_tuple=True)
    return (row * (rows.shape[1] + gap) + at).tolist()


def _random_string(counted: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """``number`` boundaries at random counted bytes."""
    places = counted.flatten().nonzero().squeeze(1)
    chosen = places[torch.randperm(len(places), generator=generator).to(places.device)[:number]]
    return torch.zeros_like(counted).flatten().index_fill(0, chosen, True).view(counted.shape)
