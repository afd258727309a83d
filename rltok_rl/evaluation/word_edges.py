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

from rltok_rl.utils import check_count

EDGES = ("last_letter", "space", "first_letter", "any")
"""Places at the edge of a word; ``any`` is the union of the three."""
OUTSIDE = -2
"""Position of bytes that neither belong to a word nor touch one on the side that is counted from."""
_SPACES = tuple(b" \t\n\r\f\v")
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

        share   = #{t counted: a_t = 1, t in places} / #{t counted: a_t = 1}
        chance  = #{t counted: t in places} / #{t counted}
        covered = #{t counted: a_t = 1, t in places} / #{t counted: t in places}

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
    """Mark blanks, tabs, line feeds, carriage returns, form feeds and vertical tabs.

    Example:
        >>> white_space(torch.tensor(list(b"to be"))).int()
        tensor([0, 0, 1, 0, 0], dtype=torch.int32)
    """
    return torch.isin(byte_ids, torch.tensor(_SPACES, device=byte_ids.device))


def white_space_share(byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None) -> EdgeShare:
    """Compare boundaries with white space; see :func:`place_share`.

    Example:
        >>> at = white_space_share(torch.tensor(list(b"to be or")), torch.tensor([1, 0, 1, 0, 0, 0, 0, 0]))
        >>> at.share, at.covered, at.lift  # one of two boundaries, one of two spaces; two of eight bytes are spaces
        (0.5, 0.5, 2.0)
    """
    return place_share(white_space(byte_ids), boundaries, counted)


def in_words(byte_ids: Tensor) -> Tensor:
    """Mark bytes of words: ASCII letters and digits, and all bytes beyond ASCII.

    Example:
        >>> in_words(torch.tensor(list(b"R2, d"))).int()
        tensor([1, 1, 0, 0, 1], dtype=torch.int32)
    """
    lower = byte_ids | 0x20  # maps capitals to small letters, and nothing else to a letter
    letter = (lower >= ord("a")) & (lower <= ord("z"))
    digit = (byte_ids >= ord("0")) & (byte_ids <= ord("9"))
    return letter | digit | ((byte_ids >= 128) & (byte_ids < 256))


def word_edges(byte_ids: Tensor) -> dict[str, Tensor]:
    """Mark the last letter of each word, the space right after a word, and the first letter of each word.

    A word of one letter is both its first and its last. Beyond the ends of a text there is no word.

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
    """Compare boundaries with each of :data:`EDGES`; see :func:`place_share`.

    Example:
        >>> text = torch.tensor(list(b"to be or"))
        >>> shares = word_edge_share(text, torch.tensor([0, 1, 0, 0, 1, 0, 0, 0]))
        >>> shares["last_letter"].share, shares["last_letter"].chance, round(shares["last_letter"].covered, 3)
        (1.0, 0.375, 0.667)
    """
    return {name: place_share(edge, boundaries, counted) for name, edge in word_edges(byte_ids).items()}


def position_from_start(byte_ids: Tensor) -> Tensor:
    """Count bytes from the start of their word: 0 at the first letter, -1 at the byte before a word.

        p_t = t - s,    s the last first letter at or before t;    -1 where x_{t+1} begins a word and x_t is in none

    Returns:
        [*B, T] int64; :data:`OUTSIDE` for bytes neither in a word nor right before one.

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
    """Count bytes back from the end of their word: 0 at the last letter, 1 before it, -1 at the byte after a word.

    Example:
        >>> position_from_end(torch.tensor(list(b"be, or")))
        tensor([ 1,  0, -1, -2,  1,  0])
    """
    return position_from_start(byte_ids.flip(-1)).flip(-1)


def word_position_share(
    byte_ids: Tensor, boundaries: Tensor, counted: Tensor | None = None, *, most: int = 6
) -> dict[str, dict[str, EdgeShare]]:
    """Compare boundaries with each position in a word; see :func:`place_share`.

    Over the positions of one side shares sum to 1, and so do chances. With k = ``most``:

    Returns:
        For ``"start"`` and ``"end"``, the shares at ``"-1"`` (the byte before a word, after a word), ``"0"`` (its first
        byte, its last) .. ``"k-1"``, ``"k+"`` and ``"outside"``.

    Example:
        >>> text = torch.tensor(list(b"to be or"))
        >>> shares = word_position_share(text, torch.tensor([0, 0, 1, 0, 0, 1, 0, 0]), most=1)
        >>> {name: (at.share, at.chance) for name, at in shares["end"].items()}
        {'-1': (1.0, 0.25), '0': (0.0, 0.375), '1+': (0.0, 0.375), 'outside': (0.0, 0.0)}
    """
    most = check_count("most", most)
    names = {**{str(p): p for p in range(-1, most)}, f"{most}+": most, "outside": OUTSIDE}
    sides = {"start": position_from_start(byte_ids), "end": position_from_end(byte_ids)}
    return {
        side: {name: place_share(at.clamp(max=most) == p, boundaries, counted) for name, p in names.items()}
        for side, at in sides.items()
    }


def inside_characters(byte_ids: Tensor) -> Tensor:
    """Mark bytes that are not the last of their UTF-8 character: a token that ends there splits it.

    Bytes of no well-formed character (a continuation without a start, a character that is cut off, 0xFF) count as
    characters of their own, which cannot be split.

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
    """Compare boundaries with the bytes inside characters; see :func:`place_share`. ``chance`` is 0 for ASCII.

    Example:
        >>> split_character_share(torch.tensor(list("aéb".encode())), torch.tensor([1, 1, 0, 0]))
        EdgeShare(share=0.5, chance=0.25, covered=1.0)
    """
    return place_share(inside_characters(byte_ids), boundaries, counted)
