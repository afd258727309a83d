"""Boundaries inside the characters of UTF-8."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.evaluation.words import EdgeShare, place_share

# First bytes, how many bytes follow, and what the first of these may be (the Unicode Standard, Table 3-7).
_WELL_FORMED = (
    (0xC2, 0xDF, 1, 0x80, 0xBF),
    (0xE0, 0xE0, 2, 0xA0, 0xBF),
    (0xE1, 0xEC, 2, 0x80, 0xBF),
    (0xED, 0xED, 2, 0x80, 0x9F),
    (0xEE, 0xEF, 2, 0x80, 0xBF),
    (0xF0, 0xF0, 3, 0x90, 0xBF),
    (0xF1, 0xF3, 3, 0x80, 0xBF),
    (0xF4, 0xF4, 3, 0x80, 0x8F),
)


def inside_characters(byte_ids: Tensor) -> Tensor:
    """Bytes that are not the last of their character: a token that ends there ends inside it.

    A byte that is part of no well-formed character (a continuation without a beginning, a beginning whose character is
    cut off, 0xFF) counts as a character of its own: nothing can be split there.

    Args:
        byte_ids: [*B, T] whole texts.

    Returns:
        [*B, T] bool.

    Example:
        >>> inside_characters(torch.tensor(list("a€é".encode()))).int()
        tensor([0, 1, 1, 0, 1, 0], dtype=torch.int32)
        >>> inside_characters(torch.tensor(list("€".encode()[:2]))).int()  # cut off
        tensor([0, 0], dtype=torch.int32)
    """
    length = byte_ids.shape[-1]
    ahead = [F.pad(byte_ids, (0, back))[..., back : back + length] for back in range(4)]  # x_t .. x_{t+3}
    continues = [(x >= 0x80) & (x <= 0xBF) for x in ahead]
    inside = torch.zeros_like(byte_ids, dtype=torch.bool)
    for low, high, following, least, largest in _WELL_FORMED:
        begins = (byte_ids >= low) & (byte_ids <= high) & (ahead[1] >= least) & (ahead[1] <= largest)
        for place in range(2, following + 1):
            begins = begins & continues[place]
        for place in range(following):
            inside |= F.pad(begins, (place, 0))[..., :length]
    return inside


def split_character_share(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> EdgeShare:
    """Boundaries that split a character: ``share`` of the boundaries, ``covered`` of the places where one could.

        share = #{t counted: a_t = 1, x_t is not the last byte of its character} / #{t counted: a_t = 1}

    ``chance`` is the share of such bytes, 0 where all text is ASCII.

    Args:
        byte_ids: [*B, T] whole texts.
        boundaries: [*B, T] bool or 0/1; a_t ends a token after byte t.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all.

    Example:
        >>> split_character_share(torch.tensor(list("aéb".encode())), torch.tensor([1, 1, 0, 0]))
        EdgeShare(share=0.5, chance=0.25, covered=1.0)
    """
    return place_share(inside_characters(byte_ids), boundaries, counted)
