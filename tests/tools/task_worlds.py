"""Exact scores of simple policies in the frozen track of the boundary suite, by dynamic programming.

python -m tests.tools.task_worlds            # all forty environments
python -m tests.tools.task_worlds delay pair
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from rltok_rl.envs.registration import TASK_ENVIRONMENTS
from rltok_rl.experiments.reports.markdown import markdown
from torch import Tensor

from rltok_rl.data.languages import TASKS, Automaton

Belief = tuple[tuple[int, float], ...]
"""States and their probabilities, to a reader."""
Choose = Callable[[Tensor, Tensor], Tensor]
"""Value of decisions [Z], given the values without a boundary and with one."""


class Graph(NamedTuple):
    """What a text and its reader can be like, Z cases, and how they follow each other."""

    state: Tensor
    """State of the text [Z]."""
    kept: Tensor
    """The case after a boundary [Z]."""
    log_prob: Tensor
    """Mean log p of the next byte [Z]."""
    edges: tuple[Tensor, Tensor, Tensor]
    """Cases, those that may follow without a boundary, and their probabilities [E]."""
    first: Tensor
    """Probabilities of the cases after a text's first byte [Z]."""


def read_graph(language: Automaton) -> Graph:
    """Return the cases that any boundaries can lead to; a case is a state and the reader's w + 1 beliefs."""
    symbols, counts = (column.tolist() for column in language.alike)
    chance, place = (language._chance[:, symbols] * language.alike[1]).tolist(), language._place.tolist()
    after = language._next[:, symbols].tolist()

    @cache
    def read(belief: Belief, symbol: int) -> tuple[float, Belief]:
        """Probability of a symbol, and the belief after it."""
        return _sum((after[state][symbol], p * chance[state][symbol]) for state, p in belief)

    @cache
    def miss(belief: Belief, where: int) -> Belief:
        """Belief after an unseen symbol that led to a place."""
        moves = (
            (after[state][symbol], p * chance[state][symbol]) for state, p in belief for symbol in range(len(symbols))
        )
        return _sum((state, p) for state, p in moves if place[state] == where)[1]

    def moves(state: int, beliefs: tuple[Belief, ...]) -> Iterator[tuple[float, float, tuple[int, tuple[Belief, ...]]]]:
        """Probability of each symbol, to the text and to the reader, and the case after it."""
        for symbol, p in enumerate(chance[state]):
            if p:
                new = after[state][symbol]
                seen = (read(belief, symbol)[1] for belief in beliefs[:-1])
                # Symbols of a kind are counted together; each of them has its share of the chance.
                read_as = read(beliefs[-1], symbol)[0] / counts[symbol]
                yield p, read_as, (new, (miss(beliefs[0], place[new]), *seen))

    def number_of(case: tuple[int, tuple[Belief, ...]]) -> int:
        if case not in numbers:
            numbers[case] = len(cases)
            cases.append(case)
        return numbers[case]

    cases: list[tuple[int, tuple[Belief, ...]]] = []
    numbers: dict[tuple[int, tuple[Belief, ...]], int] = {}
    begin = (0, (((0, 1.0),),) * (language.window + 1))
    first = {number_of(case): p for p, _, case in moves(*begin)}
    kept: list[int] = []
    log_prob: list[float] = []
    edges: list[tuple[int, int, float]] = []
    for number, (state, beliefs) in enumerate(cases):  # grows
        kept.append(number_of((state, beliefs[-1:] * len(beliefs))))
        gained = 0.0
        for p, read_as, case in moves(state, beliefs):
            edges.append((number, number_of(case), p))
            gained += p * math.log(read_as)
        log_prob.append(gained)
    start = torch.zeros(len(cases), dtype=torch.float64)
    start[[*first]] = torch.tensor([*first.values()], dtype=torch.float64)
    origin, target, weight = zip(*edges, strict=True)
    return Graph(
        torch.tensor([state for state, _ in cases]),
        torch.tensor(kept),
        torch.tensor(log_prob, dtype=torch.float64),
        (torch.tensor(origin), torch.tensor(target), torch.tensor(weight, dtype=torch.float64)),
        start,
    )


def _sum(parts: Iterator[tuple[int, float]]) -> tuple[float, Belief]:
    """Add up probabilities of states; return their sum, and the belief."""
    sums: dict[int, float] = {}
    for state, p in parts:
        sums[state] = sums.get(state, 0.0) + p
    total = sum(sums.values())
    return total, tuple(sorted((state, round(p / total, 12)) for state, p in sums.items() if p)) if total else ()


def mean_return(graph: Graph, choose: Choose, *, num_steps: int, price: float) -> float:
    """Return the exact mean sum of log p, minus ``price`` per boundary, over ``num_steps`` decisions."""
    value, (origin, target, weight) = torch.zeros_like(graph.log_prob), graph.edges
    for _ in range(num_steps):
        without = graph.log_prob.index_add(0, origin, weight * value[target])
        value = choose(without, without[graph.kept] - price)
    return float(graph.first @ value)


def scores(task: str, grade: int, price: float) -> dict[str, float]:
    """Return the exact mean returns of simple policies; random boundaries have the task's rate."""
    language, rate = TASKS[task].language(grade), TASKS[task].rate(grade)
    graph, num_steps = read_graph(language), TASKS[task].num_steps[grade - 1]
    best = language._best[graph.state]
    policies: dict[str, Choose] = {
        "optimum": torch.maximum,
        "best boundaries": lambda without, drawn: torch.where(best, drawn, without),
        "random": lambda without, drawn: (1 - rate) * without + rate * drawn,
        "never": lambda without, _: without,
        "always": lambda _, drawn: drawn,
    }
    values = {name: mean_return(graph, choose, num_steps=num_steps, price=price) for name, choose in policies.items()}
    return {name: value - values["never"] for name, value in values.items()}


def score_table(tasks: Sequence[str]) -> str:
    """Return a Markdown table with a row per task; cells have the four grades, or what they share."""
    body, names = [], {"price": 2, "optimum": 1, "random": 1, "always": 0}  # and their decimals
    for task in tasks:
        columns: dict[str, list[str]] = {name: [] for name in names}
        for options in TASK_ENVIRONMENTS.values():
            if options["kwargs"]["task"] == task:
                returns = scores(**options["kwargs"]) | {"price": options["kwargs"]["price"]}
                for name, decimals in names.items():
                    columns[name].append(f"{round(returns[name], decimals) + 0.0:g}")
        body.append([task, *(", ".join(cells[: 1 if len({*cells}) == 1 else 4]) for cells in columns.values())])
    return markdown(["task", *names], body)


def main(arguments: list[str] | None = None) -> None:
    """Print the table of the tasks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; default: all")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.tasks) - set(TASKS)):
        parser.error(f"tasks must be among {[*TASKS]}, got {unknown}")
    torch.set_num_threads(1)
    print(score_table(options.tasks or [*TASKS]))


if __name__ == "__main__":
    main()
