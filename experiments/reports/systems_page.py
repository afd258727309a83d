"""Page of a comparison: one table of its systems, one figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.comparison import draw_last_texts
from rltok_rl.experiments.reports.markdown import bullets, code, markdown, options_text, plain, with_error, with_unit
from rltok_rl.experiments.reports.paired import paired_over_documents
from rltok_rl.experiments.reports.table import best_systems, equal_budgets, run_table, system_cells, total_flops
from rltok_rl.experiments.runs.folder import EVALUATION, RunFolder, read_run

from rltok_rl.data.disk import replace_text
from rltok_rl.foreign import MOST_STATE, read_json
from rltok_rl.training.environment import machine, without_folders
from rltok_rl.training.progress import clock
from rltok_rl.viz.run_figures import draw_loss_against_flops, draw_loss_against_rate

PAGE, TABLE, FIGURE, TEXTS, RATES = "compare.md", "compare.json", "compare.png", "texts.png", "rates.png"
COLUMNS = (
    *("system", "estimator", "bits_per_byte", "standard_error", "early_bits_per_byte", "rate", "target_rate"),
    *("oracle", "documents", "windows", "counts", "nats", "target_rates", "at_rates", "rows_per_text", "split_by"),
    *("predicted", "flops", "padded_flops", "bytes", "peak_memory", "tried_flops", "seconds"),
    *("space_recall", "space_precision", "space_chance", "edge_precision", "edge_chance"),
    *("parameters", "updates", "seed"),
)
"""Columns of the table of runs that describe a system."""
HEADER = (
    *("system", "estimator", "total FLOPs", "bits per byte", "minus {first}", "boundaries per byte (target)"),
    *("with padding", "parameters", "bytes", "time", "peak memory", "spaces that have a boundary"),
    "boundaries that are at a space",
)
_FIRST = ("learned", "learned-paper", "learned-w1", "learned-w0")
_ON_PAGE = (
    "Boundaries per byte are measured on held-out text, the target is that of training; “none” if the text alone, "
    "or a vocabulary, decides.",
    "Total FLOPs are matrix products of forward and backward passes (attention scores left out), and of the "
    "work of an estimator (trials, critic, further epochs). “With padding” leaves that out and counts "
    "rows of tokens as long as the longest of their batch.",
    "Time is that of training, evaluations and checkpoints included, on cores that may have been shared.",
)


def evaluated_systems(folder: Path) -> list[str]:
    """Return the systems that are trained and evaluated, learned ones first."""
    needed = ("config.yaml", "summary.json", EVALUATION)
    names = sorted(path.name for path in folder.iterdir() if all((path / name).is_file() for name in needed))
    return sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds evaluated systems of a comparison."""
    return not (folder / "config.yaml").is_file() and bool(evaluated_systems(folder))


def system_rows(runs: Mapping[str, RunFolder]) -> list[dict[str, Any]]:
    """Return the metrics of systems on held-out documents, with the bytes and nats of each document.

    Names of systems are those of folders, of any characters; they open no tag in a page.
    """
    return run_table(runs).rename(index=plain).rename_axis("system").reset_index()[list(COLUMNS)].to_dict("records")


def write_page(folder: Path, command: str | None = None, *, formats: Sequence[str] = ("png",)) -> Path | None:
    """Write ``compare.md``, ``compare.json``, ``compare.png`` and ``texts.png``; None if no system is done.

    Args:
        folder: the comparison.
        command: the command line that started it; None keeps the command and the machine of the page.
        formats: file formats of the figures; the page shows the PNG, which must be among them.
    """
    runs = {name: read_run(folder / name) for name in evaluated_systems(folder)}
    if not runs:
        return None
    rows = system_rows(runs)
    for row in rows:
        difference = None if row is rows[0] else paired_over_documents(row, rows[0])
        row["difference"] = None if difference is None else difference.mean
        row["difference_error"] = None if difference is None else difference.error
    before = read_json(folder / TABLE, MOST_STATE) if command is None and (folder / TABLE).exists() else {}
    content: dict[str, Any] = {
        "command": without_folders(before.get("command", command or "")),
        "machine": before.get("machine") or machine("cpu"),
        "systems": [{key: value for key, value in row.items() if key not in ("counts", "nats")} for row in rows],
    }
    replace_text(folder / TABLE, json.dumps(content, indent=1) + "\n")
    trained = {name: (run.history, run.held_out) for name, run in runs.items()}
    for suffix in formats:
        draw_loss_against_flops(trained, (folder / FIGURE).with_suffix(f".{suffix}"))
        if any(row["at_rates"] for row in rows):
            draw_loss_against_rate(rows, (folder / RATES).with_suffix(f".{suffix}"))
    draw_last_texts(runs, folder, formats)
    replace_text(folder / PAGE, page(rows, next(iter(runs.values())), _unfinished(folder), content["command"]))
    return folder / PAGE


