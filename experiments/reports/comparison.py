"""Runs side by side: their figures in one line each, what differs between them, and figures of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.comparable import comparable, looks_ahead
from rltok_rl.experiments.reports.loss_curves import FILE, write_loss_curves
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.reports.seeds import Group, seed_groups
from rltok_rl.experiments.reports.table import (
    FIGURES,
    best_groups,
    comparison_notes,
    figures_over_seeds,
    shown,
)
from rltok_rl.experiments.runs.folder import RunFolder, flat, read_run

from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz.comparison import draw_comparison, draw_loss_against_flops
from rltok_rl.viz.text_figures import MarkedText, draw_texts

_NOT_COMPARED = ("out", "resume", "checkpoint_every", "logger", "snapshots", "compare")


def write_comparison(folders: list[Path], out: Path, *, formats: Sequence[str] = ("png",), each: bool = False) -> Path:
    """Write ``report.md`` and figures of several runs: what differs, and what came of it.

    Runs that differ in nothing but their seed are a line of the table and a colour of the figures. Runs on the same
    held-out text share a table, best in bold; between tables nothing can be compared, and the page says so.

    Args:
        folders: of the runs.
        out: folder to write to; made if it is not there.
        formats: of the figures; the page shows the PNG, which is among them always.
        each: have runs apart that differ in their seed alone.
    """
    runs = [read_run(folder) for folder in folders]
    names = _names(runs)
    out.mkdir(parents=True, exist_ok=True)
    options = [flat({k: v for k, v in run.config.items() if k not in _NOT_COMPARED}) for run in runs]
    keys = list(dict.fromkeys(key for one in options for key in one))
    differing = [key for key in keys if any(one.get(key) != options[0].get(key) for one in options)]
    texts = comparable(runs)
    of_text = {n: number for number, numbers in enumerate(texts) for n in numbers}
    groups = [Group(name, (run,)) for name, run in zip(names, runs, strict=True)]
    if not each:
        alike = [{**one, "text": of_text[n]} for n, one in enumerate(options)]
        groups = seed_groups(runs, alike, names)
    seeds = any(len(group.runs) > 1 for group in groups)
    name_of = {id(run): name for run, name in zip(runs, names, strict=True)}
    text_of = {id(run): of_text[n] for n, run in enumerate(runs)}
    tables = [[group for group in groups if text_of[id(group.runs[0])] == number] for number in range(len(texts))]
    parts = [f"# {', '.join(group.name for group in groups)}"]
    if len(texts) > 1:
        apart = "; ".join(", ".join(group.name for group in table) for table in tables)
        parts.append(f"**Not all runs can be compared**: these were held to different texts: {apart}.")
    options_of = {id(run): one for run, one in zip(runs, options, strict=True)}
    for number, table in enumerate(tables, 1):
        if len(texts) > 1:
            parts.append(f"## Text {number}: `{table[0].runs[0].option('data.source')}`")
        parts.append(_table(table, differing, options_of, seeds=seeds))
    parts.append("\n".join(f"- {note}" for note in comparison_notes(tables, differing)))
    by_name = dict(zip(names, runs, strict=True))
    together = {group.name: [name_of[id(run)] for run in group.runs] for group in groups if len(group.runs) > 1}
    parts += _figures(by_name, together, out, formats, one_text=len(texts) == 1)
    if seeds:
        apart_too = [Group(name_of[id(run)], (run,)) for group in groups for run in group.runs]
        parts.append("## Each run\n\nErrors are over batches of held-out windows.")
        parts.append(_table(apart_too, differing, options_of, seeds=False, bold=False))
    page = out / "report.md"
    page.write_text("\n\n".join(parts) + "\n")
    write_loss_curves(by_name, out / FILE)
    return page


def _table(
    groups: Sequence[Group],
    differing: Sequence[str],
    options_of: Mapping[int, Mapping[str, Any]],
    *,
    seeds: bool,
    bold: bool = True,
) -> str:
    """A row per group: what differs, and what came of it; where groups are of several seeds, these have a column."""
    shared = [key for key in differing if not (seeds and key == "seed")]
    strong = best_groups(groups) if bold else set()
    rows = []
    for place, group in enumerate(groups):
        first = group.runs[0]
        loss, *rest = figures_over_seeds(group).values()
        rows.append(
            [
                f"{group.name}{' *' if looks_ahead(first) else ''}",
                *(shown(options_of[id(first)].get(key)) for key in shared),
                *([group.seeds] if seeds else []),
                f"**{loss}**" if place in strong else loss,
                *rest,
            ]
        )
    return markdown(["run", *(f"`{key}`" for key in shared), *(["seeds"] if seeds else []), *FIGURES], rows)


def _figures(
    runs: dict[str, RunFolder], groups: Mapping[str, list[str]], out: Path, formats: Sequence[str], *, one_text: bool
) -> list[str]:
    """Draw what there are figures for, and show them."""
    trained = {name: (run.history, run.held_out) for name, run in runs.items() if run.history}
    spent = {name: found for name, found in trained.items() if "flops" in found[0]}
    targets = {name: run.target_rate for name, run in runs.items()}
    parts = []
    for suffix in formats:
        if trained:
            draw_comparison(trained, out / f"comparison.{suffix}", target_rates=targets, groups=groups)
        if spent:
            draw_loss_against_flops(spent, out / f"loss-flops.{suffix}", groups=groups)
    if trained:
        title = "Bits per byte, boundaries per byte, policy entropy and advantage spread against bytes"
        parts.append(f"![{title}](comparison.png)\n\n{_DOTS}{_SEEDS if groups else ''}")
    if spent:
        parts.append("![Bits per byte against total FLOPs](loss-flops.png)")
    if one_text and draw_last_texts(runs, out, formats):
        parts.append("![The same held-out text as every run cuts it](texts.png)")
    return parts


_DOTS = "Lines are training, dots are held-out text, a dashed line is the target of the rate. "
_DOTS += "Where lines lie on each other, the broad one is below."
_SEEDS = " Thin lines are seeds, the others their means, with a band or a bar of one standard deviation on either side."


def draw_last_texts(runs: Mapping[str, RunFolder], out: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw the sample of every run's last look, one under the other; nothing where no run has any.

    Args:
        runs: by name.
        out: folder of ``texts.png``.
        formats: kinds of files.
    """
    texts = [marked_text(name, run) for name, run in runs.items() if run.looks]
    return [draw_texts(texts, out / f"texts.{suffix}") for suffix in formats] if texts else []


def marked_text(title: str, run: RunFolder) -> MarkedText:
    """The sample of a run's last look, to be drawn.

    Args:
        title: above it.
        run: with at least one look.
    """
    look = run.looks[-1]
    text, boundaries, probabilities = sample_parts(look)
    note = f"{look['held_out_bits_per_byte']:.3f} bits per byte, {look['held_out_rate']:.3f} boundaries per byte"
    return MarkedText(title, text, probabilities, boundaries, note)


def _names(runs: list[RunFolder]) -> list[str]:
    """Names of folders; with their parents' where they would be the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return ["/".join(run.path.resolve().parts[-2:]) for run in runs]
