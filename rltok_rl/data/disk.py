"""Checksums of files, and writing them through to the disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any


def add_file(digest: Any, path: Path) -> None:
    """Add the bytes of a file to a hash of ``hashlib``."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)


def checksum(path: Path, num_bytes: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first bytes, in hexadecimal."""
    digest = hashlib.sha256()
    if num_bytes is None:
        add_file(digest, path)
    elif num_bytes:
        with path.open("rb") as file:
            digest.update(file.read(num_bytes))
    return digest.hexdigest()


def flush(path: Path) -> None:
    """Write a file, or a folder's entries, from memory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
