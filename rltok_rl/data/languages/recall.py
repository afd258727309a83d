"""A language whose values return after filler that a window of bytes cannot bridge."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from rltok_rl.data.languages.automaton import Automaton, Moves, uniform
from rltok_rl.data.languages.boundary_language import check_alphabets, find_pieces
from rltok_rl.data.languages.gaps import GapLaw, Gaps
from rltok_rl.text import text_to_ids

KEY, QUERY = "#", "?"


class Recall(Automaton):
    """Records of a value, filler, and the value again: ``#v`` + filler + ``?v`` + separator.

        #3dbaccadb?3#0bdabcbdca?0#7a...

    The value v is one of V characters and each filler byte one of F, all equally likely; the number g of filler bytes
    is random: ``"memoryless"`` (each byte from the shortest on is the last with the same chance) or ``"uniform"`` (all
    lengths up to ``2 mean_gap - shortest_gap`` equally often). A text begins with a record.

    The best boundary is right after the value of each ``#v``: the token pooled there holds v for all bytes up to ``?``.
    A boundary a few bytes later, while the encoder still sees v, carries as much; other boundaries carry nothing. Per
    record of ``4 + E[g] + len(separator)`` bytes they are worth

        P(g + 2 > w) ln V  +  what a count of the filler says about its end, beyond w bytes.

    With memoryless gaps the second part is 0 once w reaches ``shortest_gap``. The decoder's layers see further than the
    early exit: tokens *must* carry ``floor_rate(window=visible_bytes(...)) - entropy_rate``.

    Example:
        >>> language = Recall(values="0123", shortest_gap=3, mean_gap=4.0, window=4)
        >>> bytes(language.draw(1, 20, torch.Generator().manual_seed(0)).byte_ids[0].tolist())
        b'#2ccb?2#3dcba?3#1aaa'
        >>> round(language.optimal_return_per_byte, 4)  # ln 4 / (4 + 4)
        0.1733
    """

    def __init__(
        self,
        *,
        values: str = "01234567",
        fillers: str = "abcd",
        shortest_gap: Annotated[int, "[0, 1e6]"] = 6,
        mean_gap: Annotated[float, "(0, 1e6]"] = 8.0,
        gap_law: GapLaw = "memoryless",
        separator: str = "",
        window: Annotated[int, "[1, 1e6]"] = 4,
    ) -> None:
        check_alphabets(marks=KEY + QUERY, values=values, fillers=fillers, separator=separator)
        if len(values) < 2:
            raise ValueError(f"values must hold at least 2 characters, got {values!r}")
        if not fillers:
            raise ValueError("fillers must hold at least 1 character, got ''")
        self.values, self.fillers, self.separator = values, fillers, separator
        self.gaps = Gaps(gap_law, shortest_gap, mean_gap)
        self.shortest_gap, self.mean_gap, self.gap_law = shortest_gap, mean_gap, gap_law
        super().__init__(self._moves, ("key",), lambda state: state[:2] == ("gap", 0), window=window, name="recall")

    def _moves(self, state: tuple) -> Moves:
        """The next bytes: of the gap after so many bytes, and of a value that is asked for."""
        match state:
            case ("key",):
                return {ord(KEY): (1.0, ("value",))}
            case ("value",):
                return uniform(self.values, lambda value: ("gap", 0, value))
            case ("gap", read, value):
                ends, longest = float(self.gaps.hazards[read]), len(self.gaps.hazards) - 1
                onward = ("gap", min(read + 1, longest), value)
                filler = uniform(self.fillers, lambda _: onward, share=1 - ends) if ends < 1 else {}
                return {**filler, ord(QUERY): (ends, ("answer", value))} if ends else filler
            case ("answer", value):
                return {value: (1.0, ("after", 0) if self.separator else ("key",))}
            case (_, read):
                last = read + 1 == len(self.separator)
                return {ord(self.separator[read]): (1.0, ("key",) if last else ("after", read + 1))}
        raise AssertionError(state)

    @property
    def record_length(self) -> float:
        """Mean bytes of a record."""
        return 4 + self.gaps.mean + len(self.separator)

    @property
    def boundary_rate(self) -> float:
        """One boundary per record."""
        return 1 / self.record_length

    def draw_ids(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw fresh texts, [num_rows, length] int64."""
        fixed = 4 + len(self.separator)
        num_records = -(-length // (fixed + self.shortest_gap))
        gap = self.gaps.draw((num_rows, num_records), generator)
        value = torch.randint(len(self.values), (num_rows, num_records), generator=generator)
        filler = torch.randint(len(self.fillers), (num_rows, length), generator=generator)
        record, inside = find_pieces(gap + fixed, length)
        query = 2 + gap.gather(1, record)  # place of the query in its record
        byte_ids = text_to_ids(self.fillers)[filler]
        byte_ids = torch.where(inside == 0, ord(KEY), byte_ids)
        is_value = (inside == 1) | (inside == query + 1)
        byte_ids = torch.where(is_value, text_to_ids(self.values)[value.gather(1, record)], byte_ids)
        byte_ids = torch.where(inside == query, ord(QUERY), byte_ids)
        for number, character in enumerate(self.separator):
            byte_ids = torch.where(inside == query + 2 + number, ord(character), byte_ids)
        return byte_ids

    def optimal_boundaries(self, byte_ids: Tensor) -> Tensor:
        """Mark the first byte after the value of each record, and the first column."""
        best = (byte_ids == ord(KEY)).roll(1, -1)
        best[..., 0] = True
        return best
