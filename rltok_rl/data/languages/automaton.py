"""Languages of finite automata: a few lines define the text, and all probabilities follow exactly."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rltok_rl.data.languages.boundary_language import Language, log_until_impossible
from rltok_rl.utils import check_count

Moves = Mapping[int, tuple[float, Hashable]]
"""The next bytes of a state: their probabilities, which sum to 1, and the states that they lead to."""
_LARGEST = 1 << 23  # numbers in memory at a time
_MOST_WINDOWS = 1 << 21  # whose probabilities are remembered


class Automaton(Language):
    """A language whose next byte depends on a state, and whose next state on that byte.

    A reader of the whole text knows the state, which is the ideal predictor. A reader of the last w bytes knows a
    probability of each state: the stationary one, filtered by w bytes (Bayes' rule). A text begins in state ``start``;
    a window that reaches its beginning knows that.

    Args:
        moves: the next bytes of a state, whatever the state is.
        start: state before the first byte.
        best: whether a token should end after the byte that led to a state.
        window: bytes that the floor has read.
        name: short name.
        place: where in a text a state is, which a :class:`~rltok_rl.data.languages.reader.PerfectReader` always knows;
            None if it knows nothing but bytes.

    Example:
        >>> coin = {0: {97: (0.5, 1), 98: (0.5, 0)}, 1: {99: (1.0, 0)}}  # a is always followed by c
        >>> language = Automaton(coin.__getitem__, 0, lambda state: state == 1, window=1, name="coin")
        >>> bytes(language.draw(1, 8, torch.Generator().manual_seed(0)).byte_ids[0].tolist())
        b'bbbacacb'
        >>> round(language.entropy_rate, 4)  # ln 2 in two of three bytes
        0.4621
    """

    def __init__(
        self,
        moves: Callable[[Any], Moves],
        start: Hashable,
        best: Callable[[Any], bool],
        *,
        window: int,
        name: str,
        place: Callable[[Any], Hashable] | None = None,
    ) -> None:
        super().__init__(window=window)
        self.name = name
        self._windows: dict[int, Tensor] = {}  # by length, probabilities of all windows; -1 before they are needed
        order, reached = {start: 0}, [start]
        rows: list[Moves] = []
        while len(rows) < len(reached):
            rows.append(moves(reached[len(rows)]))
            for _, state in rows[-1].values():
                if state not in order:
                    order[state] = len(reached)
                    reached.append(state)
        self._bytes = sorted({byte for row in rows for byte in row})
        symbol = {byte: number for number, byte in enumerate(self._bytes)}
        self._chance = torch.zeros(len(rows), len(symbol), dtype=torch.float64)  # [S, A]
        self._next = torch.zeros(len(rows), len(symbol), dtype=torch.int64)
        for number, row in enumerate(rows):
            for byte, (chance, state) in row.items():
                self._chance[number, symbol[byte]] = chance
                self._next[number, symbol[byte]] = order[state]
        wrong = (self._chance.sum(1) - 1).abs() > 1e-9
        if wrong.any():
            state = reached[int(wrong.nonzero()[0])]
            raise ValueError(f"moves({state!r}) must sum to 1, got {float(self._chance[order[state]].sum())}")
        self._best = torch.tensor([bool(best(state)) for state in reached])
        places = [place(state) if place else None for state in reached]
        self._place = torch.tensor([*map(places.index, places)])  # [S]

    @property
    def alphabet(self) -> bytes:
        """All bytes that occur."""
        return bytes(self._bytes)

    def draw_ids(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw fresh texts, [num_rows, length] int64."""
        uniforms = torch.rand(num_rows, length, generator=generator, dtype=torch.float64)
        below = self._chance.cumsum(1)
        below[:, -1] = 1.0
        limits, following, symbols = below.tolist(), self._next.tolist(), []
        for row in uniforms.tolist():  # plain numbers: 5 times as fast as tensors for 16 rows, half as fast for 256
            state = 0
            for uniform in row:
                symbol = bisect_right(limits[state], uniform)
                symbols.append(symbol)
                state = following[state][symbol]
        return torch.tensor(self._bytes)[torch.tensor(symbols, dtype=torch.int64).view(num_rows, length)]

    def optimal_boundaries(self, byte_ids: Tensor) -> Tensor:
        """Return where tokens should end, [*B, T] bool; the first column is True."""
        states, _ = self._follow(self._symbols(byte_ids))
        best = self._best[states[:, 1:]].view(byte_ids.shape)
        best[..., 0] = True
        return best

    def ideal_log_prob(self, byte_ids: Tensor) -> Tensor:
        """Return log p_ideal, [*B, T] float64."""
        _, prob = self._follow(self._symbols(byte_ids))
        return log_until_impossible(prob).view(byte_ids.shape)

    def floor_log_prob(self, byte_ids: Tensor, *, window: int | None = None) -> Tensor:
        """Return log p_floor, [*B, T] float64."""
        window, symbols = self._window(window), self._symbols(byte_ids)
        prob = self._follow(symbols[:, :window])[1]
        if symbols.shape[1] > window:
            seen = symbols.unfold(1, window + 1, 1).flatten(0, 1)  # [n, w + 1]
            prob = torch.cat((prob, self._remembered(seen).view(len(symbols), -1)), 1)
        return log_until_impossible(prob).view(byte_ids.shape)

    def _remembered(self, seen: Tensor) -> Tensor:
        """Probability [n] of the last symbol of windows [n, w + 1], each computed once if there are few of them."""
        base, length = len(self._bytes) + 1, seen.shape[1]  # -1 is a symbol, too
        if base**length > _MOST_WINDOWS:
            return self._predict(seen)
        if length not in self._windows:
            self._windows[length] = torch.full((base**length,), -1.0, dtype=torch.float64)
        known, code = self._windows[length], ((seen + 1) * base ** torch.arange(length)).sum(1)
        new = (known[code] < 0).nonzero().squeeze(1)
        if len(new):
            known[code[new]] = self._predict(seen[new])
        return known[code]

    def _predict(self, seen: Tensor) -> Tensor:
        """Probability [n] of the last symbol, given those before it anywhere in an endless text."""
        parts = seen.split(max(1, _LARGEST // len(self._chance)))
        return torch.cat([self._predict_part(part) for part in parts])

    def _predict_part(self, seen: Tensor) -> Tensor:
        belief = self.stationary.expand(len(seen), -1)
        for symbol in seen[:, :-1].unbind(1):
            belief = self._filter(belief, symbol)
        total = belief.sum(1)
        prob = (belief * self._columns(self._chance, seen[:, -1])).sum(1)
        return torch.where(total > 0, prob / total, 0.0)

    def _filter(self, belief: Tensor, symbol: Tensor) -> Tensor:
        """Joint probability [n, S] of the states after a symbol [n], and of all symbols so far."""
        joint = belief * self._columns(self._chance, symbol)
        return torch.zeros_like(joint).scatter_add_(1, self._columns(self._next, symbol), joint)

    def _columns(self, table: Tensor, symbol: Tensor) -> Tensor:
        return table.t()[symbol.clamp(min=0)] * (symbol >= 0)[:, None]

    def _symbols(self, byte_ids: Tensor) -> Tensor:
        """[*B, T] bytes to [n, T] symbols, -1 for bytes that never occur."""
        table = torch.full((256,), -1)
        table[torch.tensor(self._bytes)] = torch.arange(len(self._bytes))
        return table[byte_ids].view(-1, byte_ids.shape[-1])

    def _follow(self, symbols: Tensor) -> tuple[Tensor, Tensor]:
        """States [n, T + 1] before and after each byte, and the probability [n, T] of each."""
        states = [symbols.new_zeros(len(symbols))]
        for symbol in symbols.unbind(1):
            states.append(self._next[states[-1], symbol])
        followed = torch.stack(states, 1)
        return followed, self._chance[followed[:, :-1], symbols] * (symbols >= 0)

    @cached_property
    def stationary(self) -> Tensor:
        """Share of an endless text's bytes [S] before which it is in each state."""
        flow = torch.zeros(len(self._chance), len(self._chance), dtype=torch.float64)
        flow.scatter_add_(1, self._next, self._chance)  # [from, to]
        kept = _recurring(flow > 0)
        flow = flow[kept][:, kept]
        # States are taken out one at a time (Grassmann, Taksar and Heyman, 1985): no subtraction, and the same bits in
        # every process, which solvers of LAPACK do not promise.
        for last in range(len(flow) - 1, 0, -1):
            flow[:last, last] /= flow[last, :last].sum()
            flow[:last, :last] += flow[:last, last, None] * flow[last, :last]
        share = torch.ones(len(flow), dtype=torch.float64)
        for state in range(1, len(flow)):
            share[state] = (share[:state] * flow[:state, state]).sum()
        return torch.zeros(len(self._chance), dtype=torch.float64).index_copy_(0, kept, share / share.sum())

    @property
    def entropy_rate(self) -> float:
        """``sum_s pi_s H(s)``, in nats."""
        return float(-(self.stationary[:, None] * torch.xlogy(self._chance, self._chance)).sum())

    @property
    def boundary_rate(self) -> float:
        """Optimal boundaries per byte."""
        return float(self.stationary[self._best].sum())

    @cached_property
    def alike(self) -> tuple[Tensor, Tensor]:
        """Group symbols with identical transitions: one of each kind, and how many it has, [kinds] int64 both."""
        tables = torch.cat((self._chance, self._next.double()))
        _, kind = tables.unique(dim=1, return_inverse=True)
        first = torch.tensor([int((kind == number).nonzero()[0]) for number in range(int(kind.max()) + 1)])
        return first, torch.bincount(kind)

    def floor_rate(self, *, window: int | None = None) -> float:
        """Return the mean cost of a byte to a predictor that has read ``window`` bytes, in nats.

        Sums over all windows that occur. Those that leave the same belief are merged, as are bytes that change every
        state alike, so that long windows and large alphabets stay cheap.
        """
        window, (first, alike) = self._window(window), self.alike
        beliefs = self.stationary[None]  # [K, S], whose sums are the chances of their windows
        for _ in range(window):
            after = [
                self._filter(beliefs, symbol.expand(len(beliefs))) * n for symbol, n in zip(first, alike, strict=True)
            ]
            beliefs = _merge(torch.cat(after))
        chances = beliefs @ self._chance[:, first]  # [K, kinds]
        relative = chances / beliefs.sum(1, keepdim=True)
        return float(-(alike * torch.xlogy(chances, relative)).sum())


def _recurring(moves: Tensor) -> Tensor:
    """Return the states that an endless text comes back to, given the possible moves [from, to]."""
    reach = moves | torch.eye(len(moves), dtype=torch.bool)
    for _ in range(len(moves).bit_length()):  # twice as many moves each time
        reach = (reach.float() @ reach.float()) > 0
    kept = (reach <= reach.t()).all(1).nonzero().squeeze(1)  # all states that follow lead back
    if not reach[kept[0], kept].all():
        raise ValueError("moves must lead every text to the same recurring states, got several separate sets of states")
    return kept


def _merge(joint: Tensor) -> Tensor:
    """Add up rows [K, S] that are multiples of each other; drop those without weight."""
    weight = joint.sum(1)
    joint, weight = joint[weight > 0], weight[weight > 0]
    shape = (joint / weight[:, None]).mul(1e10).round()
    unique, place = shape.unique(dim=0, return_inverse=True)
    return torch.zeros(len(unique), joint.shape[1], dtype=joint.dtype).index_add_(0, place, joint)


def uniform(
    symbols: bytes | str, lead: Callable[[int], Hashable], share: float = 1.0
) -> dict[int, tuple[float, Hashable]]:
    """Return moves by equally likely bytes, whose chances sum to ``share``; ``lead`` maps a byte to its state."""
    symbols = symbols.encode() if isinstance(symbols, str) else symbols
    check_count("the number of symbols", len(symbols))
    return {byte: (share / len(symbols), lead(byte)) for byte in symbols}
