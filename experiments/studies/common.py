"""Options, progress and results files that the studies share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltok_rl.utils import did_you_mean

T = TypeVar("T")


def read_options(schema: type[T], arguments: Sequence[str]) -> T:
    """Read ``name=value`` options into a dataclass."""
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.from_dotlist(list(arguments)))
        options: Any = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        names, reason = list(getattr(schema, "__dataclass_fields__", ())), str(error.msg).partition("\n")[0]
        given = [argument.partition("=")[0] for argument in arguments]
        if unknown := [name for name in given if name.partition(".")[0].partition("[")[0] not in names]:
            near = did_you_mean(unknown[0], names)
            raise ValueError(f"options must be among {names}, as name=value, got {unknown[0]!r}{near}") from None
        raise ValueError(f"{error.full_key or 'options'} has a value of the wrong type: {reason}") from None
    return options


def check_minimums(options: Any, minimums: Mapping[str, int]) -> None:
    """Raise ValueError for the first option below its minimum."""
    for name, minimum in minimums.items():
        if getattr(options, name) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {getattr(options, name)}")


def check_choices(options: Any, **allowed: Iterable[str]) -> None:
    """Raise ValueError for the first list of options that is empty or holds anything but allowed words."""
    for name, words in allowed.items():
        values, words = getattr(options, name), list(words)
        if not values or set(values) - set(words):
            near = did_you_mean(next((str(value) for value in values if value not in words), ""), words)
            raise ValueError(f"{name} must be among {words}, got {values}{near}")


class StepLines:
    """Lines on standard error with the number of steps done, and the ETA; ``lines`` in all, or one per step."""

    def __init__(self, label: str = "", *, lines: int | None = None) -> None:
        self.label, self.lines, self.start = label, lines, time.perf_counter()

    def __call__(self, done: float, total: int, note: str = "") -> None:
        """Print a line, if one is due after ``done`` of ``total`` steps."""
        if self.lines and done % max(1, total // self.lines) and done != total:
            return
        left = (time.perf_counter() - self.start) / max(done, 0.01) * (total - done)
        print(f"  {self.label} {done:g}/{total}{note}, {left:.0f} s left", file=sys.stderr, flush=True)


@contextmanager
def unchanged(trainer: Any) -> Iterator[None]:
    """Restore a trainer's losses, texts and random numbers afterwards, so that measurements leave its run as it is."""
    state = deepcopy(trainer.progress_state())
    try:
        yield
    finally:
        trainer.load_progress(state)


def write_rows(out: str, rows: Iterable[Mapping[str, str]]) -> None:
    """Write rows as lines of JSON, all of them or none."""
    from rltok_rl.data.disk import replace_text  # imports torch

    path = Path(out)
    if path.is_dir():
        raise ValueError(f"out must be a file, got the folder {out!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_numbers(path: Path, content: Mapping[str, Any]) -> None:
    """Write results as one line of JSON with nine significant digits; an interruption leaves the earlier file."""
    from rltok_rl.experiments.reports.markdown import rounded, without_nan

    from rltok_rl.data.disk import replace_text

    replace_text(path, json.dumps(rounded(without_nan(content)), separators=(",", ":")) + "\n")


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Return the command that results files name."""
    return " ".join([f"python -m rltok_rl.experiments.studies.{module}", *arguments])
