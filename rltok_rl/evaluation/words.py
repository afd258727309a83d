"""Boundaries inside the characters of UTF-8."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.utils import check_count

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


EDGES = ("last_letter", "space", "first_letter", "any")
"""Places at the edge of a word; ``any`` is the union of the three."""
_SPACES = tuple(b" \t\n\r\f\v")


@dataclass(frozen=True)
class EdgeShare:
    """Boundaries at one kind of place."""

    share: float  # precision: of the boundaries, those that lie there; nan where there are no boundaries
    chance: float  # what the share would be on average if as many boundaries lay anywhere
    covered: float  # recall: of such places, those that have a boundary; nan where there are no such places

    @property
    def lift(self) -> float:
        """Enrichment: how many times more often than by chance; nan where that cannot be said."""
        return self.share / self.chance if self.chance else math.nan


def white_space(byte_ids: Tensor) -> Tensor:
    """Which bytes are white space: a blank, a tab, a line feed, a carriage return, a form feed, a vertical tab.

    Args:
        byte_ids: [*B, T].

    Example:
        >>> white_space(torch.tensor(list(b"to be"))).int()
        tensor([0, 0, 1, 0, 0], dtype=torch.int32)
    """
    return torch.isin(byte_ids, torch.tensor(_SPACES, device=byte_ids.device))


def in_words(byte_ids: Tensor) -> Tensor:
    """Which bytes belong to words: ASCII letters and digits, and all bytes beyond ASCII.

    Args:
        byte_ids: [*B, T].

    Example:
        >>> in_words(torch.tensor(list(b"R2, d"))).int()
        tensor([1, 1, 0, 0, 1], dtype=torch.int32)
    """
    lower = byte_ids | 0x20  # of letters; what else it hits is no letter before or after
    letter = (lower >= ord("a")) & (lower <= ord("z"))
    digit = (byte_ids >= ord("0")) & (byte_ids <= ord("9"))
    return letter | digit | ((byte_ids >= 128) & (byte_ids < 256))


def word_edges(byte_ids: Tensor) -> dict[str, Tensor]:
    """Which bytes are the last letter of a word, the space right after a word, and the first letter of a word.

    A word is a run of ASCII letters and digits and of bytes beyond ASCII (of which letters of other scripts are made).
    A word of one letter is both its first and its last.

    Args:
        byte_ids: [*B, T] whole texts: what lies outside is no word.

    Returns:
        [*B, T] bool for each of :data:`EDGES`.

    Example:
        >>> edges = word_edges(torch.tensor(list(b"to be")))
        >>> edges["last_letter"].int(), edges["space"].int(), edges["first_letter"].int()
        (tensor([0, 1, 0, 0, 1], dtype=torch.int32),
         tensor([0, 0, 1, 0, 0], dtype=torch.int32),
         tensor([1, 0, 0, 1, 0], dtype=torch.int32))
    """
    word = in_words(byte_ids)
    before, after = F.pad(word, (1, 0))[..., :-1], F.pad(word, (0, 1))[..., 1:]
    edges = {"last_letter": word & ~after, "space": white_space(byte_ids) & before, "first_letter": word & ~before}
    return {**edges, "any": edges["last_letter"] | edges["space"] | edges["first_letter"]}


def word_edge_share(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> dict[str, EdgeShare]:
    """The share of boundaries at each kind of word edge.

        share   = #{t counted: a_t = 1, t at an edge} / #{t counted: a_t = 1}
        chance  = #{t counted: t at an edge} / #{t counted}
        covered = #{t counted: a_t = 1, t at an edge} / #{t counted: t at an edge}

    ``chance`` is the mean share over all ways to lay the same number of boundaries on the counted bytes, whatever that
    number is. The same comparison for ``covered`` is with the rate: ``covered / rate = share / chance``.

    Args:
        byte_ids: [*B, T] whole texts.
        boundaries: [*B, T] bool or 0/1.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all.

    Returns:
        One :class:`EdgeShare` for each of :data:`EDGES`.

    Example:
        >>> text = torch.tensor(list(b"to be or"))
        >>> shares = word_edge_share(text, torch.tensor([0, 1, 0, 0, 1, 0, 0, 0]))
        >>> shares["last_letter"].share, shares["last_letter"].chance, round(shares["last_letter"].covered, 3)
        (1.0, 0.375, 0.667)
    """
    return {name: place_share(edge, boundaries, counted) for name, edge in word_edges(byte_ids).items()}


def white_space_share(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> EdgeShare:
    """Boundaries at white space: precision ``share``, recall ``covered``, enrichment over chance ``lift``.

    All white space counts, whatever stands before it; the space right after a word is one of :func:`word_edges`.

    Args:
        byte_ids: [*B, T].
        boundaries: [*B, T] bool or 0/1.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all.

    Example:
        >>> at = white_space_share(torch.tensor(list(b"to be or")), torch.tensor([1, 0, 1, 0, 0, 0, 0, 0]))
        >>> at.share, at.covered, at.lift  # one of two boundaries, one of two spaces; two of eight bytes are spaces
        (0.5, 0.5, 2.0)
    """
    return place_share(white_space(byte_ids), boundaries, counted)


def place_share(places: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> EdgeShare:
    """The share of boundaries at places of one kind; see :func:`word_edge_share` for the equations.

    Args:
        places: [*B, T] bool.
        boundaries: [*B, T] bool or 0/1.
        counted: [*B, T] bool, bytes whose boundary is a decision; None for all.

    Example:
        >>> place_share(torch.tensor([True, False, False, False]), torch.tensor([1, 1, 0, 0]))
        EdgeShare(share=0.5, chance=0.25, covered=1.0)
    """
    for name, given in (("boundaries", boundaries), ("counted", counted)):
        if given is not None and given.shape != places.shape:
            raise ValueError(f"{name} must have the shape of byte_ids, {[*places.shape]}, got {[*given.shape]}")
    counted = torch.ones_like(places, dtype=torch.bool) if counted is None else counted
    if not bool(counted.any()):
        raise ValueError("counted must hold at least one byte, got none")
    drawn, there = boundaries.bool() & counted, places & counted

    def ratio(part: Tensor, whole: Tensor) -> float:
        return int(part.sum()) / int(whole.sum()) if bool(whole.any()) else math.nan

    return EdgeShare(ratio(drawn & there, drawn), ratio(there, counted), ratio(drawn & there, there))
