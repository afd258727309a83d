"""Report of several runs: a table of their metrics and differing options, and figures of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rltok_rl.experiments.reports.grid import write_grid
from rltok_rl.experiments.reports.markdown import (
    bullets,
    code,
    markdown,
    number,
    option_text,
    plain,
    with_error,
    with_unit,
)
from rltok_rl.experiments.reports.table import (
    METRICS,
    best_groups,
    counted,
    grouped,
    looks_ahead,
    loss_curves,
    option_table,
    run_table,
    same_text,
    seed_groups,
)
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.data.disk import replace_text
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz.run_figures import draw_comparison, draw_loss_against_flops
from rltok_rl.viz.style import MOST_RUNS
from rltok_rl.viz.text_figures import MarkedText, draw_texts

CURVES = "loss-flops.csv"
COLUMNS = (
    *("bits per byte, held out", "early exit", "rate (target)", "entropy, nats", "advantage spread, nats"),
    *("bytes", "total FLOPs", "speed", "return over even spacing, nats", "share of the optimum, held out"),
)
*_, RELATIVE, SHARE = COLUMNS
NO_HELP = (
    "**Tokens do not help yet** where the early exit, which sees none, predicts better than the whole model. This is "
    "normal at the start of training: with `model=toy` on books it ended between 0.4 and 0.8 MB."
)
_DOTS = (
    "Lines are training, dots are held-out text, a dashed line is the target of the rate. Where lines overlap, the "
    "broad one is below."
)
_SEEDS = " Thin lines are seeds, the others their means, with a band or a bar of one standard deviation on either side."
_GRID = "Small dots are seeds; bars are one standard deviation over seeds on either side of their mean."

_SEVERAL = (
    "Rows of several seeds have means ± the standard deviation over seeds. Bold: not distinguishable from the best on "
    "the same held-out text by a paired test over seeds (95 %)."
)
_NO_BOLD = "Nothing is bold: a paired test over seeds needs several seeds of each run."
_SINGLE = (
    "Errors of single runs are over batches of held-out windows: how well that text was measured, not what other "
    "documents would give (`rltok eval` has errors over documents)."
)
_INTERMEDIATE = "Their metrics are intermediate, and never bold if others are finished."


def write_comparison(folders: list[Path], out: Path, *, formats: Sequence[str] = ("png",), each: bool = False) -> Path:
    """Write ``report.md``, figures and ``loss-flops.csv`` of several runs.

    Runs that differ in their seed alone share a row and a colour, unless ``each`` is set. Runs on the same held-out
    text share a table, best in bold; metrics of different tables cannot be compared, and the page says so.
    """
    read = [read_run(folder) for folder in folders]
    runs = dict(zip(map(plain, _names(read)), read, strict=True))
    out.mkdir(parents=True, exist_ok=True)
    table, options = run_table(runs), option_table(runs)
    differing = [name for name in options if options[name].map(repr).nunique() > 1]
    texts = grouped(runs, lambda name, other: same_text(runs[name], runs[other]))
    options["text"] = table["text"] = table.index.map({name: n for n, names in enumerate(texts) for name in names})
    table["group"] = table.index if each else seed_groups(options)
    groups = {name: list(rows.index) for name, rows in table.groupby("group", sort=False)}
    of_seeds = {name: members for name, members in groups.items() if len(members) > 1}
    tables = [[table.loc[groups[name]] for name in rows["group"].unique()] for _, rows in table.groupby("text")]
    parts = [f"# {', '.join(groups)}"]
    if len(texts) > 1:
        separate = "; ".join(", ".join(map(_name, group_rows)) for group_rows in tables)
        parts.append(f"**Not all runs can be compared**: these have different held-out texts: {separate}.")
    for place, group_rows in enumerate(tables, 1):
        if len(texts) > 1:
            parts.append(f"## Text {place}: {code(group_rows[0]['run'].iloc[0].option('data.source'))}")
        parts.append(_comparison_table(group_rows, options[differing], seeds=bool(of_seeds)))
    parts.append(bullets(_notes(tables, differing)))
    number = write_grid(table, options.drop(columns="text"), out, formats) if len(texts) == 1 else None
    if number is not None:
        parts.append(f"![Held-out metrics against `{number}`](grid.png)\n\n{_GRID}")
    if number is None or len(groups) <= MOST_RUNS:
        parts += _figures(runs, of_seeds, out, formats, one_text=len(texts) == 1)
    else:
        parts.append(f"Curves are left out, for more than {MOST_RUNS} groups: `rltok report RUN RUN ... --out FOLDER`.")
    if of_seeds:
        singles = [table.loc[[name]].assign(group=name) for members in groups.values() for name in members]
        parts.append("## Each run\n\nErrors are over batches of held-out windows.")
        parts.append(_comparison_table(singles, options[differing], seeds=False, bold=False))
    page = out / "report.md"
    replace_text(page, "\n\n".join(parts) + "\n")
    replace_text(out / CURVES, loss_curves(runs).to_csv(index=False, lineterminator="\n"))
    return page


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in the folder of a sweep; none if it is a run."""
    return [] if (folder / "config.yaml").is_file() else sorted(path.parent for path in folder.glob("*/config.yaml"))


