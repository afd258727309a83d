"""Boundaries between stems and English affixes, compared with the same place in other words.

Shapes: ``byte_ids`` [*B, T] whole texts; ``boundaries`` [*B, T] bool or 0/1, where a_t ends a token after byte t;
``counted`` [*B, T] bool, bytes whose boundary is a decision, None for all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch.nn.functional as F
from torch import Tensor

from rltok_rl.evaluation.word_edges import check_counted, place_share, position_from_end, position_from_start, ratio

AFFIXES = ("un-", "-ed", "-ing", "-ly")
"""Affixes that boundaries are compared at; a hyphen stands for the stem."""
SHORTEST_STEM = 3
"""Bytes that a stem has at least, so that ``bring`` and ``red`` count to no affix; ``string`` and ``under`` do."""


@dataclass(frozen=True)
class AffixShare:
    """Boundaries between stem and affix; nan where a ratio has no denominator."""

    places: int  # words with the affix
    covered: float  # the fraction of them that have a boundary there
    elsewhere: float  # the same at this place of all other words that are as long as the shortest with the affix

    @property
    def lift(self) -> float:
        """How many times more often there is a boundary than at this place of other words."""
        return ratio(self.covered, self.elsewhere)

    def plain(self) -> dict[str, float]:
        """Return the four numbers by name."""
        return {**asdict(self), "lift": self.lift}


def affix_places(byte_ids: Tensor, affix: str) -> tuple[Tensor, Tensor]:
    """Mark the bytes after which an affix begins (``-ing``) or ends (``un-``), and this place of other words.

    Affixes are spelling: ASCII letters of either case at the edge of a word whose rest has :data:`SHORTEST_STEM` bytes
    or more.

    Example:
        >>> import torch
        >>> places, others = affix_places(torch.tensor(list(b"Singing, garden")), "-ing")
        >>> places.nonzero().flatten().tolist(), others.nonzero().flatten().tolist()
        ([3], [11])
    """
    letters = affix.strip("-").encode()
    if affix not in (f"{letters.decode()}-", f"-{letters.decode()}") or not letters.isalpha() or not letters.islower():
        raise ValueError(f"affix must be lower-case letters with a hyphen before or after them, got {affix!r}")
    is_suffix = affix.startswith("-")
    start, end = position_from_start(byte_ids), position_from_end(byte_ids)
    long_enough = (start >= 0) & (start + end + 1 >= SHORTEST_STEM + len(letters))
    there = long_enough & (end == len(letters) if is_suffix else start == len(letters) - 1)
    small = byte_ids | 32  # lower case of letters; nothing else becomes a letter
    spelled = there
    for number, letter in enumerate(letters):
        ahead = 1 + number if is_suffix else number - len(letters) + 1  # from the marked byte
        spelled = spelled & (_ahead(small, ahead) == letter)
    return spelled, there & ~spelled


def _ahead(x: Tensor, count: int) -> Tensor:
    """Return the value so many places later (earlier if negative), 0 beyond the ends."""
    moved = F.pad(x, (0, count)) if count >= 0 else F.pad(x, (-count, 0))
    return moved[..., count:] if count >= 0 else moved[..., : x.shape[-1]]


def affix_shares(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> dict[str, AffixShare]:
    """Compare boundaries at each of :data:`AFFIXES` with those at the same place of other words."""
    counted = check_counted(counted, byte_ids, "byte_ids")
    shares = {}
    for affix in AFFIXES:
        places, others = affix_places(byte_ids, affix)
        at, elsewhere = (place_share(marks, boundaries, counted).covered for marks in (places, others))
        shares[affix] = AffixShare(int((places & counted).sum()), at, elsewhere)
    return shares
