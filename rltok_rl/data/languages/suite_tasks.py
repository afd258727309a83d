"""Ten languages that isolate a capability each, in four grades of difficulty.

Each record stores values that are asked for later, further back than bytes see: ``#3`` filler ``?3``. Tokens should end
after the bytes that will be asked for. How often they may end is the task's rate, its best boundaries per byte.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from rltok_rl.data.languages.automaton import Automaton
from rltok_rl.data.languages.boundary_language import Language
from rltok_rl.data.languages.grammar import Memory, Node, gap, grammar
from rltok_rl.data.windows import Places, Windows, WindowSource
from rltok_rl.utils import check_count

VALUES, FILLERS = b"01234567", b"abcd"
SHORTEST, MEAN = 6, 8.0
"""Bytes of filler between a value and its query: further than 7 visible bytes reach."""


def _store(memory: Memory, byte: int) -> int:
    return byte


def _recall(memory: Memory) -> bytes:
    return bytes([memory])


def _forget(*_: Any) -> None:
    return None


def _filler(then: Mapping[str, float], *, name: str = "gap") -> dict[str, Node]:
    return gap(name, FILLERS, SHORTEST, MEAN, then)


def _records(others: Mapping[str, Node] | None = None, *, mark: bytes = b"#") -> dict[str, Node]:
    """Return the nodes of ``mark`` value filler ``?`` value; ``others`` are added, or replace those of their names."""
    return {
        "mark": Node(mark, {"value": 1.0}),
        "value": Node(VALUES, {"gap": 1.0}, _store, ends_token=True),
        **_filler({"query": 1.0}),
        "query": Node(b"?", {"answer": 1.0}),
        "answer": Node(_recall, {"mark": 1.0}, _forget),
        **(others or {}),
    }


def recall_tight(dial: float, *, window: int = 4) -> Automaton:
    """Ask for the last value; the dial is the rate, in multiples of the best boundaries'."""
    return grammar(_records(), {"mark": 1.0}, window=window, name="recall-tight")


def delay(dial: int, *, window: int = 4) -> Automaton:
    """Ask for the last value after ``dial`` bytes of filler on average."""
    return grammar(
        _records(gap("gap", FILLERS, SHORTEST, dial, {"query": 1.0})), {"mark": 1.0}, window=window, name="delay"
    )


def noise(dial: int, *, window: int = 4) -> Automaton:
    """Ask for the last value after filler of ``dial`` different bytes."""
    fillers = FILLERS + bytes(set(range(256)) - set(b"#?" + VALUES + FILLERS))
    if not 1 <= dial <= len(fillers):
        raise ValueError(f"dial must lie in 1..{len(fillers)}, got {dial}")
    others = gap("gap", fillers[:dial], SHORTEST, MEAN, {"query": 1.0})
    return grammar(_records(others), {"mark": 1.0}, window=window, name="noise")


def decoy(dial: float, *, window: int = 4) -> Automaton:
    """Ask for the last value; on average ``dial`` decoys, ``!5``, are in the filler and are never asked for."""
    asked = 1 / (1 + dial)
    others = {
        **_filler({"query": asked, "decoy": 1 - asked}),
        "decoy": Node(b"!", {"decoy value": 1.0}),
        "decoy value": Node(VALUES, {f"gap{SHORTEST}": 1.0}),
    }
    return grammar(_records(others), {"mark": 1.0}, window=window, name="decoy")


def knapsack(dial: int, *, window: int = 4) -> Automaton:
    """Store values of ``dial`` kinds with 2 to 32 possible values each; there are tokens for the larger half."""
    marks, values = string.ascii_uppercase[:dial].encode(), (string.digits + string.ascii_lowercase[4:]).encode()
    if not 2 <= dial <= len(string.ascii_uppercase):
        raise ValueError(f"dial must lie in 2..{len(string.ascii_uppercase)}, got {dial}")
    sizes = [round(2 * 16 ** (kind / (dial - 1))) for kind in range(dial)]
    kinds = {f"mark {kind}": 1 / dial for kind in range(dial)}
    others = {"answer": Node(_recall, kinds, _forget)}
    for kind, size in enumerate(sizes):
        others[f"mark {kind}"] = Node(marks[kind : kind + 1], {f"value {kind}": 1.0})
        kept = kind >= dial // 2
        others[f"value {kind}"] = Node(values[:size], {"gap": 1.0}, _store, ends_token=kept)
    return grammar(_records(others), kinds, window=window, name="knapsack")


