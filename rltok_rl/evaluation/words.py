"""How often boundaries lie at the edges of words, beside what chance would do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

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
