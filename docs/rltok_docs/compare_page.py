"""Tables of docs/results/compare.md and places.md, from the committed results.

``python docs/rltok_docs/compare_page.py`` writes them: all systems, their pairs, options of ``unscaled``; fresh seeds.
"""

from __future__ import annotations

import sys
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
PAGES, RESULTS = ROOT / "docs/results", ROOT / "experiments/results"
SCRIPT = "docs/rltok_docs/compare_page.py"
RATE = 0.2
"""Boundaries per byte that systems are compared at."""
_STANDARD = (
    "`standard-init`: [`ours` with standard initial weights](places.md#where-a-fresh-policy-is-undecided), target 0.196"
)
SYSTEMS = {
    "third-letter": "`third-letter`: SpaceByte's boundaries three bytes later",
    "imitation": "`imitation`: `fast` that begins with `third-letter`",
    "ours": "[`ours`](../recipes.md#why-ours), target 0.196",
    "standard-init": _STANDARD,
    "normed": "[`normed`](../recipes.md#why-normed): `standard-init` with gamma 0.95, a norm, target 0.2",
    "unscaled": "[`unscaled`](../recipes.md#why-unscaled)",
    "hnet": "H-Net, ratio weight 10",
    "entropy-spike": "entropy spikes",
    "bpe": "BPE, an oracle",
    "fast": "`tuned` with `boundary_scale` 0.25 (`fast`)",
    "spacebyte": "SpaceByte",
    "tuned": "`tuned`",
    "paper-0.9": "`paper` with gamma 0.9",
    "uniform": "evenly spaced",
    "tuned-0.99": "`tuned` with gamma 0.99",
    "paper": "`paper`",
    "released": "`released`",
    "gumbel": "Gumbel-sigmoid",
    "random": "random",
    "siblings": "two rows per text (`siblings`)",
    "local-flips": "local flips",
}
"""Systems of ``compare-main`` by name."""
PAIRED_ROWS = ("standard-init", "normed", "unscaled", "ours", "hnet", "fast", "spacebyte", "tuned", "paper-0.9")
PAIRED_COLUMNS = {
    "unscaled": "`unscaled`",
    "hnet": "H-Net",
    "fast": "`fast`",
    "spacebyte": "SpaceByte",
    "tuned": "`tuned`",
    "paper-0.9": "`paper`, gamma 0.9",
    "tuned-0.99": "`tuned`, gamma 0.99",
    "paper": "`paper`",
}
"""Systems with five seeds whose pairs a table has, rows before columns in the order of the table of systems."""
FRESH_ROWS = (
    *("ours", "standard-init", "normed", "unscaled", "warm-99", "tuned", "spacebyte", "uniform", "paper-0.9", "paper"),
)
FRESH_COLUMNS = {
    "uniform": "evenly spaced",
    "spacebyte": "SpaceByte",
    "tuned": "`tuned`",
    "paper-0.9": "`paper`, gamma 0.9",
    "paper": "`paper`",
    "unscaled": "`unscaled`",
    "normed": "`normed`",
}
"""Systems with seeds 5 to 9, and those that they are compared with."""
_OURS = "natural gradients after a warm start of 250 kB, undecided at first"
_FEW = "in a quarter of the rows until settled"
_SECOND_ROWS = "counterfactuals.md#second-rows-that-run-forward-only"
CHANGES = {
    "unscaled": "`unscaled`: gamma 0.9, policy weight 0.1, rate weight 1, batch mean, eight lags",
    "natural-gradient": "natural gradients",
    "ours": f"[`recipe=ours`](../recipes.md#why-ours): {_OURS}, target 0.196",
    "standard-init": _STANDARD,
    "standard-init-95": "`standard-init` with gamma 0.95, target 0.2",
    "standard-init-95-lower": "`standard-init` with gamma 0.95, target 0.196",
    "policy-0.3": "policy weight 0.3",
    "policy-and-target": "policy weight 0.3, target 0.193",
    "rate-0.3": "rate weight 0.3",
    "normed": "[`recipe=normed`](../recipes.md#why-normed): `standard-init` with gamma 0.95, a norm, target 0.2",
    "running-mean": "running mean",
    "normed-0.197": "`recipe=normed` with a target of 0.197",
    "leave-one-out": "leave-one-out",
    "disarm": f"[DisARM](counterfactuals.md#disarm) with gamma 0.99 and a warm start of 250 kB, {_FEW}",
    "gamma-0.95": "gamma 0.95",
    "sibling-trial": f"[second rows]({_SECOND_ROWS}) that run forward only, {_FEW}",
    "warm-90": "a warm start of 250 kB",
    "scaled-by-position": "returns over their standard deviation at each position",
    "scaled-by-row": "returns over their standard deviation in each row",
    "sibling-blocks": f"[second rows in blocks]({_SECOND_ROWS}), {_FEW}",
    "control-variate": "control variate",
    "one-lag": "one lag",
    "doubly-robust": f"[doubly robust flips]({_SECOND_ROWS}), as `budgeted_flips`",
    "policy-and-pi": "policy weight 0.3, rate held by `pi`",
    "gamma-0.8": "gamma 0.8",
    "budgeted-flips": "`budgeted_flips`",
    "gamma-0.7": "gamma 0.7",
    "warm-99": "gamma 0.99 and a warm start of 250 kB",
    "norm-95": "gamma 0.95 and the norm",
    "norm": "with the norm",
    "token-gain": f"`token_gain`, gamma 1, {_FEW}",
    "token-gain-90": f"`token_gain`, gamma 0.9, {_FEW}",
    "z-score": "z-score",
    "warm-start": "1.5 MB with random boundaries first (before revision 32b6ab12)",
    "both-weights": "policy weight 0.3 and rate weight 3",
    "gamma-0.99": "gamma 0.99",
    "critic-1": "a critic (lambda 1) instead of the batch mean",
    "critic": "a critic (lambda 0.95) instead of the batch mean",
    "pooled-critic-1": "a critic that pools tokens (lambda 1) instead of the batch mean",
    "pooled-critic": "a critic that pools tokens (lambda 0.95) instead of the batch mean",
    "rate-3": "rate weight 3",
    "policy-0.03": "policy weight 0.03",
    "flips": "`local_flips` in every row, two per 16 bytes",
}
"""Variants of ``compare-grid`` by name."""


