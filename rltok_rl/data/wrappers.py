"""Wrappers that change which windows a source deals: in epochs, or to several rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rltok_rl.data.source import DocumentSource
from rltok_rl.data.windows import Places, WindowSource, WindowWrapper
from rltok_rl.utils import check_count


class OrderedSource(WindowWrapper):
    """All windows of all documents once per epoch, shuffled anew for every epoch.

    Consecutive windows share a byte, so that every byte but a document's first is predicted once. A draw may cross the
    end of an epoch. The order depends on the seed, the epoch and the number of windows alone, not on a generator.

    Args:
        length: bytes of a window, for an environment its ``window_bytes``: ``num_steps + 1``, or ``num_steps`` if the
            model reads a begin-of-text mark.
        shared: bytes that consecutive windows share, 1, or 0 for models that read a mark: it predicts the first byte.
        tail: how to treat the end of a document that fills no whole window: ``"overlap"`` moves the last window back
            to end with the document, ``"short"`` reads a shorter window, ``"drop"`` leaves it out (``dropped_bytes``).

    Example:
        >>> from rltok_rl.data import TextSource
        >>> source = OrderedSource(TextSource(["abcdefg", "hijk"]), length=4, seed=0)
        >>> sorted(bytes(row.tolist()) for row in source.draw(3, 4).byte_ids)
        [b'abcd', b'defg', b'hijk']
    """

    source: DocumentSource

    def __init__(
        self,
        source: DocumentSource,
        *,
        length: int,
        seed: int,
        tail: Literal["overlap", "short", "drop"] = "overlap",
        shared: int = 1,
    ) -> None:
        if not isinstance(source, DocumentSource):
            raise TypeError(f"source must hold documents (TextSource, CachedSource), got {type(source).__name__}")
        if tail not in ("overlap", "short", "drop"):
            raise ValueError(f"tail must be one of ['overlap', 'short', 'drop'], got {tail!r}")
        if shared not in (0, 1):
            raise ValueError(f"shared must be 0 or 1, got {shared}")
        super().__init__(source)
        source.check_length(length)
        self.length, self.seed, self.tail = length, seed, tail
        self._stride = length - shared
        steps = source.lengths - shared  # [documents] bytes to predict
        whole, rest = steps // self._stride, steps % self._stride
        self._counts = whole if tail == "drop" else whole + (rest > 0)
        self._ends = self._counts.cumsum(0)
        self.num_windows = int(self._ends[-1])
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
        """Number of epochs drawn."""
        return self.drawn / self.num_windows

    def order(self, epoch: int) -> Tensor:
        """Return the numbers of all windows in the order of an epoch, [num_windows]."""
        if self._order is None or self._order[0] != epoch:
            # A hash, so that the epochs of one seed are not those of the next one.
            digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            self._order = epoch, torch.randperm(self.num_windows, generator=generator)
        return self._order[1]

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Take the next windows of the order; ``generator`` is not used."""
        parts, missing = [torch.zeros(0, dtype=torch.int64)], num_rows
        while missing:
            epoch, first = divmod(self.drawn, self.num_windows)
            parts.append(self.order(epoch)[first : first + missing])
            self.drawn += len(parts[-1])
            missing -= len(parts[-1])
        window = torch.cat(parts)
        document = torch.searchsorted(self._ends, window, right=True)
        offset = (window - (self._ends - self._counts)[document]) * self._stride
        if self.tail == "overlap":
            offset = torch.minimum(offset, (self.source.lengths[document] - self.length).clamp(min=0))
        return Places(document, offset)

    def check_length(self, length: int) -> None:
        """Reject a window length other than that of the order."""
        if length != self.length:
            raise ValueError(f"length must be {self.length}, which the order was made for, got {length}")

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what identifies the order."""
        order = {"seed": self.seed, "length": self.length, "tail": self.tail, "windows": self.num_windows}
        return {**order, "drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position in the same order."""
        mine = self.state_dict()
        if set(state) != set(mine):
            raise ValueError(f"state must have the keys {sorted(mine)}, got {sorted(state)}")
        mine["drawn"] = state["drawn"]
        changed = [f"{key}: {state[key]!r} there, {mine[key]!r} here" for key in mine if state[key] != mine[key]]
        if changed:
            raise ValueError(f"state must be of the same order of the same documents ({', '.join(changed)})")
        self.drawn = int(state["drawn"])


class RepeatedSource(WindowWrapper):
    """Windows of another source, each in ``times`` successive rows, which the baseline ``group_mean`` compares.

    Example:
        >>> from rltok_rl.data import TextSource
        >>> source = RepeatedSource(TextSource("to be or not to be"), times=2)
        >>> windows = source.draw(4, 8, torch.Generator().manual_seed(0))
        >>> bool((windows.byte_ids[0::2] == windows.byte_ids[1::2]).all())
        True
    """

    def __init__(self, source: WindowSource, times: int) -> None:
        super().__init__(source)
        self.times = check_count("times", times)

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Repeat the places that the source picks; ``num_rows`` must be a multiple of ``times``."""
        if num_rows % self.times:
            raise ValueError(f"num_rows must be a multiple of times={self.times}, got {num_rows}")
        places = self.source.pick(num_rows // self.times, length, generator)
        return Places(*(x.repeat_interleave(self.times) for x in (places.document, places.offset)))
