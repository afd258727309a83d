"""What a cache on disk holds, and whether it is what was written.

    <folder>/bytes.bin, offsets.bin, keys.bin, index.json

``bytes.bin`` has all documents one after the other; ``offsets.bin`` where each begins and the last one ends;
``keys.bin`` a hash of each document or of its group, for splits (both int64, little-endian); ``index.json`` counts,
checksums, and what the cache was made from.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltok_rl.data.disk import checksum

FORMAT = 1
BYTES, OFFSETS, KEYS, INDEX = "bytes.bin", "offsets.bin", "keys.bin", "index.json"


class CacheError(RuntimeError):
    """A cache that cannot be read; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class CacheIndex:
    """What a cache holds."""

    documents: int
    bytes: int
    sha256: dict[str, str]
    """Checksum of each file but the index."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What it was made from, and how; as given to :func:`write_cache`."""
    report: dict[str, Any] | None = None
    """What the filter dropped and cut, a :class:`~rltok_rl.data.FilterReport` by name; None without a filter."""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes that each file must have."""
        return {BYTES: self.bytes, OFFSETS: 8 * (self.documents + 1), KEYS: 8 * self.documents}


def document_key(document: bytes) -> int:
    """A number that depends on a document's bytes alone, in -2^63 .. 2^63 - 1.

    Example:
        >>> document_key(b"to be") == document_key(bytes(b"to be")), document_key(b"to be") == document_key(b"to bee")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little", signed=True)


def read_index(folder: str | Path) -> CacheIndex:
    """What a cache holds, after a look at the sizes of its files.

    Args:
        folder: of the cache.
    """
    path = Path(folder) / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"folder must be a cache, got {str(folder)!r} without {INDEX}")
    try:
        content = json.loads(path.read_text())
        version = content.pop("format")
        index = CacheIndex(**content)
        sizes = dict(index.sizes)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CacheError(f"{path} is not the index of a cache") from None
    if version != FORMAT:
        raise CacheError(f"{path} has format {version}, this version reads {FORMAT}; make the cache anew")
    for name, size in sizes.items():
        file = path.with_name(name)
        if not file.is_file():
            raise CacheError(f"{file} is missing")
        if file.stat().st_size != size:
            raise CacheError(f"{file} must have {size} bytes, has {file.stat().st_size}: it was cut or altered")
    return index


def check_files(folder: Path, index: CacheIndex) -> None:
    """Read every file of a cache and refuse one that is not what was written.

    Args:
        folder: of the cache.
        index: of the cache.
    """
    for name, wanted in index.sha256.items():
        if checksum(folder / name) != wanted:
            raise CacheError(f"{folder / name} is not what was written (its checksum differs)")
