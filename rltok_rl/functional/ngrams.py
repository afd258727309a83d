"""Hashes of byte n-grams: which row of a table belongs to the last n bytes."""

from __future__ import annotations

from torch import Tensor

from rltok_rl.functional.takes import takes

PRIME = 1_000_000_007
"""Base of the polynomial, as in BLT (https://arxiv.org/abs/2412.09871)."""


@takes("byte_ids: int *B T", "size, buckets: whole [1, inf)")
def ngram_hash(byte_ids: Tensor, size: int, buckets: int) -> Tensor:
    """Hash every n-gram with a rolling polynomial in 64-bit integers that wrap around; [*B, T] in 0 .. buckets - 1.

        h_t = ( sum_{k=0..n-1} x_{t-n+1+k} * 1000000007^k  mod 2^64 )  mod buckets

    ``byte_ids`` [*B, n - 1 + T] int64 begin with n - 1 bytes that precede the T. (Before a text they are 0, so that an
    n-gram that begins there equals one that begins with bytes 0.)

    Example:
        >>> ngram_hash(torch.tensor([0, 0, 97, 98, 97]), 3, 1000).tolist()
        [673, 401, 456]
    """
    length = byte_ids.shape[-1] - size + 1
    if length < 0:
        raise ValueError(f"byte_ids must be at least size - 1 = {size - 1} long, got {byte_ids.shape[-1]}")
    byte_ids = byte_ids.long()  # of narrower integers, products would wrap around earlier
    # Hashes of the next 1, 2, 4 .. bytes make up those of any number of bytes, in log2 n steps.
    hashes, width, done = byte_ids, 1, 0
    total = byte_ids.narrow(-1, 0, 0)
    while True:
        if size & width:
            part = hashes.narrow(-1, done, length)
            total = part * _power(done) + total if done else part
            done += width
        if done == size:
            return total.remainder(buckets)
        hashes = hashes[..., :-width] + hashes[..., width:] * _power(width)
        width *= 2


def _power(exponent: int) -> int:
    return signed(pow(PRIME, exponent, 2**64))


def signed(number: int) -> int:
    """Return the 64-bit signed integer that a whole number wraps around to."""
    return (number + 2**63) % 2**64 - 2**63
