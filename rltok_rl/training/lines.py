"""A file with a line of JSON for each thing that happened, by update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rltok_rl.training.files import replace_text


class UpdateLog:
    """A file of JSON lines, each with the update it belongs to.

    A training that resumes goes on after the last update that it keeps, as
    :class:`~rltok_rl.training.progress.MetricsTable` does: lines of updates that will be done again are cut, and so is
    a line that a killed process left half written.

    Args:
        path: of the file; made with the first line.
        resume_after: the last update to keep; None begins anew and refuses a file that is there.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "looks.jsonl"
        >>> log = UpdateLog(path)
        >>> for update in (0, 10, 20):
        ...     log.add(update, rate=0.5)
        >>> UpdateLog(path, resume_after=10).updates
        [0, 10]
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = path
        if not path.exists():
            return
        if resume_after is None:
            raise FileExistsError(f"{path} holds another run; resume it, or choose another folder")
        kept = [line for line in read_lines(path) if line["update"] <= resume_after]
        if kept:
            replace_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        else:
            path.unlink()

    @property
    def updates(self) -> list[int]:
        """Of every line."""
        return [line["update"] for line in self.read()]

    def add(self, update: int, **content: Any) -> None:
        """Write a line.

        Args:
            update: number of the update.
            **content: what JSON can hold.
        """
        with self.path.open("a") as file:
            file.write(json.dumps({"update": update, **content}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return read_lines(self.path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of :class:`UpdateLog` that are whole; none where there is no file.

    Args:
        path: of the file.
    """
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # half written: a process was killed, and nothing comes after it
            break
    return found
