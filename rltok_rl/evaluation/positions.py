"""Where in a word boundaries lie: counted from its first letter and from its last.

A boundary ``a_t`` ends a token after byte t. So the end of a word has two natural places: its last letter, where token
and word end together, and the byte after it, where a causal rule can first know that the word is over. Positions are in
bytes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.evaluation.words import EdgeShare, in_words, place_share
from rltok_rl.functional.numbers import check_count

OUTSIDE = -2
"""Stands for bytes that belong to no word and do not touch one on the side that is counted from."""


def position_from_start(byte_ids: Tensor) -> Tensor:
    """How far each byte is into its word: 0 at the first letter, -1 at the byte before it.

        p_t = t - s,    s the last first letter at or before t;    -1 where x_{t+1} begins a word and x_t is in none

    Words are those of :func:`~rltok_rl.evaluation.words.in_words`.

    Args:
        byte_ids: [*B, T] whole texts.

    Returns:
        [*B, T] int64; :data:`OUTSIDE` where a byte is neither in a word nor right before one.

    Example:
        >>> position_from_start(torch.tensor(list(b"be, or")))
        tensor([ 0,  1, -2, -1,  0,  1])
    """
    word = in_words(byte_ids)
    clock = torch.arange(word.shape[-1], device=word.device).expand(word.shape)
    first = word & ~F.pad(word, (1, 0))[..., :-1]
    start = torch.where(first, clock, 0).cummax(-1).values if clock.numel() else clock
    touches = F.pad(first, (0, 1))[..., 1:]
    return torch.where(word, clock - start, torch.where(touches, -1, OUTSIDE))


def position_from_end(byte_ids: Tensor) -> Tensor:
    """How far each byte is from the end of its word: 0 at the last letter, 1 before it, -1 at the byte after the word.

    Args:
        byte_ids: [*B, T] whole texts.

    Returns:
        [*B, T] int64; :data:`OUTSIDE` where a byte is neither in a word nor right after one.

    Example:
        >>> position_from_end(torch.tensor(list(b"be, or")))
        tensor([ 1,  0, -1, -2,  1,  0])
    """
    return position_from_start(byte_ids.flip(-1)).flip(-1)


def word_position_share(
    byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None, *, most: int = 6
) -> dict[str, dict[str, EdgeShare]]:
    """The boundaries by their position in a word, beside chance.

        share(p)  = #{t counted: a_t = 1, p_t = p} / #{t counted: a_t = 1}
        chance(p) = #{t counted: p_t = p} / #{t counted},        covered(p) = #{a_t = 1, p_t = p} / #{p_t = p}

    Over the positions of one side the shares sum to 1, and so do the chances.

    Args:
        byte_ids: [*B, T] whole texts.
        boundaries: [*B, T] bool or 0/1; a_t ends a token after byte t.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all.
        most: k, the first position that is counted together with all beyond it.

    Returns:
        ``"start"`` and ``"end"``; in each one :class:`~rltok_rl.evaluation.words.EdgeShare` for ``"-1"`` (the byte
        before a word, after a word), ``"0"`` (its first byte, its last) .. ``"k-1"``, ``"k+"`` and ``"outside"``.

    Example:
        >>> text = torch.tensor(list(b"to be or"))
        >>> found = word_position_share(text, torch.tensor([0, 0, 1, 0, 0, 1, 0, 0]), most=1)
        >>> {name: (one.share, one.chance) for name, one in found["end"].items()}
        {'-1': (1.0, 0.25), '0': (0.0, 0.375), '1+': (0.0, 0.375), 'outside': (0.0, 0.0)}
    """
    most = check_count("most", most)
    names = {**{str(p): p for p in range(-1, most)}, f"{most}+": most, "outside": OUTSIDE}
    sides = {"start": position_from_start(byte_ids), "end": position_from_end(byte_ids)}
    return {
        side: {name: place_share(where.clamp(max=most) == p, boundaries, counted) for name, p in names.items()}
        for side, where in sides.items()
    }
