"""Hashes of n-grams are those of whole numbers that wrap around at 64 bits."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.functional.ngrams import PRIME, ngram_hash, signed


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("buckets", [1, 7, 500_000])
def test_hashes_are_those_of_python_integers(size, buckets):
    byte_ids = torch.randint(320, (3, 40), generator=torch.Generator().manual_seed(0))
    ours = ngram_hash(byte_ids, size, buckets)
    for row in range(3):
        for t in range(40 - size + 1):
            total = sum(int(byte_ids[row, t + k]) * PRIME**k for k in range(size))
            assert int(ours[row, t]) == signed(total) % buckets
    assert ours.shape == (3, 40 - size + 1) and int(ours.min()) >= 0


def test_sums_that_wrap_around_are_among_those_tested():
    assert 255 * PRIME**3 > 2**63  # from n = 4 on


def test_the_order_of_bytes_counts():
    one, two = (ngram_hash(torch.tensor(ids), 3, 2**62) for ids in ([1, 2, 3], [3, 2, 1]))
    assert int(one) != int(two)
