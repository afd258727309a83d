"""Runs side by side: their figures in one line each, what differs between them, and figures of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.comparable import comparable, looks_ahead, vocabulary, within_one_error
from rltok_rl.experiments.loss_curves import FILE, write_loss_curves
from rltok_rl.experiments.markdown import markdown, number, with_unit
from rltok_rl.experiments.run_folder import RunFolder, flat, read_run

from rltok_rl.training.record import bytes_per_second
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz.comparison import draw_comparison, draw_loss_against_flops
from rltok_rl.viz.marked_text import MarkedText, draw_texts

_NOT_COMPARED = ("out", "resume", "checkpoint_every", "logger", "snapshots", "compare")


def write_comparison(folders: list[Path], out: Path, *, formats: Sequence[str] = ("png",)) -> Path:
    """Write ``report.md`` and figures of several runs: what differs, and what came of it.

    Runs on the same held-out text share a table, best in bold; between tables nothing can be compared, and the page
    says so.

    Args:
        folders: of the runs.
        out: folder to write to; made if it is not there.
        formats: of the figures; the page shows the PNG, which is among them always.
    """
    runs = [read_run(folder) for folder in folders]
    names = _names(runs)
    out.mkdir(parents=True, exist_ok=True)
    options = [flat({k: v for k, v in run.config.items() if k not in _NOT_COMPARED}) for run in runs]
    keys = list(dict.fromkeys(key for one in options for key in one))
    differing = [key for key in keys if any(one.get(key) != options[0].get(key) for one in options)]
    header = ["run", *(f"`{key}`" for key in differing), *FIGURES]
    groups = comparable(runs)
    parts = [f"# {', '.join(names)}"]
    if len(groups) > 1:
        apart = "; ".join(", ".join(names[n] for n in group) for group in groups)
        parts.append(f"**Not all runs can be compared**: these were held to different texts: {apart}.")
    for text_number, group in enumerate(groups, 1):
        strong = _best([runs[n] for n in group])
        body = []
        for place, n in enumerate(group):
            loss, *rest = figures_of(runs[n]).values()
            loss = f"**{loss}**" if place in strong else loss
            star = " *" if looks_ahead(runs[n]) else ""
            body.append([f"{names[n]}{star}", *(shown(options[n].get(key)) for key in differing), loss, *rest])
        if len(groups) > 1:
            parts.append(f"## Text {text_number}: `{runs[group[0]].option('data.source')}`")
        parts.append(markdown(header, body))
    parts.append("\n".join(f"- {note}" for note in _notes(runs, groups, differing)))
    parts += _figures(dict(zip(names, runs, strict=True)), groups, out, formats)
    page = out / "report.md"
    page.write_text("\n\n".join(parts) + "\n")
    write_loss_curves(dict(zip(names, runs, strict=True)), out / FILE)
    return page


def _best(runs: list[RunFolder]) -> set[int]:
    """Numbers of the runs within one standard error of the best; what looks ahead is not among them."""
    looks = [run.looks[-1] if run.looks and not looks_ahead(run) else {} for run in runs]
    return within_one_error(
        [(look.get("held_out_bits_per_byte"), look.get("held_out_standard_error")) for look in looks]
    )


def _notes(runs: list[RunFolder], groups: list[list[int]], differing: list[str]) -> list[str]:
    """What has to be known to read the tables."""
    notes = ["In bold: within one standard error of the best on the same held-out text. Errors are over batches."]
    notes.append("One run per line: a difference may be that of seeds.")
    for group in groups:
        spent = [run.last_value("flops") or 0.0 for run in (runs[n] for n in group)]
        if max(spent) > 1.05 * min(spent):
            low, high = (with_unit(value, "FLOPs") for value in (min(spent), max(spent)))
            notes.append(f"Budgets differ, from {low} to {high}: who spent more may be ahead for that alone.")
    kinds = list(dict.fromkeys(map(vocabulary, runs)))
    if len(kinds) > 1:
        notes.append(
            f"Vocabularies differ ({'; '.join(kinds)}). Bits per byte count the bytes of the text, and can be compared."
        )
    if any(map(looks_ahead, runs)):
        notes.append("An asterisk marks boundaries that depend on bytes to come: no model's bits per byte, never bold.")
    if not differing:
        notes.append("All runs have one configuration.")
    return notes


def _figures(runs: dict[str, RunFolder], groups: list[list[int]], out: Path, formats: Sequence[str]) -> list[str]:
    """Draw what there are figures for, and show them."""
    trained = {name: (run.history, run.held_out) for name, run in runs.items() if run.history}
    spent = {name: found for name, found in trained.items() if "flops" in found[0]}
    targets = {name: run.target_rate for name, run in runs.items()}
    parts = []
    for suffix in formats:
        if trained:
            draw_comparison(trained, out / f"comparison.{suffix}", target_rates=targets)
        if spent:
            draw_loss_against_flops(spent, out / f"loss-flops.{suffix}")
    if trained:
        parts.append(
            f"![Bits per byte, boundaries per byte and policy entropy against bytes](comparison.png)\n\n{_DOTS}"
        )
    if spent:
        parts.append("![Bits per byte against FLOPs](loss-flops.png)")
    if len(groups) == 1 and draw_last_texts(runs, out, formats):
        parts.append("![The same held-out text as every run cuts it](texts.png)")
    return parts


_DOTS = "Lines are training, dots are held-out text, a dashed line is the target of the rate."


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


FIGURES = ("bits per byte, held out", "early exit", "rate (target)", "entropy, nats", "bytes", "FLOPs", "speed")


def figures_of(run: RunFolder) -> dict[str, str]:
    """The figures of a run in one line of a table, by the names of its columns.

    Args:
        run: finished or not; held-out figures that are older than the run say of when they are.
    """
    look = run.looks[-1] if run.looks else {}
    error = look.get("held_out_standard_error")
    loss, early = look.get("held_out_bits_per_byte"), look.get("held_out_early_bits_per_byte")
    speed = bytes_per_second(run.starts)
    late = look and look["bytes"] != run.bytes_done
    when = f" at {with_unit(look['bytes'], 'B')}" if late else ""
    values = (
        with_error(loss, error) + when,
        digits(early),
        f"{digits(look.get('held_out_rate'))} ({shown(run.target_rate)})",
        number(run.last("entropy")),
        with_unit(run.bytes_done, "B"),
        with_unit(run.last_value("flops"), "FLOPs"),
        "-" if speed is None else with_unit(speed, "B/s"),
    )
    return dict(zip(FIGURES, values, strict=True))


def _names(runs: list[RunFolder]) -> list[str]:
    """Names of folders; with their parents' where they would be the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return ["/".join(run.path.resolve().parts[-2:]) for run in runs]


def shown(value: Any) -> str:
    """A value of an option; a dash where there is none."""
    return "-" if value is None else str(value)


def digits(value: float | None) -> str:
    """Three digits after the point; a dash where there is no figure."""
    return "-" if value is None else f"{value:.3f}"


def with_error(value: float | None, error: float | None) -> str:
    """A figure and its standard error, where there is one."""
    return digits(value) if error is None else f"{digits(value)} ± {error:.3f}"
