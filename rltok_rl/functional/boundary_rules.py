"""Fixed boundary rules, as functions of bytes, of entropies and of random numbers.

A boundary closes a token at its byte, and is known once that byte has been read. Papers in which a token *starts* at
byte t + 1 draw the same string one byte later. Results are [*B, T] bool unless said otherwise.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.takes import takes


@takes("rate: number [0, 1]", "length: whole [0, inf)")
def exact_count(rate: float, length: int) -> int:
    """Return the boundaries in ``length`` bytes at ``rate``, including the one at the first byte: ``k = ceil(rate T)``.

    Example:
        >>> exact_count(0.25, 4096), exact_count(0.2, 4096), exact_count(0.2, 5)
        (1024, 820, 1)
    """
    return math.ceil(rate * length - 1e-9)  # 0.2 * 5 is 1, though 0.2 is a little more than a fifth


@takes("uniforms: uniforms *B T", "rate: number [0, 1]", "block: whole [1, inf)")
def select_exactly(uniforms: Tensor, rate: float, block: int) -> Tensor:
    """Draw boundaries at random with an exact number in every block: all such strings are equally likely.

        a_t = [u_t (n - t) < k - sum_{s<t} a_s],        a_0 = 1,  n bytes and k boundaries in a block

    Each byte is selected with the share of boundaries left among the bytes left, so that no later byte matters
    (selection sampling; Knuth, The Art of Computer Programming, 3.4.2). ``uniforms`` [*B, T] are in [0, 1). A shorter
    last block may have another number.

    Example:
        >>> select_exactly(torch.tensor([0.9, 0.9, 0.1, 0.5]), 0.5, 4)
        tensor([ True, False,  True, False])
    """
    drawn, out = uniforms.new_zeros(uniforms.shape[:-1]), []
    for t in range(uniforms.shape[-1]):
        boundary, drawn = _select(uniforms[..., t], torch.full_like(drawn, t), drawn, rate, block)
        out.append(boundary)
    return torch.stack(out, -1) if out else uniforms.bool()


@takes("uniforms: uniforms *B", "position: int *B", "drawn: real *B", "rate: number [0, 1]", "block: whole [1, inf)")
def select_next(uniforms: Tensor, position: Tensor, drawn: Tensor, rate: float, block: int) -> tuple[Tensor, Tensor]:
    """Draw the byte at ``position`` [*B] of :func:`select_exactly`, after ``drawn`` [*B] boundaries in its block.

    Returns its boundary and the boundaries so far in its block.
    """
    drawn = drawn if drawn.is_floating_point() else drawn.long()  # narrow integers would wrap around
    return _select(uniforms, position.long(), drawn, rate, block)


def _select(uniforms: Tensor, position: Tensor, drawn: Tensor, rate: float, block: int) -> tuple[Tensor, Tensor]:
    place = position % block
    drawn = torch.where(place == 0, 0, drawn)
    # The first byte of a text always has a boundary, that of a later block need not.
    boundary = (uniforms * (block - place) < exact_count(rate, block) - drawn) | (position == 0)
    return boundary, drawn + boundary.to(drawn.dtype)


@takes("byte_ids: ids *L")
def spacelike(byte_ids: Tensor) -> Tensor:
    """Mark all bytes but ASCII letters, digits, and continuation bytes of UTF-8 (https://arxiv.org/abs/2404.14408).

    Special ids, from 256 on, are marked too.
    """
    return _spacelike(byte_ids)


def _spacelike(byte_ids: Tensor) -> Tensor:
    wide = byte_ids.long()
    digit = (wide >= 0x30) & (wide <= 0x39)
    letter = ((wide | 0x20) >= 0x61) & ((wide | 0x20) <= 0x7A) & (wide < 0x80)
    later = (wide >= 0x80) & (wide <= 0xBF)
    return ~(digit | letter | later)


@takes("byte_ids: ids *B T")
def spacebyte(byte_ids: Tensor) -> Tensor:
    """Draw a boundary at every spacelike byte after one that is not: ``[s(x_t), not s(x_{t-1})]``.

    Example:
        >>> spacebyte(torch.tensor(list(b"to be, or"))).int()
        tensor([0, 0, 1, 0, 0, 1, 0, 0, 0], dtype=torch.int32)
    """
    here = _spacelike(byte_ids)
    return here & ~F.pad(here[..., :-1], (1, 0))


@takes("entropies: known *B T", "lags: whole [0, inf)", "margin: number (-inf, inf)")
def entropy_spikes(entropies: Tensor, lags: int = 2, *, margin: float = 0.0) -> Tensor:
    """Draw a boundary where the entropy exceeds that of each of the ``lags`` bytes before (https://arxiv.org/abs/2211.09761).

        a_t = [H_t > H_{t-j} + margin for j = 1 .. k],        a_0 = 1

    Example:
        >>> entropy_spikes(torch.tensor([1.0, 2.0, 1.5, 1.8, 3.0])).int()
        tensor([1, 1, 0, 0, 1], dtype=torch.int32)
    """
    length = entropies.shape[-1]
    lags = min(lags, length)  # longer ones see no byte
    if lags == 0:
        return torch.ones_like(entropies, dtype=torch.bool)

    def later(x: Tensor, steps: int) -> Tensor:
        return F.pad(x, (steps, 0), value=-math.inf)[..., :length]

    highest, reach = later(entropies, 1), 1  # of the last 1, 2, 4 .. bytes before each
    while reach < lags:
        further = min(reach, lags - reach)
        highest, reach = torch.maximum(highest, later(highest, further)), reach + further
    return entropies > highest + margin


@takes("entropies: float *B T")
def entropy_rise(entropies: Tensor) -> Tensor:
    """Compute ``H_t - H_{t-1}`` [*B, T], minus infinity at the first byte (BLT, https://arxiv.org/abs/2412.09871)."""
    return entropies - F.pad(entropies[..., :-1], (1, 0), value=math.inf)


@takes("candidates: bool *B T")
def never_twice(candidates: Tensor) -> Tensor:
    """Draw requested boundaries, except right after another one (BLT, combined rule).

        a_t = [candidate_t and not a_{t-1}],        a_0 = 1

    In a run of requested boundaries every second one is drawn, which needs no loop.

    Example:
        >>> never_twice(torch.tensor([0, 1, 1, 1, 0, 1, 1]).bool()).int()
        tensor([1, 0, 1, 0, 0, 1, 0], dtype=torch.int32)
    """
    places = torch.arange(candidates.shape[-1], device=candidates.device)
    candidates = candidates | (places == 0)
    last_gap = torch.where(candidates, -1, places).cummax(-1).values
    return candidates & ((places - last_gap) % 2 == 1)


@takes("entropies: known *B T", "least_rise: number [-inf, inf]")
def released_combined_scores(entropies: Tensor, least_rise: float) -> Tensor:
    """Score bytes for BLT's combined rule as released; those above a finite threshold have a boundary.

        s_0 = s_1 = inf,    s_2 = -inf,    s_t = H_t if H_t - H_{t-1} > least_rise else -inf

    The released code starts patches at bytes 0 and 1, drops H_0, and starts another at byte 2, whose neighbour it then
    excludes. It excludes no other neighbours, because it looks at starts before it sets them.

    Example:
        >>> released_combined_scores(torch.tensor([0.1, 0.2, 0.9, 1.0, 0.8, 2.0]), 0.0).tolist()
        [inf, inf, -inf, 1.0, -inf, 2.0]
    """
    places = torch.arange(entropies.shape[-1], device=entropies.device)
    scores = entropies.masked_fill(~(entropy_rise(entropies).double() > least_rise) | (places == 2), -math.inf)
    return scores.masked_fill(places < 2, math.inf)


@takes("scores: known *L", "rate: number [0, 1]")
def threshold_for_rate(scores: Tensor, rate: float) -> float:
    """Return the threshold that a share ``rate`` of scores exceeds; fewer may if scores are equal."""
    if scores.is_meta:
        raise ValueError("scores must be on a device with values, got meta")
    ordered = scores.flatten().sort(descending=True).values
    if not len(ordered):
        raise ValueError("scores must hold at least one number, got none")
    count = round(rate * len(ordered))
    return float(ordered[count]) if count < len(ordered) else float(ordered[-1]) - 1.0
