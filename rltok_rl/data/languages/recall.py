"""A value is read, buried under filler, and asked for: only a token can have kept it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltok_rl.data.languages.boundary_language import Language, check_alphabets
from rltok_rl.data.languages.gaps import GapLaw, Gaps, binary_entropy

KEY, QUERY = "#", "?"


class Recall(Language):
    """Records of a value, filler, and the value again.

    ### Text
    One record after the other, each ``#v`` + filler + ``?v`` + separator::

        #3dbaccadb?3#0bdabcbdca?0#7a...

    The value v is one of V characters, all equally likely; every filler byte is one of F, all equally likely; the
    number g of filler bytes is random. A text begins with the first byte of a record.

    ### Best boundaries
    One right after the value of each ``#v``: the token that is pooled there holds v, and serves or is remembered by all
    bytes up to ``?``. A boundary a few bytes later, as long as the encoder still sees v, carries as much. Any further
    boundary is worth nothing, and costs whatever the rate control or the price makes it cost.

    ### What they are worth
    Per record of ``4 + E[g] + len(separator)`` bytes

        P(g + 2 > w) ln V  +  what a count of the filler says about its end, beyond w bytes.

    With memoryless gaps the second part is 0 as soon as w reaches ``shortest_gap``. The whole model sees further
    without tokens than the early exit does, if it has decoder layers: what tokens *must* carry is
    ``floor_rate(window=visible_bytes(...)) - entropy_rate``.

    ### Arguments
    Args:
        values: V characters, one byte each.
        fillers: F characters, one byte each.
        shortest_gap: filler bytes at least.
        mean_gap: filler bytes on average.
        gap_law: ``"memoryless"`` (each byte from the shortest on is the last with the same chance: nothing to count)
            or ``"uniform"`` (all lengths up to ``2 mean_gap - shortest_gap`` equally often).
        separator: written after every record; no character twice.
        window: bytes that the floor, the best early exit, has read.

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
        self.gaps = Gaps.make(gap_law, shortest_gap, mean_gap)
        self.shortest_gap, self.mean_gap, self.gap_law = shortest_gap, mean_gap, gap_law

    @property
    def alphabet(self) -> bytes:
        """Marks, values, fillers and separator."""
        return bytes(sorted((KEY + QUERY + self.values + self.fillers + self.separator).encode()))

    @property
    def record_length(self) -> float:
        """Bytes of a record on average."""
        return 4 + self.gaps.mean + len(self.separator)

    @property
    def boundary_rate(self) -> float:
        """One boundary per record."""
        return 1 / self.record_length

    def draw_ids(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Fresh texts, [num_rows, length] int64."""
        fixed = 4 + len(self.separator)
        num_records = -(-length // (fixed + self.shortest_gap))
        gap = self.gaps.draw((num_rows, num_records), generator)
        value = torch.randint(len(self.values), (num_rows, num_records), generator=generator)
        filler = torch.randint(len(self.fillers), (num_rows, length), generator=generator)
        ends = (gap + fixed).cumsum(1)  # [n, records] where each record ends
        place = torch.arange(length).expand(num_rows, -1).contiguous()
        record = torch.searchsorted(ends, place, right=True)  # [n, length] whose byte this is
        asked = (ends - len(self.separator) - 2).gather(1, record)  # where its query stands
        inside = place - (ends - gap - fixed).gather(1, record)  # bytes since its key
        byte_ids = _ids(self.fillers)[filler]
        byte_ids = torch.where(inside == 0, ord(KEY), byte_ids)
        byte_ids = torch.where(place == asked, ord(QUERY), byte_ids)
        is_value = (inside == 1) | (place == asked + 1)
        byte_ids = torch.where(is_value, _ids(self.values)[value.gather(1, record)], byte_ids)
        for number, character in enumerate(self.separator):
            byte_ids = torch.where(place == asked + 2 + number, ord(character), byte_ids)
        return byte_ids

    def optimal_boundaries(self, byte_ids: Tensor) -> Tensor:
        """True right after the value of each record, and in the first column."""
        best = torch.zeros_like(byte_ids, dtype=torch.bool)
        best[..., 1:] = byte_ids[..., :-1] == ord(KEY)
        best[..., 0] = True
        return best

    def ideal_log_prob(self, byte_ids: Tensor) -> Tensor:
        """Log-probability of every byte given all before it, [*B, T] float64."""
        return self._log_prob(byte_ids, None)

    def floor_log_prob(self, byte_ids: Tensor, *, window: int | None = None) -> Tensor:
        """Log-probability of every byte given the ``window`` bytes before it, [*B, T] float64."""
        return self._log_prob(byte_ids, self._window(window))

    def _log_prob(self, byte_ids: Tensor, window: int | None) -> Tensor:
        """Bayes' rule for one who has read everything (None) or ``window`` bytes."""
        length = byte_ids.shape[-1]
        here = torch.arange(length).expand(byte_ids.shape)
        key, query = (_last_before(byte_ids == ord(mark), here) for mark in (KEY, QUERY))
        asked = query > key  # the record's query has been read
        read = here - key - 2  # filler bytes read, where it has not; -1: the value comes next
        after = here - query - 1  # bytes read after the query; 0: the answer comes next
        value = byte_ids.gather(-1, (key + 1).clamp(min=0))
        sees_value = torch.ones_like(asked) if window is None else key + 1 >= here - window

        is_value = torch.isin(byte_ids, _ids(self.values)).double()  # float64 from here on
        is_filler = torch.isin(byte_ids, _ids(self.fillers)).double()
        any_value = is_value / len(self.values)
        hazard = self.gaps.hazard(read)
        if window is not None:
            hazard = torch.where(sees_value, hazard, self.gaps.blurred_hazard(window))
        in_gap = hazard * (byte_ids == ord(QUERY)) + (1 - hazard) / len(self.fillers) * is_filler
        answer = torch.where(sees_value, (byte_ids == value).double(), any_value)
        tail = _ids(self.separator + KEY)  # what follows an answer
        closing = (byte_ids == tail[(after - 1).clamp(min=0, max=len(tail) - 1)]).double()
        prob = torch.where(asked, torch.where(after == 0, answer, closing), in_gap)
        if window == 1:  # a value alone may be a record's own or an answer, one as often as the other
            alone = torch.where(asked, after == 1, read == 0)
            first = self.gaps.hazards[0]
            opening = first * (byte_ids == ord(QUERY)) + (1 - first) / len(self.fillers) * is_filler
            prob = torch.where(alone, (opening + (byte_ids == tail[0])) / 2, prob)
        prob = torch.where(~asked & (read == -1), any_value, prob)
        prob = torch.where(here == 0, (byte_ids == ord(KEY)).double(), prob)
        return prob.masked_fill((prob == 0).cummax(-1).values, 0).log()

    @property
    def entropy_rate(self) -> float:
        """``(ln V + H(g) + E[g] ln F) / record_length``."""
        return (math.log(len(self.values)) + self.gaps.entropy + self._filler_cost) / self.record_length

    def floor_rate(self, *, window: int | None = None) -> float:
        """What a byte costs one who has read ``window`` bytes, in nats.

        Per record, h_k being the chance that filler ends after k bytes and h* that chance for one who sees filler only:

            ln V (1 + P(g + 2 > w))  +  sum_{k < w} P(g >= k) H(h_k)  +  sum_{k >= w} P(g >= k) H(h*)  +  E[g] ln F

        and with w = 1 another 2 ln 2: after a value alone, nobody knows whether it was asked for.
        """
        w, gaps = self._window(window), self.gaps
        counted = sum(float(gaps.at_least(k) * binary_entropy(gaps.hazard(torch.tensor(k)))) for k in range(w))
        blurred = float(gaps.tail(w) * binary_entropy(gaps.blurred_hazard(w)))
        values = math.log(len(self.values)) * (1 + float(gaps.at_least(max(w - 1, 0))))
        confused = 2 * math.log(2) if w == 1 else 0.0
        return (values + counted + blurred + confused + self._filler_cost) / self.record_length

    @property
    def _filler_cost(self) -> float:
        return self.gaps.mean * math.log(len(self.fillers))


def _ids(characters: str) -> Tensor:
    return torch.tensor(list(characters.encode()), dtype=torch.int64)


def _last_before(found: Tensor, here: Tensor) -> Tensor:
    """Index of the last True before each place, -1 where there is none: [*B, T]."""
    last = torch.where(found, here, -1).cummax(-1).values
    return torch.cat((torch.full_like(last[..., :1], -1), last[..., :-1]), -1)
