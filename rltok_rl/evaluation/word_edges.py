"""Boundaries at white space, at the edges of words, by position in a word, and inside UTF-8 characters.

``share`` is the precision of boundaries at places of one kind, ``covered`` their recall, ``lift`` the enrichment over
chance. A word is a run of ASCII letters, digits and bytes beyond ASCII, of which letters of other scripts are made.

Shapes: ``byte_ids`` [*B, T] whole texts; ``boundaries`` [*B, T] bool or 0/1, where a_t ends a token after byte t;
``counted`` [*B, T] bool, bytes whose boundary is a decision, None for all.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.text import ids_to_bytes

_FAR = 6  # this position in a word and all further ones are counted as one
EDGES = ("last_letter", "space", "first_letter", "any")
"""Places at the edge of a word; ``any`` is the union of the three."""
OUTSIDE = -2
"""Position of bytes that neither belong to a word nor touch one on the side that is counted from."""
_SPACES = tuple(b" \t\n\r\f\v")
_WORDS = tuple(byte for byte in range(256) if byte >= 128 or chr(byte).isalnum())


@dataclass(frozen=True)
class EdgeShare:
    """Boundaries at places of one kind; nan where a ratio has no denominator."""

    share: float  # precision: the fraction of boundaries at these places
    chance: float  # the expected share of as many boundaries at random places
    covered: float  # recall: the fraction of these places that have a boundary

    @property
    def lift(self) -> float:
        """Enrichment: share divided by chance."""
        return ratio(self.share, self.chance)

    def plain(self) -> dict[str, float]:
        """Return the four numbers by name."""
        return {**asdict(self), "lift": self.lift}


def ratio(part: float, whole: float) -> float:
    """Divide; nan for an empty whole."""
    return part / whole if whole else math.nan


def check_counted(counted: Tensor | None, like: Tensor, name: str) -> Tensor:
    """Return ``counted`` as bool, all True for None; require at least one byte and the shape of ``name``."""
    if counted is not None and counted.shape != like.shape:
        raise ValueError(f"counted must have the shape of {name}, {[*like.shape]}, got {[*counted.shape]}")
    counted = torch.ones_like(like, dtype=torch.bool) if counted is None else counted.bool()
    if not bool(counted.any()):
        raise ValueError("counted must hold at least one byte, got none")
    return counted


def place_share(places: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> EdgeShare:
    """Compare boundaries with places of one kind.

        share = #{a_t = 1, t in places} / #{a_t = 1},     covered = #{a_t = 1, t in places} / #{t in places}
        chance = #{t in places} / N,                      over the N counted bytes t

    ``chance`` is the mean share over all ways to lay as many boundaries on the counted bytes, however many there are.
    With the rate of boundaries, ``covered / rate = share / chance``.

    Example:
        >>> place_share(torch.tensor([True, False, False, False]), torch.tensor([1, 1, 0, 0]))
        EdgeShare(share=0.5, chance=0.25, covered=1.0)
    """
    if boundaries.shape != places.shape:
        raise ValueError(f"boundaries must have the shape of byte_ids, {[*places.shape]}, got {[*boundaries.shape]}")
    counted = check_counted(counted, places, "byte_ids")
    drawn, there = boundaries.bool() & counted, places & counted
    total, num_drawn, num_there, num_both = (int(x.sum()) for x in (counted, drawn, there, drawn & there))
    return EdgeShare(ratio(num_both, num_drawn), num_there / total, ratio(num_both, num_there))


def white_space(byte_ids: Tensor) -> Tensor:
    """Mark blanks, tabs, line feeds, carriage returns, form feeds and vertical tabs."""
    return torch.isin(byte_ids, torch.tensor(_SPACES, device=byte_ids.device))


def white_space_share(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> EdgeShare:
    """Compare boundaries with white space; see :func:`place_share`."""
    return place_share(white_space(byte_ids), boundaries, counted)


def in_words(byte_ids: Tensor) -> Tensor:
    """Mark bytes of words: ASCII letters and digits, and all bytes beyond ASCII."""
    return torch.isin(byte_ids, torch.tensor(_WORDS, device=byte_ids.device))


def word_edges(byte_ids: Tensor) -> dict[str, Tensor]:
    """Mark each of :data:`EDGES`: last letters, the space right after a word, first letters, and all three.

    A word of one letter is both its first and its last. Beyond the ends of a text there is no word.

    Example:
        >>> edges = word_edges(torch.tensor(list(b"to be")))
        >>> edges["last_letter"].long(), edges["space"].long()
        (tensor([0, 1, 0, 0, 1]), tensor([0, 0, 1, 0, 0]))
    """
    word = in_words(byte_ids)
    before, after = F.pad(word, (1, 0))[..., :-1], F.pad(word, (0, 1))[..., 1:]
    edges = {"last_letter": word & ~after, "space": white_space(byte_ids) & before, "first_letter": word & ~before}
    return {**edges, "any": edges["last_letter"] | edges["space"] | edges["first_letter"]}


def word_edge_share(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> dict[str, EdgeShare]:
    """Compare boundaries with each of :data:`EDGES`; see :func:`place_share`."""
    return {name: place_share(edge, boundaries, counted) for name, edge in word_edges(byte_ids).items()}


def position_from_start(byte_ids: Tensor) -> Tensor:
    """Count bytes from the start of their word: 0 at the first letter, -1 at the byte before a word.

    Bytes neither in a word nor right before one have :data:`OUTSIDE`, -2.

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
    """Count bytes back from the end of their word: 0 at the last letter, 1 before it, -1 at the byte after a word."""
    return position_from_start(byte_ids.flip(-1)).flip(-1)


