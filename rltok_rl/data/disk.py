"""Files that have to be whole: their checksums, and having them on the disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any


def add_file(digest: Any, path: Path) -> None:
    """Add the bytes of a file to a hash, a piece at a time.

    Args:
        digest: of ``hashlib``.
        path: of the file.
    """
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Args:
        path: of the file.
    """
    digest = hashlib.sha256()
    add_file(digest, path)
    return digest.hexdigest()


def flush(path: Path) -> None:
    """Have a file, or a folder's entries, on the disk and not only in memory.

    Args:
        path: of the file or the folder.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
