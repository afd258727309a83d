"""How far boundary strings on one text agree with each other: of other seeds, other models, other draws.

Shapes: B rows, T bytes, M strings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from rltok_rl.evaluation.matching import check_one_text, ratio


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
