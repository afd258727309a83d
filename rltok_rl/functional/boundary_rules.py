"""Fixed rules that say where a token ends, as functions of bytes, of entropies and of random numbers.

All boundaries here close a token at the byte they stand at, and are known once that byte has been read. Papers that let
a token *start* at byte t + 1 draw the same string one byte later.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def exact_count(rate: float, length: int) -> int:
    """Boundaries of a string of ``length`` bytes at ``rate``, the one at its first byte included.

        k = ceil(rate T)

    Args:
        rate: boundaries per byte, in (0, 1].
        length: T.

    Example:
        >>> exact_count(0.25, 4096), exact_count(0.2, 4096), exact_count(0.2, 5)
        (1024, 820, 1)
    """
    return math.ceil(rate * length - 1e-9)  # 0.2 * 5 is to count as 1, though 0.2 is a little more than a fifth


def select_exactly(uniforms: Tensor, rate: float, block: int) -> Tensor:
    """Boundaries at random, as many in every block as the rate says: all such strings are equally likely.

        a_t = [u_t (n - t) < k - sum_{s<t} a_s],        a_0 = 1,  n bytes and k boundaries in a block

    A byte is taken with the share of boundaries still to be drawn among the bytes still to come, so that no byte after
    t has a say (selection sampling; Knuth, The Art of Computer Programming, 3.4.2).

    Args:
        uniforms: [*B, T] in [0, 1).
        rate: boundaries per byte, in (0, 1].
        block: n, bytes that a count is kept over; a last block that is shorter takes what it happens to get.

    Returns:
        [*B, T] bool.

    Example:
        >>> select_exactly(torch.tensor([0.9, 0.9, 0.1, 0.5]), 0.5, 4)
        tensor([ True, False,  True, False])
    """
    drawn, out = torch.zeros_like(uniforms[..., 0]), []
    for t in range(uniforms.shape[-1]):
        boundary, drawn = select_next(uniforms[..., t], torch.full_like(drawn, t), drawn, rate, block)
        out.append(boundary)
    return torch.stack(out, -1)


def select_next(uniforms: Tensor, position: Tensor, drawn: Tensor, rate: float, block: int) -> tuple[Tensor, Tensor]:
    """One byte of :func:`select_exactly`.

    Args:
        uniforms: [*B] in [0, 1).
        position: [*B] of the byte, t.
        drawn: [*B] boundaries drawn in its block before it.
        rate: boundaries per byte.
        block: bytes of a block.

    Returns:
        [*B] bool, and [*B] the boundaries drawn in the block with it.
    """
    place = position % block
    drawn = torch.where(place == 0, 0, drawn)
    # The first byte of a text always has a boundary; those of further blocks are bytes like others.
    boundary = (uniforms * (block - place) < exact_count(rate, block) - drawn) | (position == 0)
    return boundary, drawn + boundary.to(drawn.dtype)


def spacelike(byte_ids: Tensor) -> Tensor:
    """Bytes that may begin a token in SpaceByte: all but ASCII letters, digits, and the later bytes of characters.

    Args:
        byte_ids: [*B, T] bytes; special ids count as spacelike.

    Returns:
        [*B, T] bool.

    Example:
        >>> spacelike(torch.tensor(list("a é".encode())))  # the first byte of é, not its second
        tensor([False,  True,  True, False])

    Reference: https://arxiv.org/abs/2404.14408
    """
    wide = byte_ids.long()
    digit = (wide >= 0x30) & (wide <= 0x39)
    letter = ((wide | 0x20) >= 0x61) & ((wide | 0x20) <= 0x7A) & (wide < 0x80)
    later = (wide >= 0x80) & (wide <= 0xBF)
    return ~(digit | letter | later)


def spacebyte(byte_ids: Tensor) -> Tensor:
    """A boundary at every spacelike byte that follows one which is not.

        a_t = [spacelike(x_t) and not spacelike(x_{t-1})]

    Args:
        byte_ids: [*B, T].

    Returns:
        [*B, T] bool; nothing before the text is spacelike.

    Example:
        >>> spacebyte(torch.tensor(list(b"to be, or"))).int()
        tensor([0, 0, 1, 0, 0, 1, 0, 0, 0], dtype=torch.int32)
    """
    here = spacelike(byte_ids)
    return here & ~F.pad(here[..., :-1], (1, 0))


def entropy_spikes(entropies: Tensor, lags: int = 2, *, margin: float = 0.0) -> Tensor:
    """A boundary where the next byte is harder to tell than after each of the bytes before (Nawrot et al.).

        a_t = [H_t > H_{t-j} + margin for j = 1 .. k]

    Args:
        entropies: [*B, T] of the next byte after t.
        lags: k.
        margin: in nats; 0 in the paper.

    Returns:
        [*B, T] bool. The first byte has a boundary; before the text there is nothing to compare with.

    Example:
        >>> entropy_spikes(torch.tensor([1.0, 2.0, 1.5, 1.8, 3.0])).int()
        tensor([1, 1, 0, 0, 1], dtype=torch.int32)

    Reference: https://arxiv.org/abs/2211.09761
    """
    out = torch.ones_like(entropies, dtype=torch.bool)
    for lag in range(1, lags + 1):
        out &= entropies > F.pad(entropies, (lag, 0), value=-math.inf)[..., : entropies.shape[-1]] + margin
    return out


def entropy_rise(entropies: Tensor) -> Tensor:
    """How much harder the next byte has become to tell, ``H_t - H_{t-1}`` (BLT, approximately monotonic rule).

    Args:
        entropies: [*B, T].

    Returns:
        [*B, T]; minus infinity at the first byte.

    Example:
        >>> entropy_rise(torch.tensor([1.0, 2.0, 1.5]))
        tensor([   -inf,  1.0000, -0.5000])

    Reference: https://arxiv.org/abs/2412.09871
    """
    return entropies - F.pad(entropies[..., :-1], (1, 0), value=math.inf)


def never_twice(wanted: Tensor) -> Tensor:
    """A boundary where one is wanted and the byte before has none (BLT, combined rule).

        a_t = [wanted_t and not a_{t-1}],        a_0 = 1

    In a run of wanted ones every second is drawn, which needs no loop.

    Args:
        wanted: [*B, T] bool.

    Returns:
        [*B, T] bool.

    Example:
        >>> never_twice(torch.tensor([0, 1, 1, 1, 0, 1, 1]).bool()).int()
        tensor([1, 0, 1, 0, 0, 1, 0], dtype=torch.int32)

    Reference: https://arxiv.org/abs/2412.09871
    """
    places = torch.arange(wanted.shape[-1], device=wanted.device)
    wanted = wanted | (places == 0)
    last_gap = torch.where(wanted, -1, places).cummax(-1).values
    return wanted & ((places - last_gap) % 2 == 1)


def threshold_for_rate(scores: Tensor, rate: float) -> float:
    """The threshold that a share ``rate`` of scores exceeds.

    Args:
        scores: [*L] finite numbers.
        rate: share, in [0, 1].

    Returns:
        The largest score that is not to exceed it. Equal scores cannot be told apart: where there are some, fewer may.

    Example:
        >>> threshold_for_rate(torch.tensor([0.0, 1.0, 2.0, 3.0]), 0.25)
        2.0
    """
    ordered = scores.flatten().sort(descending=True).values
    if not len(ordered):
        raise ValueError("scores must hold at least one number, got none")
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate must lie in [0, 1], got {rate}")
    count = round(rate * len(ordered))
    return float(ordered[count]) if count < len(ordered) else float(ordered[-1]) - 1.0
