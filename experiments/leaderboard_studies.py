"""What the leaderboard says of studies: languages with a known answer, and estimators of the gradient."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rltok_rl.experiments.comparison_table import with_error
from rltok_rl.experiments.markdown import markdown, number, with_unit
from rltok_rl.experiments.studies.candidates import MEANING
from rltok_rl.experiments.studies.learn_figure import NAMES


def languages(path: Path, beside: Path) -> str:
    """Systems on languages with a known answer: the share of what tokens can earn there.

    Args:
        path: of ``learn.json``.
        beside: folder of the page, for links.
    """
    found = json.loads(path.read_text())
    parts = [f"## Languages with a known answer\n\n`{found['command']}`", _more(path.with_name("learn.md"), beside)]
    for language in dict.fromkeys(one["language"] for one in found["courses"]):
        rows = []
        for system in NAMES:
            mine = [c for c in found["courses"] if (c["language"], c["system"]) == (language, system)]
            if not mine:
                continue
            shares = [one["final"]["share"] for one in mine]
            single = len(mine) == 1
            error = mine[0]["final"]["standard_error"] if single else stdev(shares) / math.sqrt(len(mine))
            rows.append((fmean(shares), error, system, mine))
        rows.sort(key=lambda row: -row[0])
        body = [
            [
                NAMES[system],
                str(len(mine)),
                with_error(share, error),
                f"{fmean(one['final']['rate'] for one in mine):.3f}",
                with_unit(fmean(one["flops"] for one in mine), "FLOPs")
                + (" + trials not recorded" if system == "learned" else ""),  # local flips
                with_unit(mine[0]["bytes"], "B"),
            ]
            for share, error, system, mine in rows
        ]
        header = ["system", "seeds", "share of the optimal return", "boundaries per byte", "total FLOPs", "bytes"]
        parts.append(f"`{language}`:\n\n{markdown(header, body)}")
    parts.append("Errors are over seeds where there are several, else over texts.")
    return "\n\n".join(parts)


def estimators(path: Path, beside: Path) -> str:
    """Estimators of the policy gradient of one model: how much signal an update buys.

    Args:
        path: of ``estimators.json``.
        beside: folder of the page, for links.
    """
    found = json.loads(path.read_text())
    # What is less than two standard errors from nothing has no place among the others, and stands at the end.
    rows = sorted(found["real"]["table"], key=lambda row: (_lost(row), -row["per_cost"]))
    body = []
    for row in rows:
        value = f"{number(row['per_cost'])} ± {number(row['error'] / row['cost'], 2)}"
        shown = "lost in noise" if _lost(row) else value
        body.append([f"`{row['name']}`", MEANING.get(row["name"], ""), shown, number(row["cost"])])
    header = ["estimator", "", "signal to noise at equal cost", "cost of an update"]
    parts = [
        f"## Estimators of the policy gradient, gamma {found['options']['gamma']:g}\n\n`{found['command']}`",
        _more(path.with_name("estimators.md"), beside),
        markdown(header, body),
        "Lost in noise: less than two standard errors from nothing.",
    ]
    return "\n\n".join(parts)


def _lost(row: dict[str, Any]) -> bool:
    return bool(row["ratio"] < 2 * row["error"])


def _more(path: Path, beside: Path) -> str:
    return f"More in [{path.name}]({link(path, beside)})."


def link(path: Path, beside: Path) -> str:
    """A path as a page in another folder names it.

    Args:
        path: to be linked.
        beside: folder of the page.

    Example:
        >>> link(Path("results/learn.md"), Path("docs"))
        '../results/learn.md'
    """
    return Path(os.path.relpath(path.resolve(), beside.resolve())).as_posix()