def word_position_share(
    byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None
) -> dict[str, dict[str, EdgeShare]]:
    """Compare boundaries with each position in a word, from its ``"start"`` and its ``"end"``; see :func:`place_share`.

    Positions are ``"-1"`` (the byte before a word, after a word), ``"0"`` (its first byte, its last) .. ``"5"``,
    ``"6+"`` and ``"outside"``. Over those of one side shares sum to 1, and so do chances.
    """
    names = {**{str(p): p for p in range(-1, _FAR)}, f"{_FAR}+": _FAR, "outside": OUTSIDE}
    sides = {"start": position_from_start(byte_ids), "end": position_from_end(byte_ids)}
    return {
        side: {name: place_share(at.clamp(max=_FAR) == p, boundaries, counted) for name, p in names.items()}
        for side, at in sides.items()
    }


def inside_characters(byte_ids: Tensor) -> Tensor:
    """Mark bytes that are not the last of their UTF-8 character: a token that ends there splits it.

    Bytes of no well-formed character (a continuation without a start, a character that is cut off, 0xFF) count as
    characters of their own, which cannot be split.

    Example:
        >>> inside_characters(torch.tensor(list("a€é".encode()))).long()
        tensor([0, 1, 1, 0, 1, 0])
    """
    inside = torch.ones(byte_ids.shape, dtype=torch.bool, device=byte_ids.device)
    for row, marks in zip(byte_ids[None].flatten(0, -2), inside[None].flatten(0, -2), strict=True):
        letters = ids_to_bytes(row).decode("utf-8", errors="surrogateescape")  # a byte of no character: a surrogate
        sizes = [len(letter.encode("utf-8", errors="surrogateescape")) for letter in letters]
        marks[torch.tensor(sizes, dtype=torch.int64, device=marks.device).cumsum(0) - 1] = False
    return inside


def split_character_share(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> EdgeShare:
    """Compare boundaries with the bytes inside characters; see :func:`place_share`. ``chance`` is 0 for ASCII."""
    return place_share(inside_characters(byte_ids), boundaries, counted)
