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
    """Boundaries at one kind of edge."""

    share: float  # of the boundaries, those that lie there; nan where there are no boundaries
    chance: float  # what the share would be on average if as many boundaries lay anywhere
    covered: float  # of such places, those that have a boundary; nan where there are no such places

    @property
    def lift(self) -> float:
        """How many times more often than by chance; nan where that cannot be said."""
        return self.share / self.chance if self.chance else math.nan


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
    lower = byte_ids | 0x20  # of letters; what else it hits is no letter before or after
    letter = (lower >= ord("a")) & (lower <= ord("z"))
    digit = (byte_ids >= ord("0")) & (byte_ids <= ord("9"))
    word = letter | digit | ((byte_ids >= 128) & (byte_ids < 256))
    before, after = F.pad(word, (1, 0))[..., :-1], F.pad(word, (0, 1))[..., 1:]
    space = torch.isin(byte_ids, torch.tensor(_SPACES, device=byte_ids.device))
    edges = {"last_letter": word & ~after, "space": space & before, "first_letter": word & ~before}
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
    for name, given in (("boundaries", boundaries), ("counted", counted)):
        if given is not None and given.shape != byte_ids.shape:
            raise ValueError(f"{name} must have the shape of byte_ids, {[*byte_ids.shape]}, got {[*given.shape]}")
    counted = torch.ones_like(byte_ids, dtype=torch.bool) if counted is None else counted
    if not bool(counted.any()):
        raise ValueError("counted must hold at least one byte, got none")
    drawn = boundaries.bool() & counted

    def ratio(part: Tensor, whole: Tensor) -> float:
        return int(part.sum()) / int(whole.sum()) if bool(whole.any()) else math.nan

    shares = {}
    for name, edge in word_edges(byte_ids).items():
        there = edge & counted
        shares[name] = EdgeShare(ratio(drawn & edge, drawn), ratio(there, counted), ratio(drawn & edge, there))
    return shares
