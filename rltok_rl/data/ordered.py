"""Every window once per epoch, in an order that a seed fixes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rltok_rl.data.source import DocumentSource
from rltok_rl.data.windows import Places, WindowWrapper

TAILS = ("overlap", "short", "drop")


class OrderedSource(WindowWrapper):
    """All windows of all documents once per epoch, shuffled anew for every epoch.

    A document is cut into windows that share one byte with the one before, ``length - 1`` bytes apart: a window's
    first byte is read and not predicted, so that every byte but a document's first is predicted once. Epochs follow
    each other without a seam, within one draw where it falls so. The order depends on the seed, the epoch and the
    number of windows alone; the generator handed to ``draw`` is not used, and an environment's ``set_seed`` does not
    rewind it.

    Args:
        source: the documents.
        length: bytes of a window, for an environment ``num_steps + 1``.
        seed: of the order.
        tail: what becomes of the bytes at a document's end that fill no whole window: ``"overlap"`` moves the last
            window back so that it ends with the document, and meets some bytes twice; ``"short"`` reads a shorter
            window; ``"drop"`` leaves them out, and ``dropped_bytes`` says how many there are.

    Example:
        >>> from rltok_rl.data import TextSource
        >>> source = OrderedSource(TextSource(["abcdefg", "hijk"]), length=4, seed=0)
        >>> sorted(bytes(row.tolist()) for row in source.draw(3, 4).byte_ids)
        [b'abcd', b'defg', b'hijk']
        >>> source.epoch
        1.0
    """

    source: DocumentSource

    def __init__(
        self,
        source: DocumentSource,
        *,
        length: int,
        seed: int,
        tail: Literal["overlap", "short", "drop"] = "overlap",
    ) -> None:
        if not isinstance(source, DocumentSource):
            raise TypeError(f"source must hold documents (TextSource, CachedSource), got {type(source).__name__}")
        if tail not in TAILS:
            raise ValueError(f"tail must be one of {list(TAILS)}, got {tail!r}")
        super().__init__(source)
        source.check_length(length)
        self.length, self.seed, self.tail = length, seed, tail
        steps = source.lengths - 1  # [documents] bytes to predict
        whole, rest = steps // (length - 1), steps % (length - 1)
        counts = whole if tail == "drop" else whole + (rest > 0)
        self._counts, self._ends = counts, counts.cumsum(0)
        self.num_windows = int(self._ends[-1])
        #: bytes that no window predicts: documents' first bytes apart, those that ``tail="drop"`` leaves out
        self.dropped_bytes = int(rest.sum()) if tail == "drop" else 0
        if not self.num_windows:
            raise ValueError(
                f"documents must hold a window of {length} bytes with tail='drop', got {int(source.lengths.max())} "
                f"bytes in the longest, document {int(source.lengths.argmax())}"
            )
        self.drawn = 0  # windows, since the beginning of the first epoch
        self._order: tuple[int, Tensor] | None = None

    @property
    def epoch(self) -> float:
        """Epochs gone through."""
        return self.drawn / self.num_windows

    def order(self, epoch: int) -> Tensor:
        """The numbers of all windows in the order of an epoch, [num_windows]."""
        if self._order is None or self._order[0] != epoch:
            # A hash, so that the epochs of one seed are not those of the next one.
            digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            self._order = epoch, torch.randperm(self.num_windows, generator=generator)
        return self._order[1]

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Take the next windows of the order; ``generator`` is not used."""
        window = torch.empty(num_rows, dtype=torch.int64)
        done = 0
        while done < num_rows:
            epoch, first = divmod(self.drawn, self.num_windows)
            some = self.order(epoch)[first : first + num_rows - done]
            window[done : done + len(some)] = some
            done += len(some)
            self.drawn += len(some)
        document = torch.searchsorted(self._ends, window, right=True)
        offset = (window - (self._ends - self._counts)[document]) * (self.length - 1)
        if self.tail == "overlap":
            offset = torch.minimum(offset, (self.source.lengths[document] - self.length).clamp(min=0))
        return Places(document, offset)

    def check_length(self, length: int) -> None:
        """Refuse a window length other than the one that the order was made for."""
        if length != self.length:
            raise ValueError(f"length must be {self.length}, which the order was made for, got {length}")

    def state_dict(self) -> dict[str, Any]:
        """Where the order stands, and which it is."""
        return {**self._identity(), "drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a state was taken; it must be of the same order."""
        mine = self._identity()
        if set(state) != {*mine, "drawn"}:
            raise ValueError(f"state must have the keys {sorted([*mine, 'drawn'])}, got {sorted(state)}")
        differing = [f"{key}: {state[key]!r} there, {mine[key]!r} here" for key in mine if state[key] != mine[key]]
        if differing:
            raise ValueError(f"state must be of the same order of the same documents ({', '.join(differing)})")
        self.drawn = int(state["drawn"])

    def _identity(self) -> dict[str, Any]:
        return {"seed": self.seed, "length": self.length, "tail": self.tail, "windows": self.num_windows}
