"""Rules for boundaries equal their published definitions, written out by hand."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from rltok_rl.functional.boundary_rules import (
    entropy_rise,
    entropy_spikes,
    exact_count,
    select_exactly,
    spacebyte,
    spacelike,
    threshold_for_rate,
)


def test_spacelike_bytes_all_256():
    """SpaceByte's own words: b < '0', '9' < b < 'A', 'Z' < b < 'a', 'z' < b < 0x80, b >= 0xC0."""

    def published(b: int) -> bool:
        return b < ord("0") or ord("9") < b < ord("A") or ord("Z") < b < ord("a") or ord("z") < b < 0x80 or b >= 0xC0

    everything = torch.arange(256)
    assert spacelike(everything).tolist() == [published(b) for b in range(256)]
    assert int(spacelike(everything).sum()) == 256 - 10 - 52 - 64
    assert torch.equal(spacelike(everything.to(torch.uint8)), spacelike(everything))


def test_spacebyte_by_hand():
    text = "Hi, (you)  é日x"
    #                     H  i  ,     (  y  o  u  )        é  .  日 .  .  x
    expected = torch.tensor([0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0])
    assert spacebyte(torch.tensor(list(text.encode()))).int().tolist() == expected.tolist()


def test_no_boundary_inside_a_character():
    ids = torch.tensor(list("日本語 naïve ß".encode()))
    assert not (spacebyte(ids) & (ids >= 0x80) & (ids <= 0xBF)).any()


@pytest.mark.parametrize("lags", [1, 2, 5])
def test_spikes_equal_a_loop(lags):
    entropies = torch.randn(3, 40, dtype=torch.float64)
    expected = torch.zeros(3, 40, dtype=torch.bool)
    for row in range(3):
        for t in range(40):
            expected[row, t] = all(entropies[row, t] > entropies[row, t - j] for j in range(1, lags + 1) if t >= j)
    assert torch.equal(entropy_spikes(entropies, lags), expected)


def test_blt_indices():
    """A high entropy at i starts a patch at i + 1, that is, ends a token at i; entropies by hand."""
    entropies = torch.tensor([0.1, 2.0, 0.5, 1.4, 1.2, 3.0])
    threshold = 1.335442066192627
    starts = {0, 1} | {i + 1 for i in range(1, 6) if entropies[i] > threshold}  # as published: 0 and 1 always start
    ends = {t for t in range(6) if t == 0 or entropies[t] > threshold}
    assert starts == {0} | {t + 1 for t in ends} == {0, 1, 2, 4, 6}
    rises = entropy_rise(entropies)
    assert rises[0] == -math.inf
    torch.testing.assert_close(rises[1:], torch.tensor([1.9, -1.5, 0.9, -0.2, 1.8]))


def test_thresholds_meet_their_rate():
    scores = torch.randn(1000, dtype=torch.float64)
    for rate in (0.0, 0.123, 0.5, 1.0):
        assert int((scores > threshold_for_rate(scores, rate)).sum()) == round(1000 * rate)
    assert int((torch.ones(10) > threshold_for_rate(torch.ones(10), 0.5)).sum()) == 0
    with pytest.raises(ValueError, match="scores must hold at least one number"):
        threshold_for_rate(torch.zeros(0), 0.5)
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\], got 2"):
        threshold_for_rate(torch.zeros(1), 2)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.25, 1 / 3, 1.0])
def test_the_number_at_random_is_exact(rate):
    drawn = select_exactly(torch.rand(5, 4096), rate, 4096)
    assert drawn.sum(1).tolist() == [exact_count(rate, 4096)] * 5
    assert drawn[:, 0].all()
    blocks = select_exactly(torch.rand(2, 96), rate, 32).view(2, 3, 32).sum(-1)
    assert (blocks == exact_count(rate, 32)).all()


def test_extreme_random_numbers_change_no_count():
    for uniforms in (torch.zeros(1, 64), torch.full((1, 64), 1 - 2**-24)):
        assert int(select_exactly(uniforms, 0.25, 64).sum()) == 16


def test_strings_at_random_are_equally_likely():
    """Blocks of 6 with 3 boundaries, the first fixed: C(5, 2) = 10 strings.

    Chi-square has 9 degrees of freedom; it exceeds 33.7 with probability 1e-4.
    """
    drawn = select_exactly(torch.rand(20_000, 6, dtype=torch.float64), 0.5, 6)
    codes = (drawn * 2 ** torch.arange(6)).sum(1)
    strings = [1 + 2**i + 2**j for i, j in combinations(range(1, 6), 2)]
    counts = torch.tensor([int((codes == code).sum()) for code in strings], dtype=torch.float64)
    assert int(counts.sum()) == 20_000
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 33.7
