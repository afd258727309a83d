"""Page of a comparison, generated from the folders of its systems: one table, one figure."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.comparable import equal_budgets, estimator_of, spent_flops, total_flops, tried_flops
from rltok_rl.experiments.reports.comparison import draw_last_texts
from rltok_rl.experiments.reports.markdown import markdown, with_unit
from rltok_rl.experiments.reports.seeds import paired_over_documents, tied_with_best
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.training.progress import clock
from rltok_rl.training.record import machine, without_folders
from rltok_rl.viz.comparison import draw_loss_against_flops

PAGE, TABLE, FIGURE, TEXTS, EVALUATION = "compare.md", "compare.json", "compare.png", "texts.png", "evaluation.json"
# Figures of the corpus in evaluation.json, and as the table has them, which knows no others.
_CORPUS = {
    "corpus_bits_per_byte": "bits_per_byte",
    "corpus_standard_error": "standard_error",
    "early_corpus_bits_per_byte": "early_bits_per_byte",
}
_FIRST = ("learned", "learned-paper", "learned-w1", "learned-w0")
HEADER = (
    "system",
    "estimator",
    "total FLOPs",
    "bits per byte",
    "minus the first",
    "boundaries per byte (target)",
    "with padding",
    "parameters",
    "bytes",
    "time",
    "peak memory",
    "spaces that have a boundary",
    "boundaries that are at a space",
)


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds systems of a comparison.

    Args:
        folder: to look at.
    """
    return not (folder / "config.yaml").is_file() and bool(judged_systems(folder))


def write_page(folder: Path, command: str | None = None, *, formats: Sequence[str] = ("png",)) -> Path | None:
    """Write ``compare.md``, ``compare.json``, ``compare.png`` and ``texts.png`` of all systems that are done.

    Args:
        folder: of the comparison.
        command: how it was started; None keeps what the page says, of the machine as well.
        formats: of the figures; the page shows the PNG, which is among them always.

    Returns:
        The page; None where no system is done.
    """
    done = {name: read_run(folder / name) for name in judged_systems(folder)}
    rows = [system_figures(name, run) for name, run in done.items()]
    if not rows:
        return None
    for row in rows:
        found = None if row is rows[0] else paired_over_documents(row, rows[0])
        row["difference"], row["difference_error"] = (None, None) if found is None else (found.mean, found.error)
    before = json.loads((folder / TABLE).read_text()) if command is None and (folder / TABLE).exists() else {}
    command, where = before.get("command", command or ""), before.get("machine") or machine("cpu")
    shown = [{k: v for k, v in row.items() if k not in ("counts", "nats")} for row in rows]
    content: dict[str, Any] = {"command": without_folders(command), "machine": where, "systems": shown}
    _replace(folder / TABLE, json.dumps(content, indent=1) + "\n")
    trained = {name: (run.history, run.held_out) for name, run in done.items()}
    for suffix in formats:
        draw_loss_against_flops(trained, (folder / FIGURE).with_suffix(f".{suffix}"))
    draw_last_texts(done, folder, formats)
    _replace(folder / PAGE, page(rows, done, folder, content["command"]))
    return folder / PAGE


def system_figures(name: str, run: RunFolder) -> dict[str, Any]:
    """What the table says of a system, and what each held-out document cost it.

    Args:
        name: its word.
        run: finished.
    """
    judged = read_evaluation(run.path / EVALUATION)
    summary, edge = run.summary or {}, judged["word_edges"].get("space", {})
    return {
        "system": name,
        "estimator": estimator_of(run),
        **{shown: judged[name] for name, shown in _CORPUS.items()},
        "rate": judged["rate"],
        **{key: judged[key] for key in ("target_rate", "oracle", "documents", "windows", "counts", "nats")},
        "target_rates": judged.get("target_rates"),
        "rows_per_text": judged.get("rows_per_text", 1),
        "split_by": judged.get("split_by"),
        "predicted": judged["bytes"],
        **{key: summary.get(key) for key in ("flops", "padded_flops", "bytes", "peak_memory")},
        "tried_flops": tried_flops(run),
        "seconds": sum(start["seconds"] for start in run.starts),
        "space_recall": edge.get("covered"),
        "space_precision": edge.get("share"),
        "space_chance": edge.get("chance"),
        "parameters": run.model.get("parameters", 0) + run.model.get("segmenter_parameters", 0),
        "updates": summary.get("updates"),
        "seed": run.option("seed"),
    }


