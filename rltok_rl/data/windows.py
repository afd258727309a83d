"""Windows of bytes, and the sources that environments draw them from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltok_rl.text import text_to_ids
from rltok_rl.utils import joined

Documents = str | bytes | Sequence[str | bytes]


@dataclass(frozen=True)
class Windows:
    """Windows of text, one per row."""

    byte_ids: Tensor  # [n, length] int64, zeros beyond a row's own length
    lengths: Tensor  # [n] bytes of each window
    ends: Tensor  # [n] bool, whether the window ends its document


@dataclass(frozen=True)
class Places:
    """Starts of windows, one per row."""

    document: Tensor  # [n] int64
    offset: Tensor  # [n] int64, bytes from the beginning of the document

    def __getitem__(self, rows: slice | Tensor) -> Places:
        return Places(self.document[rows], self.offset[rows])

    @classmethod
    def cat(cls, parts: Sequence[Places]) -> Places:
        """Concatenate places."""
        return cls(joined([x.document for x in parts]), joined([x.offset for x in parts]))


class WindowSource(ABC):
    """Source of windows in two halves: ``pick`` chooses their places, ``read`` reads their bytes.

    Wrappers that order or repeat windows change their places; bytes are read last, and only of windows in use.
    """

    def draw(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Windows:
        """Pick and read windows of ``length`` bytes."""
        self.check_length(length)
        return self.read(self.pick(num_rows, length, generator), length)

    @abstractmethod
    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Choose where the next windows begin."""

    @abstractmethod
    def read(self, places: Places, length: int) -> Windows:
        """Read windows; a window that reaches beyond its document is shorter."""

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Return the windows' lengths [n], and whether they end their documents [n]; need not read them."""
        windows = self.read(places, length)
        return windows.lengths, windows.ends

    def check_length(self, length: int) -> None:
        """Reject a window length that the source cannot serve."""
        if length < 2:
            raise ValueError(f"length must be at least 2 (one byte to read, one to predict), got {length}")

    def state_dict(self) -> dict[str, Any]:
        """Return the position as numbers and texts; documents and the generator are not included."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        if state:
            raise ValueError(f"state must be empty for {type(self).__name__}, got the keys {sorted(state)}")


class WindowWrapper(WindowSource):
    """Source that picks the windows of another source in its own way."""

    def __init__(self, source: WindowSource) -> None:
        if not isinstance(source, WindowSource):
            raise TypeError(f"source must be a WindowSource, got {type(source).__name__}")
        self.source = source

    def read(self, places: Places, length: int) -> Windows:
        """Read windows of the wrapped source."""
        return self.source.read(places, length)

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Measure windows of the wrapped source."""
        return self.source.measure(places, length)

    def check_length(self, length: int) -> None:
        """Reject a window length that the wrapped source cannot serve."""
        self.source.check_length(length)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped source."""
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the wrapped source."""
        self.source.load_state_dict(state)


def given_windows(texts: Documents, num_rows: int, length: int) -> Windows:
    """Make windows that begin where given texts begin: one text for all rows, or one per row.

    A longer text is cut to the window and does not end there: the episode is truncated, not terminated.

    Example:
        >>> given_windows(["abc", "a longer text"], 2, 6).ends
        tensor([ True, False])
    """
    if isinstance(texts, Path):
        raise TypeError(f"text must be one text or one per row that starts, got {texts!r}; read_text() reads it")
    rows = [texts] * num_rows if isinstance(texts, (str, bytes)) else list(texts)
    if len(rows) != num_rows:
        raise ValueError(f"text must be one text or one per row that starts, {num_rows}, got {len(rows)}")
    sizes, byte_ids = torch.zeros(num_rows, dtype=torch.int64), torch.zeros(num_rows, length, dtype=torch.int64)
    for row, text in enumerate(rows):
        ids = text_to_ids(text)
        if len(ids) < 2:
            raise ValueError(f"text must have at least 2 bytes to read and predict, got {len(ids)} in row {row}")
        sizes[row] = len(ids)
        byte_ids[row, : len(ids)] = ids[:length]
    return Windows(byte_ids, sizes.clamp(max=length), sizes <= length)
