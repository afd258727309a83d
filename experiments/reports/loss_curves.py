"""Loss against FLOPs of any set of runs, as a table that other programs read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltok_rl.experiments.runs.folder import RunFolder

from rltok_rl.training.atomic_files import replace_text

COLUMNS = ("run", "text", "update", "bytes", "flops", "padded_flops", "bits_per_byte", "standard_error")
"""``text`` is ``training`` or ``held out``; what a run of an older version did not note is left empty."""
FILE = "loss-flops.csv"


def loss_curves(runs: Mapping[str, RunFolder]) -> list[dict[str, Any]]:
    """A line for every update of every run, and one for every look at held-out text.

    Args:
        runs: by name; finished or not.

    Returns:
        Lines with the keys :data:`COLUMNS`; None where there is no figure.
    """
    lines = []
    for name, run in runs.items():
        for text, column, found in (
            ("training", "bits_per_byte", _rows(run.history)),
            ("held out", "held_out_bits_per_byte", run.looks),
        ):
            for one in found:
                counts = {key: _whole(one.get(key)) for key in ("update", "bytes")}
                spent = {key: _finite(one.get(key)) for key in ("flops", "padded_flops")}
                loss = {"bits_per_byte": _finite(one.get(column))}
                error = {"standard_error": _finite(one.get("held_out_standard_error"))}
                lines.append({"run": name, "text": text, **counts, **spent, **loss, **error})
    return lines


def write_loss_curves(runs: Mapping[str, RunFolder], path: Path) -> Path:
    """Write :func:`loss_curves` as CSV.

    Args:
        runs: by name.
        path: of the file.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(loss_curves(runs))
    replace_text(path, text.getvalue())
    return path


def _rows(history: dict[str, list[float]]) -> list[dict[str, Any]]:
    """The lines of a table of columns."""
    return [dict(zip(history, values, strict=True)) for values in zip(*history.values(), strict=True)]


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