def _names(runs: list[RunFolder]) -> list[str]:
    """Names of folders, with their parents' names if two are the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    names = ["/".join(run.path.resolve().parts[-2:]) for run in runs]
    return [f"{name} ({names[:n].count(name) + 1})" if name in names[:n] else name for n, name in enumerate(names)]


def _name(rows: pd.DataFrame) -> str:
    return str(rows["group"].iloc[0])


def _comparison_table(groups: Sequence[pd.DataFrame], options: pd.DataFrame, *, seeds: bool, bold: bool = True) -> str:
    """A row per seed group: differing options, seeds, metrics."""
    names = [name for name in options if not (seeds and name == "seed")]
    cells_of = [metric_cells(rows) for rows in groups]
    # A known optimum leads, then bits per byte and returns.
    columns = [name for name in (SHARE, COLUMNS[0], RELATIVE, *COLUMNS[1:-2]) if any(name in row for row in cells_of)]
    best = best_groups(groups, by_share=columns[0] == SHARE) if bold else set()
    body = []
    for place, (rows, metrics_of) in enumerate(zip(groups, cells_of, strict=True)):
        first, *metrics = (metrics_of.get(name, "-") for name in columns)
        label = f"{_name(rows)}{' *' if rows['oracle'].any() else ''}"
        cells = [option_text(options.at[rows.index[0], name]) for name in names] + ([_seed_list(rows)] if seeds else [])
        body.append([label, *cells, f"**{first}**" if place in best else first, *metrics])
    return markdown(["run", *(f"`{name}`" for name in names), *(["seeds"] if seeds else []), *columns], body)


def _seed_list(rows: pd.DataFrame) -> str:
    used = counted(rows)
    left_out = rows.drop(used.index)["seed"]
    seeds = ", ".join(map(str, used["seed"]))
    return f"{seeds} ({', '.join(map(str, left_out))} not finished)" if len(left_out) else seeds


def metric_cells(group: pd.DataFrame) -> dict[str, str]:
    """Format the metrics of a seed group by column: one run with its errors, several with their standard deviations.

    Returns are left out if they are not known.
    """
    rows = counted(group)
    first, single, values = rows.iloc[0], len(rows) == 1, rows[METRICS].astype(float)
    mean, spread = values.mean(skipna=False), values.std(skipna=False)
    loss, early, rate, entropy, advantage = (with_error(mean[name], spread[name]) for name in METRICS[:5])
    bytes_done, flops = with_unit(mean["bytes"], "B"), with_unit(mean["total_flops"], "FLOPs")
    if single:
        loss = with_error(mean["held_out_bits_per_byte"], first["held_out_standard_error"])
        if first["snapshot_bytes"] not in (None, first["bytes"]):
            loss += f" at {with_unit(first['snapshot_bytes'], 'B')}"
        entropy, advantage = number(mean["entropy"]), number(mean["advantage_spread"])
        bytes_done += _planned(first["run"])
        flops += " + trials not recorded" if first["tried_flops"] is None else ""
    if not first["finished"]:
        bytes_done += ", not finished"
    target = option_text(first["run"].target_rate)
    cells = (loss, early, f"{rate} ({target})", entropy, advantage, bytes_done, flops, with_unit(mean["speed"], "B/s"))
    errors = {name: first[f"{name}_standard_error"] if single else spread[name] for name in METRICS[-2:]}
    gains = (with_error(mean[name], error) for name, error in errors.items())
    known = {name: cell for name, cell in zip((RELATIVE, SHARE), gains, strict=True) if cell != "-"}
    return dict(zip(COLUMNS, cells, strict=False)) | known


def _planned(run: RunFolder) -> str:
    """The bytes that an unfinished run still counts up to."""
    total = None if run.option("optim.total_flops") else run.option("optim.total_bytes")
    return f" of {with_unit(total, 'B')}" if total and run.summary is None else ""


def tokens_do_not_help(rows: pd.DataFrame) -> bool:
    """Whether runs predict worse than their early exits, after at least one update."""
    losses = rows.loc[rows["bytes"] > 0, METRICS[:2]].astype(float)
    return bool(losses.diff(axis=1).iloc[:, 1].sum() < 0)


def _notes(tables: Sequence[Sequence[pd.DataFrame]], differing: Sequence[str]) -> list[str]:
    """Notes below the tables."""
    groups = [rows for table in tables for rows in table]
    every, singles = pd.concat(groups), [_name(rows) for rows in groups if len(counted(rows)) == 1]
    notes = [_SEVERAL if len(singles) < len(groups) else _NO_BOLD]
    if singles:
        notes.append(_SINGLE)
        rows_of = "One run per row" if len(singles) == len(groups) else f"One seed of {', '.join(singles)}"
        notes.append(f"{rows_of}: a difference may be that of seeds.")
    if unfinished := [_name(rows) for rows in groups if not rows["finished"].any()]:
        notes.append(f"Not finished: {', '.join(unfinished)}. {_INTERMEDIATE}")
    if helpless := [_name(rows) for rows in groups if tokens_do_not_help(counted(rows))]:
        notes.append(f"{NO_HELP} This holds for {', '.join(helpless)}.")
    for table in tables:
        flops = pd.concat([counted(rows)["total_flops"] for rows in table]).astype(float).fillna(0.0)
        if flops.max() > 1.05 * flops.min():
            low, high = (with_unit(value, "FLOPs") for value in (flops.min(), flops.max()))
            notes.append(f"Budgets differ, from {low} to {high}: a lower loss may be due to the larger budget.")
    kinds = list(dict.fromkeys(map(_vocabulary, every["run"])))
    if len(kinds) > 1:
        notes.append(f"Vocabularies differ ({'; '.join(kinds)}). Bits per byte can be compared: they count bytes.")
    if every["oracle"].any():
        notes.append("An asterisk marks boundaries that depend on later bytes: no model's bits per byte, never bold.")
    if not differing:
        notes.append("All runs have one configuration.")
    return notes


def _vocabulary(run: RunFolder) -> str:
    """The ids that a run reads, and its tokenizer."""
    special = run.model.get("num_special") or 0
    name, size = run.option("segmenter.name"), run.option("segmenter.options.vocabulary")
    cut = f", cut by {name}" + (f" of {size:,} pieces" if size else "") if looks_ahead(run) else ""
    return f"256 bytes{f' and {special} special ids' if special else ''}{cut}"


def _figures(
    runs: Mapping[str, RunFolder], groups: Mapping[str, list[str]], out: Path, formats: Sequence[str], *, one_text: bool
) -> list[str]:
    """Draw all figures that the runs have data for; return their Markdown."""
    trained = {name: (run.history, run.held_out) for name, run in runs.items() if run.history}
    with_flops = {name: columns for name, columns in trained.items() if "flops" in columns[0]}
    targets = {name: run.target_rate for name, run in runs.items()}
    for suffix in formats:
        if trained:
            draw_comparison(trained, out / f"comparison.{suffix}", target_rates=targets, groups=groups)
        if with_flops:
            draw_loss_against_flops(with_flops, out / f"loss-flops.{suffix}", groups=groups)
    parts = []
    if trained:
        title = "Bits per byte, boundaries per byte, policy entropy and advantage spread against bytes"
        parts.append(f"![{title}](comparison.png)\n\n{_DOTS}{_SEEDS if groups else ''}")
    if with_flops:
        parts.append("![Bits per byte against total FLOPs](loss-flops.png)")
    if one_text and draw_last_texts(runs, out, formats):
        parts.append("![The same held-out text with the boundaries of every run](texts.png)")
    return parts


def draw_last_texts(runs: Mapping[str, RunFolder], out: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw the last sample of every run that has one as ``texts.png``."""
    texts = [marked_text(name, run) for name, run in runs.items() if run.snapshots]
    return [draw_texts(texts, out / f"texts.{suffix}") for suffix in formats] if texts else []


def marked_text(title: str, run: RunFolder) -> MarkedText:
    """Return the sample of a run's last snapshot, ready to draw."""
    snapshot = run.snapshots[-1]
    text, boundaries, probabilities = sample_parts(snapshot)
    note = f"{snapshot['held_out_bits_per_byte']:.3f} bits per byte, "
    note += f"{snapshot['held_out_rate']:.3f} boundaries per byte"
    return MarkedText(title, text, probabilities, boundaries, note)