def pair(dial: int, *, window: int = 4) -> Automaton:
    """Store two of ``dial`` values and ask for their sum modulo ``dial``, about which either alone says nothing."""
    values = VALUES[: check_count("dial", dial, minimum=2)]
    if dial > len(VALUES):
        raise ValueError(f"dial must be at most {len(VALUES)}, got {dial}")
    others = {
        "value": Node(values, {"gap": 1.0}, _store, ends_token=True),
        **_filler({"plus": 1.0}),
        "plus": Node(b"+", {"second": 1.0}),
        "second": Node(
            values,
            {"gap after": 1.0},
            lambda first, byte: values[(values.index(first) + values.index(byte)) % dial],
            ends_token=True,
        ),
        **_filler({"query": 1.0}, name="gap after"),
    }
    return grammar(_records(others), {"mark": 1.0}, window=window, name="pair")


def clock(dial: int, *, window: int = 4) -> Automaton:
    """Repeat the first byte of each period of ``dial`` digits at the end of the next one.

    Only dots, which end a row of periods in one of eight, show where the next one begins.
    """
    digits = VALUES[:4]
    onward = {"first": 7 / 8, "dot": 1 / 8}
    nodes = {
        "dot": Node(b".", {"dot": 1 / 2, "first": 1 / 2}),
        "first": Node(digits, {"digit 1": 1.0}, lambda memory, byte: (memory[1], byte), ends_token=True),
        **{f"digit {number}": Node(digits, {f"digit {number + 1}": 1.0}) for number in range(1, dial - 1)},
        f"digit {dial - 1}": Node(lambda memory: bytes(memory[:1]), onward),
    }
    check_count("dial", dial, minimum=3)
    return grammar(nodes, {"dot": 1.0}, window=window, name="clock", memory=(digits[0], digits[0]))


def garden_path(dial: int, *, window: int = 4) -> Automaton:
    """Store a word of one to ``dial`` letters and ask for its number; a byte of filler shows its end."""
    codes = (string.digits + string.ascii_uppercase).encode()
    if not 1 <= dial <= 4:
        raise ValueError(f"dial must lie in 1..4, got {dial}")
    words = sorted(bytes(word) for n in range(1, dial + 1) for word in itertools.product(b"xy", repeat=n))
    others = {
        "mark": Node(b"#", {"letter 1": 1.0}, lambda *_: b""),
        "shorter": Node(FILLERS, {"gap": 1.0}, ends_token=True),
        "answer": Node(lambda word: codes[(number := words.index(word)) : number + 1], {"mark": 1.0}, _forget),
    }
    for number in range(1, dial + 1):
        then = {f"letter {number + 1}": 2 / 3, "shorter": 1 / 3} if number < dial else {"gap": 1.0}
        others[f"letter {number}"] = Node(
            b"xy", then, lambda word, byte: word + bytes([byte]), ends_token=number == dial
        )
    return grammar(_records(others), {"mark": 1.0}, window=window, name="garden-path")


def nest(dial: float, *, window: int = 4) -> Automaton:
    """Store a value in each record, and one for a phrase of ``dial`` records on average, asked for at its end."""
    others = {
        "phrase": Node(b"@", {"phrase value": 1.0}),
        "phrase value": Node(VALUES, {"mark": 1.0}, lambda _, byte: (byte,), ends_token=True),
        "value": Node(VALUES, {"gap": 1.0}, lambda memory, byte: (memory[0], byte), ends_token=True),
        "answer": Node(
            lambda memory: bytes(memory[1:]), {"mark": 1 - 1 / dial, "end": 1 / dial}, lambda memory, _: memory[:1]
        ),
        "end": Node(b"!", {"phrase answer": 1.0}),
        "phrase answer": Node(lambda memory: bytes(memory), {"phrase": 1.0}, _forget),
    }
    return grammar(_records(others), {"phrase": 1.0}, window=window, name="nest")


