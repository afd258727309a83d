"""Files of a run: one run at a time has the folder, and a file that is written anew is never half there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLAIM = ".lock"
"""An empty file; whether it is locked says whether a run is at work in its folder."""


def replace_text(path: Path, text: str) -> None:
    """Write a file in one step: whoever reads it, or goes on after a kill, finds the old text or the new one.

    Args:
        path: of the file.
        text: all that it will hold.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "summary.json"
        >>> replace_text(path, "{}")
        >>> path.read_text()
        '{}'
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Have a folder for this process alone; another that is at work there is left to it.

    The operating system takes the claim back when a process ends, however it ends: nothing is left to clean up. Where
    a file system knows no locks, and on Windows, nobody is refused.

    Args:
        folder: of a run; made if it is not there.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with claim_folder(folder), claim_folder(folder):  # doctest: +ELLIPSIS
        ...     pass
        Traceback (most recent call last):
        BlockingIOError: ... is in use by a run that is under way; wait for it, or choose another folder
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / CLAIM).open("a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"{folder} is in use by a run that is under way; wait for it, or choose another folder"
            ) from None
        except (ImportError, OSError):
            pass
        yield
