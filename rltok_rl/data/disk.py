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


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    add_file(digest, path)
    return digest.hexdigest()


def flush(path: Path) -> None:
    """Write a file, or a folder's entries, from memory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