def switch(dial: int, *, window: int = 4, before: bool = False) -> Automaton:
    """Ask for the last value; ``before`` is the language of the first part of training, which the dial makes foreign.

    1 changes the filler, 2 the mark of values, and 3 and 4 ask for the values that were decoys before.
    """
    if dial not in (1, 2, 3, 4):
        raise ValueError(f"dial must be one of [1, 2, 3, 4], got {dial}")
    fillers = b"efgh" if before and dial == 1 else FILLERS
    marks = b"$#" if before and dial > 1 else b"#$"
    ends = {"query": 1.0} if dial < 3 else {"query": 1 / 2, "decoy": 1 / 2}
    others = gap("gap", fillers, SHORTEST, MEAN, ends)
    if dial > 2:
        others["decoy"] = Node(marks[1:], {"decoy value": 1.0})
        others["decoy value"] = Node(VALUES, {f"gap{SHORTEST}": 1.0})
    return grammar(_records(others, mark=marks[:1]), {"mark": 1.0}, window=window, name="switch")


class SwitchedSource(WindowSource):
    """Windows of one language, and of another after ``after`` bytes have been drawn."""

    def __init__(self, first: Language, second: Language, after: int) -> None:
        self.first, self.second, self.after = first, second, check_count("after", after)
        self.drawn = 0  # bytes

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Choose windows of the language whose turn it is; those of the second have negative documents."""
        late = self.drawn >= self.after
        self.drawn += num_rows * length
        places = (self.second if late else self.first).pick(num_rows, length, generator)
        return Places(~places.document, places.offset) if late else places

    def read(self, places: Places, length: int) -> Windows:
        """Write the chosen texts."""
        if len(places.document) and places.document[0] < 0:
            return self.second.read(Places(~places.document, places.offset), length)
        return self.first.read(places, length)

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Return whole windows [n] that never end their texts [n]."""
        return self.first.measure(places, length)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of bytes drawn."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self.drawn = int(state["drawn"])


@dataclass(frozen=True)
class Task:
    """A language with a dial that makes it harder, from grade 1 to grade 4."""

    make: Callable[..., Automaton]
    isolates: str
    """The capability of credit assignment that it measures."""
    dials: tuple[float, float, float, float]
    """Setting of each grade."""
    num_steps: tuple[int, int, int, int] = (128, 128, 128, 128)
    """Decisions per text of each grade."""

    def language(self, grade: Annotated[int, "[1, 4]"] = 1, *, window: Annotated[int, "[1, 1e6]"] = 4) -> Automaton:
        """Make the language of a grade; ``window`` bytes reach the early exit."""
        return self.make(self.dial(grade), window=window)

    def dial(self, grade: int) -> float:
        """Return the setting of a grade."""
        if grade not in (1, 2, 3, 4):
            raise ValueError(f"grade must be one of [1, 2, 3, 4], got {grade!r}")
        return self.dials[grade - 1]

    def rate(self, grade: int) -> float:
        """Return the target rate of a grade: best boundaries per byte, and more of them in ``recall-tight``."""
        return self.language(grade).boundary_rate * (self.dial(grade) if self.make is recall_tight else 1.0)


TASKS = {
    "recall-tight": Task(recall_tight, "precision of placement", (2.0, 1.5, 1.2, 1.0)),
    "delay": Task(delay, "credit over time", (8, 32, 128, 512), (128, 128, 512, 2048)),
    "noise": Task(noise, "variance", (4, 16, 64, 246)),
    "decoy": Task(decoy, "rewards against surprise", (1, 2, 4, 8)),
    "knapsack": Task(knapsack, "allocation of a budget", (2, 4, 8, 16)),
    "pair": Task(pair, "joint decisions", (2, 3, 4, 8)),
    "clock": Task(clock, "memory of earlier boundaries", (5, 6, 8, 12)),
    "garden-path": Task(garden_path, "late evidence", (1, 2, 3, 4)),
    "switch": Task(switch, "recovery of a settled policy", (1, 2, 3, 4)),
    "nest": Task(nest, "two time scales", (2, 4, 8, 16), (128, 128, 256, 512)),
}
"""Tasks by name."""
SWITCH_AT = (0.5, 0.5, 0.5, 0.75)
"""Share of training after which ``switch`` changes its language, by grade."""


def switched_source(grade: int, after: int, *, window: int = 4) -> SwitchedSource:
    """Return the training texts of ``switch``, whose language changes once ``after`` bytes have been drawn."""
    language = TASKS["switch"].language(grade, window=window)
    return SwitchedSource(switch(grade, window=window, before=True), language, after)
