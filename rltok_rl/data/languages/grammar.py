"""Automata written as graphs: nodes that write a byte each, and remember some."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from rltok_rl.data.languages.automaton import Automaton, Moves

Memory = Any
"""What a text still depends on, such as the bytes that will be asked for; hashable."""


@dataclass(frozen=True)
class Node:
    """A byte of the text.

    Args:
        writes: the bytes that are equally likely here, or a function from memory to them.
        then: the nodes that may follow, and their probabilities; no two of them may write the same byte.
        remembers: the memory afterwards, a function of the memory before and the byte; None changes nothing.
        ends_token: whether a token should end after this byte.
    """

    writes: bytes | Callable[[Memory], bytes]
    then: Mapping[str, float]
    remembers: Callable[[Memory, int], Hashable] | None = None
    ends_token: bool = False


def grammar(
    nodes: Mapping[str, Node], start: Mapping[str, float], *, window: int, name: str, memory: Hashable = None
) -> Automaton:
    """Make the language of a graph; ``start`` has the nodes of a text's first byte, ``memory`` what it begins with.

    Example:
        >>> nodes = {  # a value, a dot, and the value again
        ...     "value": Node(b"01", {"dot": 1.0}, remembers=lambda memory, byte: byte, ends_token=True),
        ...     "dot": Node(b".", {"answer": 1.0}),
        ...     "answer": Node(lambda value: bytes([value]), {"value": 1.0}),
        ... }
        >>> language = grammar(nodes, {"value": 1.0}, window=1, name="dots")
        >>> bytes(language.draw(1, 9).byte_ids[0].tolist())[1::3]
        b'...'
        >>> round(language.entropy_rate, 4)  # ln 2 / 3
        0.231
    """

    def moves(state: tuple[str, Memory]) -> Moves:
        label, kept = state
        branches: dict[int, tuple[float, Hashable]] = {}
        for after, chance in (nodes[label].then if label else start).items():
            node = nodes[after]
            written = node.writes(kept) if callable(node.writes) else node.writes
            if shared := set(written) & set(branches) if chance else set():
                raise ValueError(
                    f"{after!r} must not write bytes of another node after {label!r}, got {sorted(shared)}"
                )
            for byte in written if chance else b"":
                memory_after = node.remembers(kept, byte) if node.remembers else kept
                branches[byte] = chance / len(written), (after, memory_after)
        return branches

    return Automaton(
        moves,
        ("", memory),
        lambda state: state[0] and nodes[state[0]].ends_token,
        window=window,
        name=name,
        place=lambda state: state[0],
    )


def gap(name: str, fillers: bytes, shortest: int, mean: float, then: Mapping[str, float]) -> dict[str, Node]:
    """Return nodes of at least ``shortest`` bytes of filler and ``mean`` on average; the first one is ``name``.

    From the shortest on, each byte is the last with the same chance.
    """
    if not 1 <= shortest <= mean < float("inf"):
        raise ValueError(f"mean must be finite and at least shortest={shortest}, itself at least 1, got {mean}")
    labels = [name, *(f"{name}{number}" for number in range(2, shortest + 1))]
    over = 1 / (1 + mean - shortest)
    nodes = {label: Node(fillers, {after: 1.0}) for label, after in zip(labels, labels[1:], strict=False)}
    last = {**{label: over * chance for label, chance in then.items()}, labels[-1]: 1 - over}
    return nodes | {labels[-1]: Node(fillers, last)}
