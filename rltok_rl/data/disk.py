"""Files: checksums, atomic writes that reach the disk, and locks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from rltok_rl.foreign import check_place

CLAIM = ".lock"
"""Empty file that is locked while a run uses its folder."""


def add_file(digest: Any, path: Path, num_bytes: int | None = None) -> None:
    """Add the bytes of a file, or its first ones, to a hash of ``hashlib``."""
    left = path.stat().st_size if num_bytes is None else num_bytes
    with path.open("rb") as file:
        while chunk := file.read(min(left, 1 << 20)):
            digest.update(chunk)
            left -= len(chunk)


def checksum(path: Path, num_bytes: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first bytes, in hexadecimal; a missing file has no bytes."""
    digest = hashlib.sha256()
    if num_bytes != 0:
        add_file(digest, path, num_bytes)
    return digest.hexdigest()


def flush(path: Path) -> None:
    """Write a file, or a folder's entries, from memory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically: readers, and runs that resume after a kill or a power cut, find the old or new text.

    Several processes may write it at the same time; each writes another ``.NAME.ID.partial`` first.
    """
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:  # never through a link
            file.write(text)
        flush(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # after an error
    flush(path.parent)


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, creating it if needed; an error if another process has locked it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # its words name the first folder that is missing
        raise type(error)(error.errno, f"a folder cannot be made there ({error.strerror})", str(folder)) from None
    with claim_file(folder / CLAIM, shown=folder):
        yield


@contextmanager
def claim_file(path: Path, *, shown: Path | None = None) -> Iterator[None]:
    """Lock a file for this process, creating it if needed; an error if another process has locked it.

    The operating system unlocks it when the process ends, however it ends. On Windows and on file systems without locks
    nothing is locked.
    """
    check_place(path)
    with path.open("a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = "is in use by another run; wait for it, or choose another folder"
            raise BlockingIOError(f"{shown or path} {words}") from None
        except (ImportError, OSError):
            pass
        yield