def read_evaluation(path: Path) -> dict[str, Any]:
    """What a system was judged by, under the names that :func:`rltok_rl.evaluation.summarise` gives it now.

    Args:
        path: of its ``evaluation.json``; before there were two ways to take a mean, the corpus' was not named as such.
    """
    judged = json.loads(path.read_text())
    return {**{name: judged[was] for name, was in _CORPUS.items() if was in judged}, **judged}


def best(rows: list[dict[str, Any]]) -> set[str]:
    """Return the systems that a paired test over documents cannot tell from the best one, oracles left out.

    Args:
        rows: of all systems.
    """
    real = [row for row in rows if not row["oracle"]]
    if not real or not equal_budgets(map(spent_flops, real)):
        return set()
    losses = [row["bits_per_byte"] for row in real]
    first = real[losses.index(min(losses))]
    tied = tied_with_best(losses, [paired_over_documents(row, first) for row in real])
    return {real[number]["system"] for number in tied}


def page(rows: list[dict[str, Any]], done: dict[str, RunFolder], folder: Path, command: str) -> str:
    """The page as Markdown.

    Args:
        rows: of all systems, the first one being compared with.
        done: their runs.
        folder: of the comparison.
        command: how it was started.
    """
    strong = best(rows)
    table = markdown(list(HEADER), [_line(row, strong) for row in rows])
    oracles = [row["system"] for row in rows if row["oracle"]]
    first, run = rows[0], done[rows[0]["system"]]
    notes = [
        *_on_losses(rows),
        "Boundaries per byte are those of held-out text, the target is that of training; “none” if the text alone, or "
        "a vocabulary, decides.",
        "Total FLOPs are matrix products of forward and backward passes (attention scores left out), and of the "
        "forward passes in which an estimator tries other boundaries. “With padding” leaves trials out and counts "
        "rows of tokens as long as the longest of their batch.",
        "Time is that of training, evaluations and checkpoints included, on cores that may have been shared.",
    ]
    notes += _notes_on(rows)
    if oracles:
        notes.append(
            f"An asterisk marks an oracle: {', '.join(oracles)} looks at bytes to come when it draws boundaries. Its "
            "bits per byte are not those of a model, and never in bold."
        )
    seeds = sorted({row["seed"] for row in rows})
    notes.append(f"One seed ({', '.join(map(str, seeds))}): the errors do not cover how far another would differ.")
    under_way = _under_way(folder)
    replaced = ", ".join(f"{name} {value}" for name, value in (run.option("model.overrides") or {}).items())
    data = f"`{run.option('data.source')}`, {run.option('data.num_rows')} rows of {run.option('data.num_steps')} bytes"
    parts = [
        f"# {_title(rows)}",
        *([f"    {command}"] if command else []),
        f"{data}; model `{run.option('model.preset')}` with {replaced or 'nothing replaced'}.",
        table.replace("minus the first", f"minus {first['system']}", 1),
        *([f"Not done yet: {', '.join(under_way)}."] if under_way else []),
        "\n".join(f"- {note}" for note in notes),
        f"![Bits per byte against total FLOPs]({FIGURE})",
        "Left: training (lines) and held-out text (dots). Right: the end, on the held-out windows of the evaluations "
        "during training, which are fewer than those of the table.",
        f"![The same held-out text as every system cuts it]({TEXTS})",
    ]
    return "\n\n".join(parts) + "\n"


