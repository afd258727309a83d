"""The table of recipes, from the files of ``experiments/conf/recipe``.

``python docs/rltok_docs/recipe_page.py`` writes it into docs/recipes.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rltok_rl.experiments.recipes import as_typed, recipe_settings
from rltok_rl.experiments.reports.markdown import with_table
from rltok_rl.experiments.run_config import GROUPS

PAGE = Path(__file__).resolve().parent.parent / "recipes.md"
COLUMNS = ("paper", "released", "tuned", "unscaled", "normed", "ours")


def table() -> str:
    """Every option that recipes set, with the value and its source in each recipe."""
    settings = {name: recipe_settings(name) for name in COLUMNS}
    lines = [f"| option | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for option in sorted(settings["paper"], key=lambda option: [*GROUPS].index(option.split(".")[0])):
        cells = [f"`{as_typed(settings[name][option].value)}` {settings[name][option].source}" for name in COLUMNS]
        lines.append(f"| `{option}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with a fresh table."""
    return with_table(PAGE.read_text(encoding="utf-8"), "docs/rltok_docs/recipe_page.py", table())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)
