"""Hashes of byte n-grams: which row of a table belongs to the last n bytes."""

from __future__ import annotations

from torch import Tensor

PRIME = 1_000_000_007
"""Base of the polynomial, as in BLT."""


def ngram_hash(byte_ids: Tensor, size: int, buckets: int) -> Tensor:
    """Rolling polynomial hash of every n-gram, in 64-bit integers that wrap around.

        h_t = ( sum_{k=0..n-1} x_{t-n+1+k} * 1000000007^k  mod 2^64 )  mod buckets

    The sum is read as a signed number, and the remainder is never negative. Bytes before the text are 0, so that an
    n-gram that begins before it equals one that begins with bytes 0.

    Args:
        byte_ids: [*B, n - 1 + T] int64, of which the first n - 1 are the bytes before the T that are asked about.
        size: n, at least 1.
        buckets: rows of the table.

    Returns:
        [*B, T] int64 in 0 .. buckets - 1.

    Example:
        >>> import torch
        >>> ngram_hash(torch.tensor([0, 0, 97, 98, 97]), 3, 1000).tolist()
        [673, 401, 456]

    Reference: https://arxiv.org/abs/2412.09871
    """
    length = byte_ids.shape[-1] - size + 1
    total = byte_ids.narrow(-1, 0, length)  # k = 0, the oldest byte
    for k in range(1, size):
        total = total + byte_ids.narrow(-1, k, length) * signed(PRIME**k)
    return total.remainder(buckets)


def signed(number: int) -> int:
    """The 64-bit signed integer that a whole number wraps around to.

    Args:
        number: any integer.

    Example:
        >>> signed(2**63), signed(-1)
        (-9223372036854775808, -1)
    """
    return (number + 2**63) % 2**64 - 2**63