def _title(rows: list[dict[str, Any]]) -> str:
    """The heading, which says whose trials come on top of equal budgets."""
    least = min(map(spent_flops, rows))
    over = [
        f"{row['system']} with {with_unit(row['tried_flops'], 'FLOPs')} of trials on top ({row['estimator']})"
        for row in rows
        if row["tried_flops"] and not equal_budgets((least, spent_flops(row)))
    ]
    equal = "in total" if equal_budgets(map(spent_flops, rows)) else "of training"
    return f"Systems at {with_unit(least, 'FLOPs')} {equal}{''.join(f', {one}' for one in over)}"


def _on_losses(rows: list[dict[str, Any]]) -> list[str]:
    """What bits per byte are averages of, and how sure they are."""
    first, alone = rows[0], rows[0]["standard_error"] is None
    unit = first["split_by"] or "document"
    number = f"{first['documents']:,} {unit}{'' if first['documents'] == 1 else 's'}"
    sure = (
        "One document gives no standard error, and nothing is bold."
        if alone
        else f"The standard error is that over {unit}s. Bold: not distinguishable from the best by a paired test "
        f"(95 %, over {unit}s), if total FLOPs differ by at most 2 %."
    )
    notes = [
        f"Bits per byte are those of the corpus, all bits over all bytes: {first['predicted']:,} held-out bytes in "
        f"{number}, the same for all. {sure}"
    ]
    if rows[1:]:
        paired_too = "" if alone else f", with its standard error over {unit}s, paired"
        notes.append(f"“Minus {first['system']}” is the difference on the same {unit}s{paired_too}.")
    return notes


def _notes_on(rows: list[dict[str, Any]]) -> list[str]:
    """What the table has no column for."""
    notes = [
        f"{row['system']} aims at a rate by script: "
        + ", ".join(f"{script} {rate:g}" for script, rate in row["target_rates"].items())
        + "."
        for row in rows
        if row["target_rates"]
    ]
    return notes + [
        f"{row['system']} reads every text in {row['rows_per_text']} rows side by side; its bytes count all of them."
        for row in rows
        if row["rows_per_text"] > 1
    ]


def _line(row: dict[str, Any], strong: set[str]) -> list[str]:
    error = row["standard_error"]
    loss = f"{row['bits_per_byte']:.3f}" + ("" if error is None else f" ± {error:.3f}")
    apart, apart_error = row["difference"], row["difference_error"]
    target = "none" if row["target_rate"] is None else f"{row['target_rate']:g}"
    return [
        f"{row['system']}{' *' if row['oracle'] else ''}",
        row["estimator"],
        total_flops(row),
        f"**{loss}**" if row["system"] in strong else loss,
        "-" if apart is None else f"{apart:+.3f}" + ("" if apart_error is None else f" ± {apart_error:.3f}"),
        f"{row['rate']:.3f} ({'by script' if row['target_rates'] else target})",
        with_unit(row["padded_flops"], "FLOPs"),
        f"{row['parameters']:,}",
        with_unit(row["bytes"], "B"),
        clock(row["seconds"]),
        with_unit(row["peak_memory"], "B"),
        *("-" if row[key] is None else f"{row[key]:.3f}" for key in ("space_recall", "space_precision")),
    ]


def judged_systems(folder: Path) -> list[str]:
    """Return the systems that are trained and evaluated, learned ones first.

    Args:
        folder: of the comparison.
    """
    needed = ("config.yaml", "summary.json", EVALUATION)
    found = sorted(p.name for p in folder.iterdir() if all((p / name).is_file() for name in needed))
    return [name for name in _FIRST if name in found] + [name for name in found if name not in _FIRST]


def _under_way(folder: Path) -> list[str]:
    """Systems that have begun and are not done, with the share of their FLOPs that is spent."""
    found = []
    for path in sorted(folder.iterdir()):
        if (path / "config.yaml").is_file() and not (path / EVALUATION).is_file():
            run = read_run(path)
            share = (run.last_value("total_flops") or 0.0) / (run.option("optim.total_flops") or math.inf)
            found.append(f"{path.name} ({share:.0%})")
    return found


def _replace(path: Path, text: str) -> None:
    """In one step, also where two processes write the page at the same time."""
    number, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(number, "w") as file:
        file.write(text)
    os.chmod(partial, 0o644)
    os.replace(partial, path)
