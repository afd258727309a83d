"""Report of a run from its folder: ``report.md`` and ``figures/``, finished or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.comparison import (
    NO_HELP,
    RELATIVE,
    SHARE,
    marked_text,
    metric_cells,
    tokens_do_not_help,
)
from rltok_rl.experiments.reports.markdown import (
    bullets,
    code,
    fenced,
    markdown,
    option_text,
    options_text,
    plain,
    with_error,
    with_unit,
)
from rltok_rl.experiments.reports.table import run_table
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.data.disk import replace_text
from rltok_rl.foreign import check_place
from rltok_rl.training.environment import CHANGES
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz import boundary_text
from rltok_rl.viz.run_figures import draw_curves, draw_loss_flops
from rltok_rl.viz.text_figures import Snapshot, draw_over_time, draw_texts

_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("actor", "actor.name", ("rate", "warm_start_bytes", "warm_start_rule")),
    ("estimator", "estimator.name", ("gamma", "reward", "price")),
    ("baseline", "baseline.name", ("rows_per_text",)),
    ("loss", "loss.objective", ("policy_epochs", "language_model", "policy", "early_exit", "entropy")),
    ("rate control", "rate.control", ("coefficient",)),
)
"""Rows of the table of options: title, option of the name, options of the same group."""
_CAPTIONS = {
    "curves": "Loss, returns, rate, entropy, advantage spread, gradient norm and learning rate against bytes",
    "loss-flops": "Loss against FLOPs",
    "boundaries": "The same text with its boundaries during training",
    "text": "Held-out text coloured by the probability of a boundary",
}
_LEGENDS = {
    "curves": "Lines are training, dots evaluations on held-out text (± standard error). Compare dots with dots: "
    "held-out text may be easier or harder, and its boundaries are drawn without the cap that training has on "
    "their logits.",
    "loss-flops": "The distance between the early exit and the whole model is what tokens are worth at so many FLOPs.",
}
_NOTABLE = 0.05
"""Difference in bits per byte between held-out text and first batch above which the report adds a note."""


def write_report(folder: Path, *, formats: Sequence[str] = ("png",)) -> Path:
    """Write ``report.md`` and ``figures/`` of a run, finished or not; the page shows the PNG files."""
    run = read_run(folder)
    written = (folder / "report.md", folder / "figures", *(folder / "figures").glob("*"))
    for path in written:
        check_place(path, folder=path.name == "figures")
    figures = _draw_figures(run, formats)
    alarms = bullets([f"update {line['update']:,}: {plain(line['warning'])}" for line in run.alarms])
    parts = [
        f"# {plain(run.name)}",
        _state(run),
        f"## What was trained\n\n{trained_table(run)}",
        f"## Results\n\n{results(run)}",
        *(["## Figures", *figures] if figures else []),
        *([f"## Sample\n\n{_sample(run)}"] if run.snapshots else []),
        f"## Alarms\n\n{alarms or 'None went off.'}",
        f"## Where it ran\n\n{_environment(run)}",
        f"## What was not done\n\n{bullets(limits(run))}",
    ]
    page = folder / "report.md"
    replace_text(page, "\n\n".join(parts) + "\n")  # a page that exists is taken for a whole one
    return page


def has_page(folder: Path) -> bool:
    """Whether a run is finished and has its report."""
    return all((folder / name).is_file() for name in ("config.yaml", "summary.json", "report.md"))


def _draw_figures(run: RunFolder, formats: Sequence[str]) -> list[str]:
    """Draw all figures that the run has data for; return their Markdown."""
    out = run.path / "figures"
    out.mkdir(exist_ok=True)
    draw: dict[str, Callable[[Path], Path]] = {}
    if run.history:
        held = run.held_out
        draw["curves"] = lambda path: draw_curves(run.history, path, target_rate=run.target_rate, held_out=held)
        if "flops" in run.history:
            draw["loss-flops"] = lambda path: draw_loss_flops(run.history, path, held_out=held)
    if run.snapshots:
        lines = [_snapshot(snapshot) for snapshot in run.snapshots]
        draw["boundaries"] = lambda path: draw_over_time(lines, path, headings=("bits/byte", "rate"))
        last = marked_text(f"trained on {with_unit(run.snapshots[-1]['bytes'], 'B')}", run)
        draw["text"] = lambda path: draw_texts([last], path)
    parts = []
    for name, draw_one in draw.items():
        for suffix in formats:
            draw_one(out / f"{name}.{suffix}")
        parts += [f"![{_CAPTIONS[name]}](figures/{name}.png)", *([_LEGENDS[name]] if name in _LEGENDS else [])]
    return parts


def _snapshot(snapshot: dict[str, Any]) -> Snapshot:
    text, boundaries, probabilities = sample_parts(snapshot)
    notes = (f"{snapshot['held_out_bits_per_byte']:.2f}", f"{snapshot['held_out_rate']:.3f}")
    return Snapshot(with_unit(snapshot["bytes"], "B"), text, boundaries, probabilities, notes)


def _state(run: RunFolder) -> str:
    updates = int(run.history["update"][-1]) if run.history else 0
    state, done = "Finished" if run.summary else "**Unfinished**", with_unit(run.bytes_done, "B")
    if budget := run.option("optim.total_flops"):
        flops = with_unit(run.last_value("total_flops") or 0, "FLOPs")
        return f"{state}: {updates:,} updates, {done}, {flops} of {with_unit(budget, 'FLOPs')}."
    return f"{state}: {updates:,} updates, {done} of {with_unit(run.option('optim.total_bytes') or 0, 'B')}."


def trained_table(run: RunFolder) -> str:
    """Return the section of options and the command line."""
    option, parameters = run.option, run.model.get("parameters")
    rows = [["model", f"{code(option('model.preset'))}{_options(option('model.overrides'))}"]]
    if weights := option("model.weights"):
        rows.append(["initial weights", f"those of {code(weights)}"])
    data = f"{code(option('data.source'))}{_options(option('data.options'))}, {option('data.num_rows')} rows of "
    data += f"{option('data.num_steps')} bytes; {option_text(option('data.held_out'))} of it held out"
    rows += [["parameters", f"{parameters:,}" if parameters else "-"], ["data", data]]
    segmenter = option("segmenter.name")
    groups = _GROUPS
    if segmenter != "learned":
        rows.append(["segmenter", f"{code(segmenter)}{_options(option('segmenter.options'))}"])
        groups = (("loss", "loss.objective", ("language_model", "early_exit")),)  # without rewards
    for title, path, keys in groups:
        group, name = path.partition(".")[0], option(path)
        if name is not None:
            name = name if segmenter == "learned" else "next bytes"
            values = {key: value for key in keys if (value := option(f"{group}.{key}")) is not None}
            rows.append([title, f"{code(name)}{_options(values)}{_options(option(f'{group}.options'))}"])
    rows += [
        ["optimizer", f"AdamW, learning rate {option_text(option('optim.lr'))}"],
        ["seed", option_text(option("seed"))],
    ]
    command = run.starts[0].get("command") if run.starts else (run.summary or {}).get("command", "")
    return markdown(["option", "value"], rows) + (f"\n\n{fenced(command)}" if command else "")


def _options(options: dict[str, Any] | None) -> str:
    return f", {options_text(options)}" if options else ""


def results(run: RunFolder) -> str:
    """Return the section of results."""
    table = run_table({run.name: run})
    first, last = (run.snapshots[0], run.snapshots[-1]) if run.snapshots else ({}, {})
    (loss_name, loss_text), *others = metric_cells(table).items()
    if last.get("held_out_standard_error") is not None:
        error = f"± {last['held_out_standard_error']:.3f}"
        loss_text = loss_text.replace(error, f"{error} over batches")
    rows = [(loss_name, loss_text)]
    if first.get("update") == 0 and len(run.snapshots) > 1:
        rows.append((f"{loss_name}, before the first update", with_error(first.get("held_out_bits_per_byte"))))
    loss, early = last.get("held_out_bits_per_byte"), last.get("held_out_early_bits_per_byte")
    rows.append(others.pop(0))
    if loss is not None and early is not None:
        rows.append(("what tokens are worth (early exit less whole model)", f"{early - loss:.3f}"))
    rows += [(name, cell) for name, cell in others if name in (SHARE, RELATIVE)]
    others = [row for row in others if row not in rows]
    if (episode := last.get("held_out_episode_return")) is not None:
        spread = last.get("held_out_episode_return_standard_error")
        rows.append(("return per episode, nats, held out", with_error(episode, spread)))
        rows.append(("discounted return, nats per decision, training", with_error(run.final_mean("return"))))
    rows += [("bits per byte, training", with_error(run.final_mean("bits_per_byte"))), *others]
    if rate := last.get("held_out_rate"):
        rows.append(("bytes per token, held out", f"{1 / rate:.2f}"))
    if (padded := last.get("padded_flops")) is not None:
        rows.append(("FLOPs, padding of tokens included", with_unit(padded, "FLOPs")))
    rows.append(("peak memory", with_unit((run.summary or {}).get("peak_memory"), "B")))
    notes = _notes(run, helpless=tokens_do_not_help(table))
    return markdown(["metric", "value"], rows) + (f"\n\n{bullets(notes)}" if notes else "")


def _notes(run: RunFolder, *, helpless: bool) -> list[str]:
    """Notes below the table of results."""
    notes = []
    if run.snapshots and run.snapshots[-1].get("held_out_standard_error") is not None:
        notes.append(
            f"± is the standard error over {run.option('snapshots.batches')} batches of windows of the same held-out "
            "text, for returns over the windows: how well that text was measured. The error over documents, from "
            "`rltok eval`, is usually larger."
        )
    if helpless:
        notes.append(NO_HELP)
    if run.snapshots and run.snapshots[0]["update"] == 0 and run.history.get("bits_per_byte"):
        held, trained = run.snapshots[0]["held_out_bits_per_byte"], run.history["bits_per_byte"][0]
        if abs(held - trained) > _NOTABLE:
            notes.append(
                f"Difference at initialisation: the initial weights gave {held:.3f} bits per byte on held-out text "
                f"and {trained:.3f} on the first batch of training."
            )
    return notes


def _sample(run: RunFolder) -> str:
    text, boundaries, _ = sample_parts(run.snapshots[-1])
    bars = " Bars of the text itself look the same." if b"|" in text else ""
    marked = fenced(boundary_text(text, boundaries, colour=False))
    return f"Held-out text after update {run.snapshots[-1]['update']:,}, a `|` after each boundary.{bars}\n\n{marked}"


def _environment(run: RunFolder) -> str:
    if not run.starts:
        return "Not recorded."
    header = ["updates", "device", "torch", "Python", "processes x threads", "revision", "system"]
    rows = []
    for start in run.starts:
        git = start.get("git")
        revision = f"{code(git['revision'][:10])}{CHANGES[git['dirty']]}" if git else "none"
        updates = f"{start.get('from_update', '-')} to {start.get('to_update', '-')}"
        work = f"{start.get('num_processes', '-')} x {start.get('threads', '-')}"
        device = start.get("gpu") or start.get("processor", "-")
        torch, python = start.get("packages", {}).get("torch", "-"), start.get("python", "-")
        rows.append(
            [updates, plain(device), plain(torch), plain(python), work, revision, plain(start.get("system", "-"))]
        )
    return markdown(header, rows) + "\n\nAll versions are in [environment.json](environment.json)."


def limits(run: RunFolder) -> list[str]:
    """Return what the run does not show."""
    lines = []
    if run.summary is None:
        lines.append("The run is unfinished: resume it with `resume=true`.")
    lines.append(f"One seed ({option_text(run.option('seed'))}): another may give a different result.")
    if run.snapshots and (batches := run.option("snapshots.batches")):
        count = batches * run.option("data.num_rows") * run.option("data.num_steps")
        lines.append(
            f"Held-out metrics are means over {count:,} predicted bytes, windows drawn with replacement, boundaries "
            "drawn from the policy; no other text and no task was tried."
        )
    if run.history:
        lines.append(
            "FLOPs count matrix products of forward and backward passes, without attention scores; total FLOPs add an "
            "estimator's trials, critic and further epochs of the policy."
        )
    if any((start.get("git") or {}).get("dirty") for start in run.starts):
        lines.append("Files differed from the revision: it does not hold all of the code that ran.")
    elif any(start.get("git") and start["git"]["dirty"] is None for start in run.starts):
        lines.append("Files may have differed from the revision: git status failed.")
    elif any(start.get("git") is None for start in run.starts):
        lines.append("The package was not run from a checkout: only its version is known.")
    return lines