def page(rows: list[dict[str, Any]], run: RunFolder, unfinished: Sequence[str], command: str) -> str:
    """Return the page as Markdown.

    Args:
        rows: all systems; ``minus`` columns compare them with the first one.
        run: the first system's run.
        unfinished: systems in training, with their progress.
        command: the command line that started the comparison.
    """
    first, strong = rows[0]["system"], best_systems(rows)
    body = [_line(row, bold=place in strong) for place, row in enumerate(rows)]
    overrides = options_text(run.option("model.overrides"))
    parts = [
        f"# {_title(rows)}",
        *([f"    {command}"] if command else []),
        f"{code(run.option('data.source'))}, {run.option('data.num_rows')} rows of {run.option('data.num_steps')} "
        f"bytes; model {code(run.option('model.preset'))} with {overrides or 'nothing replaced'}.",
        markdown([name.format(first=first) for name in HEADER], body),
        *([f"Not done yet: {', '.join(unfinished)}."] if unfinished else []),
        bullets(_notes(rows)),
        f"![Bits per byte against total FLOPs]({FIGURE})",
        "Left: training (lines) and held-out text (dots). Right: the end, on the held-out windows of the evaluations "
        "during training, which are fewer than those of the table.",
        f"![The same held-out text with the boundaries of every system]({TEXTS})",
    ]
    if several := [row for row in rows if row["at_rates"]]:
        header = ["system", "given rate", "boundaries per byte", "bits per byte"]
        body = [
            [
                row["system"],
                f"{at['target_rate']:.2f}",
                f"{at['rate']:.3f}",
                with_error(at["bits_per_byte"], at["error"]),
            ]
            for row in several
            for at in row["at_rates"]
        ]
        names = ", ".join(row["system"] for row in several)
        parts += [
            f"{names} can be given a rate; the table above has its target. The same model at other rates:",
            markdown(header, body),
            f"![Bits per byte against boundaries per byte]({RATES})",
        ]
    return "\n\n".join(parts) + "\n"


def _title(rows: list[dict[str, Any]]) -> str:
    """The heading: the common budget, and systems whose trials exceed it."""
    least = min(map(total_flops, rows))
    above = [
        f", {row['system']} with {with_unit(row['tried_flops'], 'FLOPs')} of trials on top ({row['estimator']})"
        for row in rows
        if row["tried_flops"] and not equal_budgets((least, total_flops(row)))
    ]
    equal = "in total" if equal_budgets(map(total_flops, rows)) else "of training"
    return f"Systems at {with_unit(least, 'FLOPs')} {equal}{''.join(above)}"


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    """Notes below the table."""
    first, single = rows[0], rows[0]["standard_error"] is None
    unit = first["split_by"] or "document"
    error = f"The standard error is over {unit}s. Bold: not distinguishable from the best by a paired test "
    error += f"(95 %, over {unit}s), if total FLOPs differ by at most 2 %."
    if single:
        error = "One document gives no standard error, and nothing is bold."
    notes = [
        f"Bits per byte are those of the corpus, all bits over all bytes: {first['predicted']:,} held-out bytes in "
        f"{first['documents']:,} {unit}{'' if first['documents'] == 1 else 's'}, the same for all. {error}"
    ]
    if rows[1:]:
        paired = "" if single else f", with its standard error over {unit}s, paired"
        notes.append(f"“Minus {first['system']}” is the difference on the same {unit}s{paired}.")
    notes += _ON_PAGE
    for row in rows:
        if row["target_rates"]:
            rates = ", ".join(f"{script} {rate:g}" for script, rate in row["target_rates"].items())
            notes.append(f"{row['system']} has a target rate by script: {rates}.")
    notes += [
        f"{row['system']} reads every text in {row['rows_per_text']} rows side by side; its bytes count all of them."
        for row in rows
        if row["rows_per_text"] > 1
    ]
    if oracles := [row["system"] for row in rows if row["oracle"]]:
        notes.append(
            f"An asterisk marks an oracle: {', '.join(oracles)} looks at later bytes when it draws boundaries. Its "
            "bits per byte are not those of a model, and never in bold."
        )
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    return [*notes, f"One seed ({seeds}): the errors do not cover how far another would differ."]


def _line(row: dict[str, Any], *, bold: bool) -> list[str]:
    return [
        *system_cells(row["system"], row, with_error(row["difference"], row["difference_error"], sign="+"), bold=bold),
        with_unit(row["padded_flops"], "FLOPs"),
        f"{row['parameters']:,}",
        with_unit(row["bytes"], "B"),
        clock(row["seconds"]),
        with_unit(row["peak_memory"], "B"),
        *(with_error(row[key]) for key in ("space_recall", "space_precision")),
    ]


def _unfinished(folder: Path) -> list[str]:
    """Systems in training, with the share of their FLOPs that is spent."""
    started = (path for path in sorted(folder.iterdir()) if (path / "config.yaml").is_file())
    runs = [read_run(path) for path in started if not (path / EVALUATION).is_file()]
    shares = [(run.last_value("total_flops") or 0.0) / (run.option("optim.total_flops") or math.inf) for run in runs]
    return [f"{run.name} ({share:.0%})" for run, share in zip(runs, shares, strict=True)]
