"""Tables of README.md and of docs/results/compare.md, places.md and other-texts.md, from the committed results.

``python docs/rltok_docs/compare_page.py`` writes them: all systems, their pairs, sizes, options of ``unscaled``; fresh
seeds; systems on each of the other texts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.earlier_seeds import read_earlier
from rltok_rl.experiments.reports.markdown import markdown, percent, with_error, with_table
from rltok_rl.experiments.reports.paired import interval, paired_over_seeds
from rltok_rl.experiments.reports.seed_table import OFF, SeedTable
from rltok_rl.experiments.reports.seeds_page import TABLE
from rltok_rl.experiments.reports.table import COMPARED_TOLERANCE, off_target

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from rltok_docs.compare_labels import (  # noqa: E402 - needs the path
    AT_WIDTHS,
    CHANGES,
    FRESH_COLUMNS,
    FRESH_ROWS,
    IN_README,
    ON_TEXTS,
    PAIRED_COLUMNS,
    PAIRED_ROWS,
    SYSTEMS,
    TEXTS,
    WIDTHS,
    short,
)

RESULTS = ROOT / "experiments/results"
SCRIPT = "docs/rltok_docs/compare_page.py"
RATE = 0.2
"""Boundaries per byte that systems are compared at."""


def tables() -> dict[str, dict[str, str]]:
    """Return all tables by page and name."""
    main, grid, fresh = map(_read, ("compare-main", "compare-grid", "compare-fresh"))
    first = pd.concat([main.losses, grid.losses[["warm-99"]]], axis=1)
    on_texts = {name: _read(f"compare-{folder}") for name, folder in TEXTS.items()}
    return {
        "README.md": {"texts": _texts(on_texts)},
        "docs/results/compare.md": {
            "systems": _systems(main),
            "pairs": _pairs(main.losses, PAIRED_ROWS, PAIRED_COLUMNS),
            "changes": _changes(grid),
            "widths": _widths(),
        },
        "docs/results/places.md": {
            "seeds 5 to 9": _pairs(fresh.losses, FRESH_ROWS, FRESH_COLUMNS),
            "seeds 0 to 9": _pairs(pd.concat([first, fresh.losses]), FRESH_ROWS, FRESH_COLUMNS),
        },
        "docs/results/other-texts.md": {name: _on_text(table) for name, table in on_texts.items()},
    }


def pages() -> dict[Path, str]:
    """Return the pages with fresh tables."""
    texts = {}
    for name, of_page in tables().items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for table_name, table in of_page.items():
            text = with_table(text, f"{SCRIPT}, {table_name}", table)
        texts[ROOT / name] = text
    return texts


def _read(folder: str) -> SeedTable:
    """Read the page of a comparison in the committed results."""
    return SeedTable(read_earlier(RESULTS / folder / TABLE))


def _systems(table: SeedTable) -> str:
    """Return the table of all systems, the best first."""
    header = ("bits per byte, mean ± sd (each seed)", "minus evenly spaced, 95 % over seeds", "boundaries per byte")
    more = ("spaces with a boundary, %", "trials", "CPU minutes")
    body = []
    for name, label in _ordered(table, SYSTEMS).items():
        rows, losses = table.rows[table.rows["system"] == name], table.losses[name].dropna()
        body.append(
            [
                label,
                _mean_and_each(losses),
                _minus(table, name, table.reference),
                _rates(table, rows),
                ", ".join(f"{100 * share:.0f}" for share in rows["space_recall"]),
                _trials(table, name),
                _minutes(rows),
            ]
        )
    return markdown(["system", *header, *more], body) + "\n"


def _pairs(losses: pd.DataFrame, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Return by how much each row is ahead of each column, bold if the interval excludes 0; each pair once."""
    body = []
    for row in rows:
        after = columns[columns.index(row) + 1 :] if row in columns else columns
        leads = [_lead(losses, row, column) if column in after else "" for column in columns]
        body.append([short(row), with_error(losses[row].mean(), losses[row].std()), *leads])
    return markdown(["", "bits per byte", *map(short, columns)], body) + "\n"


def _on_text(table: SeedTable) -> str:
    """Return the table of systems on another text, the best first, beside evenly spaced boundaries and ours."""
    losses, body = table.losses, []
    names = [name for name in ON_TEXTS if name in table.systems]
    for name in sorted(names, key=lambda name: (losses[name] - losses[table.reference]).mean()):
        differences = [_minus(table, name, other) for other in (table.reference, "ours")]
        rates = _rates(table, table.rows[table.rows["system"] == name])
        body.append([short(name), _mean_and_each(losses[name].dropna()), *differences, rates])
    header = ("bits per byte, mean ± sd (each seed)", "minus evenly spaced", "minus `ours`", "boundaries per byte")
    return markdown(["system", *header], body) + "\n"


