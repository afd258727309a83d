"""Results that are committed, and copies of finished runs to write pages of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..layout import ROOT

RESULTS = ROOT / "experiments" / "results"
RUNS = Path(__file__).parent / "finished_runs"
"""A learned policy with local flips, evenly spaced boundaries and SpaceByte, trained on the same books."""
KEPT = ("config.yaml", "summary.json", "evaluation.json", "model.json", "environment.json")


def copy_run(source: str, target: Path, *more: str) -> Path:
    """Copy a finished run with the files that pages read, and ``more``."""
    target.mkdir(parents=True)
    for name in (*KEPT, *more):
        if (RUNS / source / name).exists():
            shutil.copy(RUNS / source / name, target / name)
    return target


def rewrite(path: Path, **changes: Any) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
