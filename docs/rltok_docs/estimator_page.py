"""The tables and the figure of estimators in docs/results/estimators.md, from the committed results.

``python docs/rltok_docs/estimator_page.py`` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rltok_rl.experiments.reports.markdown import with_table
from rltok_rl.experiments.studies.estimator_table import Row, draw, gradient_table, learning_table, read_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE, FIGURE = ROOT / "docs/results/estimators.md", ROOT / "docs/figures/estimators.png"
RESULTS = ROOT / "experiments/results"
SCRIPT = "docs/rltok_docs/estimator_page.py"


def page(rows: Sequence[Row]) -> str:
    """Return the page with fresh tables."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("learning", learning_table(rows)), ("gradients", gradient_table(rows))):
        text = with_table(text, f"{SCRIPT}, {name}", table)
    return text


if __name__ == "__main__":
    measured = read_rows(RESULTS)
    PAGE.write_text(page(measured), encoding="utf-8")
    print(PAGE, draw(measured, FIGURE), sep="\n", file=sys.stderr)
