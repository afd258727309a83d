"""Copies of committed runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..layout import ROOT

RESULTS = ROOT / "experiments" / "results"
KEPT = ("config.yaml", "summary.json", "evaluation.json", "model.json", "environment.json")


def copy_run(source: str, target: Path, *more: str) -> Path:
    """Copy a committed run with the files that pages read, and ``more``."""
    target.mkdir(parents=True)
    for name in (*KEPT, *more):
        if (RESULTS / source / name).exists():
            shutil.copy(RESULTS / source / name, target / name)
    return target


def rewrite(path: Path, **changes: Any) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