def _texts(tables: Mapping[str, SeedTable]) -> str:
    """Return leads over evenly spaced boundaries on other texts, those of ours in descending order."""
    lead = {name: table.losses[table.reference] - table.losses["ours"] for name, table in tables.items()}
    body = []
    for name in sorted(tables, key=lambda name: -lead[name].mean()):
        losses = tables[name].losses
        body.append([name, *_leads_over_uniform(losses, IN_README)])
    return markdown(["", *map(short, IN_README)], body) + "\n"


def _widths() -> str:
    """Return leads over evenly spaced boundaries in comparisons of different sizes, bold if the interval excludes 0."""
    body = []
    for folder, label in WIDTHS.items():
        losses = _read(folder).losses
        body.append([label, f"{losses['uniform'].mean():.3f}", *_leads_over_uniform(losses, AT_WIDTHS)])
    header = ("parameters, total FLOPs, learning rate", "evenly spaced", *map(short, AT_WIDTHS))
    return markdown(header, body) + "\n"


def _leads_over_uniform(losses: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the leads of systems over evenly spaced boundaries, nothing for those that the page lacks."""
    return [_lead(losses, name, "uniform") if name in losses else "" for name in names]


def _lead(losses: pd.DataFrame, row: str, column: str) -> str:
    """Return the lead of a row over a column, bold if its interval excludes 0."""
    lead = paired_over_seeds(losses[column].dropna(), losses[row].dropna())
    text = interval(lead).replace("+", "")
    return f"**{text}**" if lead.significant else text


def _changes(table: SeedTable) -> str:
    """Return the table of options that differ from those of ``unscaled``, the best first, after ``unscaled`` itself."""
    header = ["changed", "bits per byte of each seed", "minus `unscaled`", "mean [95 %]", "boundaries per byte"]
    losses = table.losses
    body: list[list[str]] = []
    for name, label in _ordered(table, CHANGES).items():
        rows, each = table.rows[table.rows["system"] == name], (losses[name] - losses["unscaled"]).dropna()
        is_reference = name == "unscaled"
        line = [
            label,
            _listed(losses[name].dropna()),
            "-" if is_reference else _listed(each, "+"),
            _minus(table, name, "unscaled"),
            _rates(table, rows),
            _trials(table, name),
            _minutes(rows),
        ]
        body.insert(0 if is_reference else len(body), line)
    return markdown([*header, "trials", "CPU minutes"], body) + "\n"


def _ordered(table: SeedTable, labels: dict[str, str]) -> dict[str, str]:
    """Return the labels of all systems, ordered by their mean difference from ``unscaled`` over shared seeds."""
    if unknown := set(table.systems) ^ set(labels):
        raise ValueError(f"labels and systems must be the same, got {sorted(unknown)} in one alone")
    reference = table.losses["unscaled"]
    return dict(sorted(labels.items(), key=lambda item: (table.losses[item[0]] - reference).mean()))


def _mean_and_each(losses: pd.Series) -> str:
    return f"{with_error(losses.mean(), losses.std())} ({_listed(losses)})"


def _minus(table: SeedTable, name: str, other: str) -> str:
    return "-" if name == other else interval(table.over_seeds(name, other))


def _listed(values: Any, sign: str = "") -> str:
    return ", ".join(f"{value:{sign}.3f}" for value in values)


def _rates(table: SeedTable, rows: Any) -> str:
    """Return the rate of each seed, marked if it is off the rate that all should have, whatever its own target is."""
    if not table.has_target[rows.index].all():
        return ", ".join(f"{rate:.3f}" for rate in rows["rate"]) + ", without a target"
    off = off_target(rows["rate"].astype(float), RATE, COMPARED_TOLERANCE)
    return ", ".join(f"{rate:.3f}{f' {OFF}' if far else ''}" for rate, far in zip(rows["rate"], off, strict=True))


def _minutes(rows: Any) -> str:
    return f"{rows['cpu_seconds'].mean() / 60:.1f}"


def _trials(table: SeedTable, system: str) -> str:
    share = table.trials(system)
    return percent(share) if share else "0"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path, file=sys.stderr)
