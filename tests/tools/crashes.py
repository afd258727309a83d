"""Replay a folder's writes up to any moment, with those that had not been flushed lost, half there or out of order.

A power cut keeps what was flushed. Of the rest, file systems promise little: each name that was made, changed or
removed since may still be as it was, and of bytes that were written since, any part may be absent or zero.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_RECORDERS: list[Recorder] = []
_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

Name = tuple[int, str]
"""A folder's number and a name in it."""
Tree = dict[str, bytes]
"""Content by path; paths of folders end with a slash."""


def _audit(event: str, arguments: tuple) -> None:
    if _RECORDERS and event in _EVENTS and (event != "open" or (arguments[2] or 0) & _WRITING):
        for recorder in _RECORDERS:
            recorder.look()


sys.addaudithook(_audit)


@dataclass
class Recorder:
    """Record what happens in a folder: a list of operations, in order."""

    root: Path
    operations: list[tuple] = field(default_factory=list)
    """``("names", {name: number or None})``, ``("write", number, content)``, ``("flush", number)``."""
    _numbers: dict[int, int] = field(default_factory=dict)  # by inode, of what exists now
    _names: dict[Name, int] = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    folders: set[int] = field(default_factory=lambda: {0})
    _next: int = 1

    def look(self) -> None:
        """Compare the folder with what it was: at most one operation happened, and writes."""
        names: dict[Name, int] = {}
        contents: dict[int, bytes] = {}
        numbers = {self.root.stat().st_ino: 0}
        self._walk(self.root, 0, names, contents, numbers)
        gone = {name: None for name in self._names if name not in names}
        for name, number in names.items():
            if self._names.get(name) == number:
                continue
            change: dict[Name, int | None] = {name: number}
            for old in [old for old in gone if self._names[old] == number]:  # renamed, which is one operation
                change[old] = gone.pop(old)
            self.operations.append(("names", change))
        self.operations += [("names", {name: None}) for name in gone]
        for number, content in contents.items():
            if content != self._contents.get(number, b""):
                self.operations.append(("write", number, content))
        self._names, self._contents, self._numbers = names, contents, numbers

    def _walk(self, folder: Path, number: int, names: dict, contents: dict, numbers: dict) -> None:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            inode = entry.inode()
            if inode not in self._numbers:
                self._next += 1
            numbers[inode] = self._numbers.get(inode, self._next)
            names[number, entry.name] = numbers[inode]
            if entry.is_dir():
                self.folders.add(numbers[inode])
                self._walk(Path(entry.path), numbers[inode], names, contents, numbers)
            else:
                contents[numbers[inode]] = Path(entry.path).read_bytes()

    def flush(self, handle: int) -> None:
        """Stand in for ``os.fsync``."""
        self.look()
        number = self._numbers.get(os.fstat(handle).st_ino)
        if number is not None:
            self.operations.append(("flush", number))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what happens in the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self.flush)
            _RECORDERS.append(self)
            try:
                yield
            finally:
                _RECORDERS.remove(self)
                self.look()


def crashes(operations: list[tuple], folders: set[int], *, dice: random.Random, draws: int = 2) -> Iterator[Tree]:
    """Yield the folder as a crash may leave it after each operation: all of it, what was flushed, and much between."""
    durable_names: dict[Name, int] = {}
    durable: dict[int, bytes] = {}
    written: dict[int, bytes] = {}
    pending: list[dict[Name, int | None]] = []
    for operation in [None, *operations]:
        kind = operation and operation[0]
        if kind == "names":
            pending.append(operation[1])
        elif kind == "write":
            written[operation[1]] = operation[2]
        elif kind == "flush" and operation[1] in folders:
            kept = []
            for change in pending:
                if any(folder == operation[1] for folder, _ in change):
                    _apply(durable_names, change)
                else:
                    kept.append(change)
            pending = kept
        elif kind == "flush":
            durable[operation[1]] = written.get(operation[1], b"")
        choices = [[True] * len(pending), [False] * len(pending)]
        choices += [[i != n for i in range(len(pending))] for n in range(len(pending))]
        choices += [[dice.random() < 0.5 for _ in pending] for _ in range(draws)]
        for chosen in choices:
            names = dict(durable_names)
            for change, there in zip(pending, chosen, strict=True):
                if there:
                    _apply(names, change)
            for part in ("all", "none", "half", "zeros", *["any"] * draws):
                contents = {}
                for number, now in written.items():
                    before = durable.get(number, b"")
                    word = dice.choice(("all", "none", "half", "zeros")) if part == "any" else part
                    middle = (len(before) + len(now) + 1) // 2
                    zeros = now[: len(before)] + bytes(max(0, middle - len(before))) + now[middle:]
                    contents[number] = {"all": now, "none": before, "half": now[:middle], "zeros": zeros}[word]
                    if before == now:
                        contents[number] = now
                yield _tree(folders, names, contents)


def _apply(names: dict[Name, int], change: dict[Name, int | None]) -> None:
    for name, number in change.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _tree(folders: set[int], names: dict[Name, int], contents: dict[int, bytes], folder: int = 0) -> Tree:
    tree: Tree = {}
    for (parent, name), number in names.items():
        if parent != folder:
            continue
        if number in folders:
            tree[f"{name}/"] = b""
            below = _tree(folders, names, contents, number)
            tree |= {f"{name}/{path}": content for path, content in below.items()}
        else:
            tree[name] = contents.get(number, b"")
    return tree
