"""One process' share of the windows that all processes read together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rltok_rl.data.windows import Places, WindowSource, WindowWrapper


class ShardedSource(WindowWrapper):
    """The rows of one process, of a batch that all processes pick alike.

    Process r of W takes rows ``r n .. (r + 1) n - 1`` of every batch of ``W n``, so that row i of the whole batch is
    the same however many processes share it. Every process picks the whole batch, which is cheap, with a generator or
    an order that must stand alike in all of them (same seed); only its own rows are read. A process that asks for fewer
    rows, as environments do when some episodes end before others, is dealt the rest of its share first: no two
    processes share a window of an epoch of an :class:`~rltok_rl.data.OrderedSource`, and none is left out.

    Args:
        source: where windows come from, the same in all processes. A :class:`~rltok_rl.data.RepeatedSource` goes around
            this one, so that the rows of one text stay in one process.
        rank: number of this process.
        world_size: number of processes.
        num_rows: n, rows of this process in a batch.

    Example:
        >>> from rltok_rl.data import TextSource
        >>> text = TextSource("to be or not to be")
        >>> whole = text.draw(4, 8, torch.Generator().manual_seed(0)).byte_ids
        >>> second = ShardedSource(text, rank=1, world_size=2, num_rows=2)
        >>> bool((second.draw(2, 8, torch.Generator().manual_seed(0)).byte_ids == whole[2:]).all())
        True
    """

    def __init__(self, source: WindowSource, *, rank: int, world_size: int, num_rows: int) -> None:
        super().__init__(source)
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in 0..{world_size - 1}, got {rank}")
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}")
        self.rank, self.world_size, self.num_rows = rank, world_size, num_rows
        self._forget()

    def _forget(self) -> None:
        nothing = torch.zeros(0, dtype=torch.int64)
        self._waiting, self._length = Places(nothing, nothing), 0  # rows of this process that were picked, not dealt

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Take the next rows of this process' share."""
        if len(self._waiting.document) and length != self._length:
            raise ValueError(f"length must stay {self._length} until the rows that were picked with it are dealt")
        parts, self._length = [self._waiting], length
        have = len(self._waiting.document)
        while have < num_rows:
            everyone = self.source.pick(self.num_rows * self.world_size, length, generator)
            parts.append(everyone[self.rank * self.num_rows : (self.rank + 1) * self.num_rows])
            have += self.num_rows
        rows = Places.cat(parts)
        self._waiting = rows[num_rows:]
        return rows[:num_rows]

    def state_dict(self) -> dict[str, Any]:
        """The source's state and, where a batch was dealt in part, the rest of it.

        Processes that dealt whole batches have equal states, and such a state may be loaded into any process of any
        number of them.
        """
        source = self.source.state_dict()
        state: dict[str, Any] = {"source": source} if source else {}
        if len(self._waiting.document):
            state["share"] = {"rank": self.rank, "world_size": self.world_size, "num_rows": self.num_rows}
            state["waiting"] = {"document": self._waiting.document.clone(), "offset": self._waiting.offset.clone()}
            state["length"] = self._length
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a state was taken."""
        unknown = set(state) - {"source", "share", "waiting", "length"}
        if unknown:
            raise ValueError(f"state must be of a ShardedSource, got the keys {sorted(state)}")
        mine = {"rank": self.rank, "world_size": self.world_size, "num_rows": self.num_rows}
        if "share" in state and dict(state["share"]) != mine:
            raise ValueError(
                f"state must be of the same share, because a batch was dealt in part ({dict(state['share'])} there, "
                f"{mine} here)"
            )
        self.source.load_state_dict(state.get("source", {}))
        self._forget()
        if "share" in state:
            waiting = state["waiting"]
            self._waiting = Places(waiting["document"].cpu().clone(), waiting["offset"].cpu().clone())
            self._length = int(state["length"])