def tables() -> dict[str, dict[str, str]]:
    """Return all tables by page and name."""
    main, grid, fresh = (
        SeedTable(read_earlier(RESULTS / folder / TABLE))
        for folder in ("compare-main", "compare-grid", "compare-fresh")
    )
    first = pd.concat([main.losses, grid.losses[["warm-99"]]], axis=1)
    return {
        "compare.md": {"systems": _systems(main), "pairs": _pairs(main), "changes": _changes(grid)},
        "places.md": {
            "seeds 5 to 9": _fresh(fresh.losses),
            "seeds 0 to 9": _fresh(pd.concat([first, fresh.losses]).sort_index()),
        },
    }


def pages() -> dict[Path, str]:
    """Return the pages with fresh tables."""
    texts = {}
    for name, of_page in tables().items():
        texts[PAGES / name] = (PAGES / name).read_text(encoding="utf-8")
        for table_name, table in of_page.items():
            texts[PAGES / name] = with_table(texts[PAGES / name], f"{SCRIPT}, {table_name}", table)
    return texts


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
                f"{with_error(losses.mean(), losses.std())} ({_listed(losses)})",
                "-" if name == table.reference else interval(table.over_seeds(name, table.reference)),
                _rates(table, rows),
                ", ".join(f"{100 * share:.0f}" for share in rows["space_recall"]),
                _trials(table, name),
                _minutes(rows),
            ]
        )
    return markdown(["system", *header, *more], body) + "\n"


def _pairs(table: SeedTable) -> str:
    """Return by how much each row is ahead of each column, bold if the interval excludes 0, each pair once."""
    body, columns = [], list(PAIRED_COLUMNS)
    for row in PAIRED_ROWS:
        after = columns[columns.index(row) + 1 :] if row in columns else columns
        leads = [_lead(table.losses, row, column) if column in after else "" for column in columns]
        body.append([PAIRED_COLUMNS.get(row, f"`{row}`"), *leads])
    return markdown(["", *PAIRED_COLUMNS.values()], body) + "\n"


def _fresh(losses: pd.DataFrame) -> str:
    """Return the losses of systems, and by how much each is ahead of others, bold if the interval excludes 0."""
    body = []
    for row in FRESH_ROWS:
        of_row = losses[row].dropna()
        each = f" ({_listed(of_row)})" if len(of_row) == 5 else ""
        leads = ["-" if row == column else _lead(losses, row, column) for column in FRESH_COLUMNS]
        body.append([FRESH_COLUMNS.get(row, f"`{row}`"), with_error(of_row.mean(), of_row.std()) + each, *leads])
    return markdown(["", "bits per byte", *FRESH_COLUMNS.values()], body) + "\n"


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
        cells = ["-", "-"]
        if not is_reference:
            cells = [_listed(each, "+"), interval(table.over_seeds(name, "unscaled"))]
        line = [
            label,
            _listed(losses[name].dropna()),
            *cells,
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
