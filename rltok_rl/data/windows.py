"""What environments ask of text: windows of bytes, from places that a source picks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Windows of text, one per row."""

    byte_ids: Tensor  # [n, length] int64; beyond a row's own length there are zeros
    lengths: Tensor  # [n] bytes of each window
    ends: Tensor  # [n] bool, whether the window's last byte is the last of its document


@dataclass(frozen=True)
class Places:
    """Where windows begin, one per row."""

    document: Tensor  # [n] int64
    offset: Tensor  # [n] int64 bytes from the beginning of the document

    def __getitem__(self, rows: slice | Tensor) -> Places:
        return Places(self.document[rows], self.offset[rows])

    @classmethod
    def cat(cls, parts: Sequence[Places]) -> Places:
        """Several, one after the other."""
        return cls(torch.cat([x.document for x in parts]), torch.cat([x.offset for x in parts]))


class WindowSource(ABC):
    """Where windows come from, in two halves: which are next, and what they say.

    The halves are apart so that an order, a repetition or a process' share is decided on places alone, whatever the
    text lies in, and only windows that are used are read.
    """

    def draw(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Windows:
        """Draw windows.

        Args:
            num_rows: how many.
            length: bytes of each, at least 2.
            generator: source of the random numbers.
        """
        self.check_length(length)
        return self.read(self.pick(num_rows, length, generator), length)

    @abstractmethod
    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Say where the next windows begin."""

    @abstractmethod
    def read(self, places: Places, length: int) -> Windows:
        """Read windows; one that its document has fewer bytes for is shorter."""

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Bytes of windows, and whether each ends with its document, [n] both; sources that know it do not read."""
        windows = self.read(places, length)
        return windows.lengths, windows.ends

    @abstractmethod
    def check_length(self, length: int) -> None:
        """Refuse a window length that documents cannot serve."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next windows depend on, besides the documents and the generator; plain numbers and texts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where :meth:`state_dict` was taken."""
        if state:
            raise ValueError(f"state must be empty for {type(self).__name__}, got the keys {sorted(state)}")


class WindowWrapper(WindowSource):
    """A source that deals the windows of another one in its own way.

    Args:
        source: where windows come from.
    """

    def __init__(self, source: WindowSource) -> None:
        if not isinstance(source, WindowSource):
            raise TypeError(f"source must be a WindowSource, got {type(source).__name__}")
        self.source = source

    def read(self, places: Places, length: int) -> Windows:
        """Read windows of the source."""
        return self.source.read(places, length)

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Ask the source."""
        return self.source.measure(places, length)

    def check_length(self, length: int) -> None:
        """Refuse a window length that the source cannot serve."""
        self.source.check_length(length)

    def state_dict(self) -> dict[str, Any]:
        """The state of the source."""
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the source its state."""
        self.source.load_state_dict(state)
