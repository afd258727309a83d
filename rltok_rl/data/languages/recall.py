"""A language whose values return after filler that a window of bytes cannot bridge."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltok_rl.data.languages.boundary_language import Language, check_alphabets, find_pieces, log_until_impossible
from rltok_rl.data.languages.gaps import GapLaw, Gaps, binary_entropy
from rltok_rl.text import text_to_ids

KEY, QUERY = "#", "?"


class Recall(Language):
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

    name = "recall"

    def __init__(
        self,
        *,
        values: str = "01234567",
        fillers: str = "abcd",
        shortest_gap: int = 6,
        mean_gap: float = 8.0,
        gap_law: GapLaw = "memoryless",
        separator: str = "",
        window: int = 4,
    ) -> None:
        super().__init__(window=window)
        check_alphabets(marks=KEY + QUERY, values=values, fillers=fillers, separator=separator)
        if len(values) < 2:
            raise ValueError(f"values must hold at least 2 characters, got {values!r}")
        if not fillers:
            raise ValueError("fillers must hold at least 1 character, got ''")
        self.values, self.fillers, self.separator = values, fillers, separator
        self.gaps = Gaps(gap_law, shortest_gap, mean_gap)
        self.shortest_gap, self.mean_gap, self.gap_law = shortest_gap, mean_gap, gap_law
        self._filler_cost = self.gaps.mean * math.log(len(fillers))

    @property
    def alphabet(self) -> bytes:
        """Marks, values, fillers and separator."""
        return bytes(sorted((KEY + QUERY + self.values + self.fillers + self.separator).encode()))

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

    def ideal_log_prob(self, byte_ids: Tensor) -> Tensor:
        """Return log p_ideal, [*B, T] float64."""
        return self._log_prob(byte_ids, None)

    def floor_log_prob(self, byte_ids: Tensor, *, window: int | None = None) -> Tensor:
        """Return log p_floor, [*B, T] float64."""
        return self._log_prob(byte_ids, self._window(window))

    def _log_prob(self, byte_ids: Tensor, window: int | None) -> Tensor:
        """Bayes' rule for a predictor that has read everything (None) or ``window`` bytes."""
        here = torch.arange(byte_ids.shape[-1]).expand(byte_ids.shape)
        key, query = (_last_before(byte_ids == ord(mark), here) for mark in (KEY, QUERY))
        asked = query > key  # the record's query has been read
        read = here - key - 2  # filler bytes read, before the query; -1: the value comes next
        after = here - query - 1  # bytes read after the query; 0: the answer comes next
        value = byte_ids.gather(-1, (key + 1).clamp(min=0))
        sees_value = torch.ones_like(asked) if window is None else key + 1 >= here - window

        is_value, is_filler = (torch.isin(byte_ids, text_to_ids(x)).double() for x in (self.values, self.fillers))
        any_value = is_value / len(self.values)  # float64 from here on
        hazard = self.gaps.hazard(read)
        if window is not None:
            hazard = torch.where(sees_value, hazard, self.gaps.blurred_hazard(window))
        in_gap = hazard * (byte_ids == ord(QUERY)) + (1 - hazard) / len(self.fillers) * is_filler
        answer = torch.where(sees_value, (byte_ids == value).double(), any_value)
        tail = text_to_ids(self.separator + KEY)  # what follows an answer
        closing = (byte_ids == tail[(after - 1).clamp(min=0, max=len(tail) - 1)]).double()
        prob = torch.where(asked, torch.where(after == 0, answer, closing), in_gap)
        if window == 1:  # a single value is a record's first or an answer, each equally often
            alone = torch.where(asked, after == 1, read == 0)
            first = self.gaps.hazards[0]
            opening = first * (byte_ids == ord(QUERY)) + (1 - first) / len(self.fillers) * is_filler
            prob = torch.where(alone, (opening + (byte_ids == tail[0])) / 2, prob)
        prob = torch.where(~asked & (read == -1), any_value, prob)
        prob = torch.where(here == 0, (byte_ids == ord(KEY)).double(), prob)
        return log_until_impossible(prob)

    @property
    def entropy_rate(self) -> float:
        """``(ln V + H(g) + E[g] ln F) / record_length``."""
        return (math.log(len(self.values)) + self.gaps.entropy + self._filler_cost) / self.record_length

    def floor_rate(self, *, window: int | None = None) -> float:
        """Return the mean cost of a byte to a predictor that has read ``window`` bytes, in nats.

        Per record, with the chance h_k that filler ends after k bytes, and h* if only filler is in sight:

            ln V (1 + P(g + 2 > w))  +  sum_{k < w} P(g >= k) H(h_k)  +  sum_{k >= w} P(g >= k) H(h*)  +  E[g] ln F

        A window of one byte pays 2 ln 2 more: a single value may be a record's first or an answer.
        """
        w, gaps = self._window(window), self.gaps
        counted = sum(float(gaps.at_least(k) * binary_entropy(gaps.hazard(torch.tensor(k)))) for k in range(w))
        blurred = float(gaps.tail(w) * binary_entropy(gaps.blurred_hazard(w)))
        values = math.log(len(self.values)) * (1 + float(gaps.at_least(max(w - 1, 0))))
        confused = 2 * math.log(2) if w == 1 else 0.0
        return (values + counted + blurred + confused + self._filler_cost) / self.record_length


def _last_before(marks: Tensor, here: Tensor) -> Tensor:
    """Index of the last True before each place, or -1: [*B, T]."""
    last = torch.where(marks, here, -1).cummax(-1).values
    return torch.cat((torch.full_like(last[..., :1], -1), last[..., :-1]), -1)
