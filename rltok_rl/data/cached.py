"""Windows drawn from documents on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltok_rl.data.index import BYTES, KEYS, OFFSETS, CacheError, CacheIndex, check_files, read_index
from rltok_rl.data.source import DocumentSource, Short


class CachedSource(DocumentSource):
    """Windows of the documents of a cache, read in place: the text takes no memory of its own.

    Draws what a :class:`~rltok_rl.data.TextSource` of the same documents draws. What it keeps in memory is 16 bytes per
    document. A copy sent to another process opens the files there.

    Args:
        folder: that :func:`~rltok_rl.data.write_cache` wrote.
        short_documents: as for :class:`~rltok_rl.data.TextSource`.

    Example:
        >>> import tempfile
        >>> from rltok_rl.data import write_cache
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = write_cache(["to be or not to be", "that is the question"], Path(folder.name, "play"))
        >>> CachedSource(Path(folder.name, "play")).document(0)
        b'to be or not to be'
        >>> folder.cleanup()
    """

    def __init__(self, folder: str | Path, *, short_documents: Short = "error") -> None:
        self.folder = Path(folder)
        self.index: CacheIndex = read_index(folder)
        offsets = np.fromfile(self.folder / OFFSETS, dtype="<i8")  # [documents + 1]
        lengths = np.diff(offsets)
        if offsets[0] != 0 or offsets[-1] != self.index.bytes or lengths.min() < 2:
            raise CacheError(f"{self.folder / OFFSETS} does not say where documents begin: it was altered")
        starts = torch.from_numpy(offsets[:-1].astype(np.int64))
        super().__init__(starts, torch.from_numpy(lengths.astype(np.int64)), short_documents=short_documents)
        self._open()

    def _open(self) -> None:
        self._bytes = np.asarray(np.memmap(self.folder / BYTES, dtype=np.uint8, mode="r"))  # [all bytes]

    def cut(self, start: int, stop: int) -> np.ndarray:
        """Bytes of the whole text from one position up to another, [stop - start] uint8, not to be written to."""
        return self._bytes[start:stop]

    @property
    def split_by(self) -> str | None:
        """The column whose groups are held out as a whole; None if single documents are."""
        made_from = self.index.settings.get("source")
        return made_from.get("split_by") if isinstance(made_from, dict) else None

    def keys(self) -> Tensor | None:
        """Hashes of the documents, or of their groups, [documents]; None if documents were cut anew."""
        keys = np.fromfile(self.folder / KEYS, dtype="<i8").astype(np.int64)
        offsets = np.fromfile(self.folder / OFFSETS, dtype="<i8")
        # A split keeps some of the documents: look each one up by its start.
        place = np.searchsorted(offsets[:-1], self.starts.numpy(), side="right") - 1
        whole = np.array_equal(offsets[place], self.starts.numpy())
        whole = whole and np.array_equal(np.diff(offsets)[place], self.lengths.numpy())
        return torch.from_numpy(keys[place]) if whole else None

    def verify(self) -> None:
        """Read all files and raise :class:`~rltok_rl.data.CacheError` if one is not what was written."""
        check_files(self.folder, read_index(self.folder))

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_bytes"]  # a path says the same in fewer bytes
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        read_index(self.folder)
        self._open()
