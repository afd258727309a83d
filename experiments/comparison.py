"""Runs side by side: their figures in one line each, what differs between them, and one figure of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltok_rl.experiments.loss_curves import FILE, write_loss_curves
from rltok_rl.experiments.markdown import markdown, number, with_unit
from rltok_rl.experiments.run_folder import RunFolder, flat, read_run

from rltok_rl.training.record import bytes_per_second
from rltok_rl.viz.comparison import draw_comparison

_NOT_COMPARED = ("out", "resume", "checkpoint_every", "logger", "snapshots")


def write_comparison(folders: list[Path], out: Path) -> Path:
    """Write ``report.md`` and ``comparison.png`` of several runs: what differs, and what came of it.

    Args:
        folders: of the runs.
        out: folder to write to; made if it is not there.
    """
    runs = [read_run(folder) for folder in folders]
    names = _names(runs)
    out.mkdir(parents=True, exist_ok=True)
    options = [flat({k: v for k, v in run.config.items() if k not in _NOT_COMPARED}) for run in runs]
    keys = list(dict.fromkeys(key for one in options for key in one))
    differing = [key for key in keys if any(one.get(key) != options[0].get(key) for one in options)]
    header = ["run", *(f"`{key}`" for key in differing), *FIGURES]
    body = [
        [name, *(shown(one.get(key)) for key in differing), *figures_of(run).values()]
        for name, run, one in zip(names, runs, options, strict=True)
    ]
    parts = [f"# {', '.join(names)}", markdown(header, body)]
    if any(run.history for run in runs):
        found = {name: (run.history, run.held_out) for name, run in zip(names, runs, strict=True)}
        targets = {name: run.target_rate for name, run in zip(names, runs, strict=True)}
        draw_comparison(found, out / "comparison.png", target_rates=targets)
        parts.append(
            "![Bits per byte against bytes and FLOPs, boundaries per byte against bytes](comparison.png)\n\n"
            "Lines are training, dots are held-out text. One run per line: a difference may be that of seeds."
        )
    if not differing:
        parts.append("All runs have one configuration.")
    page = out / "report.md"
    page.write_text("\n\n".join(parts) + "\n")
    write_loss_curves(dict(zip(names, runs, strict=True)), out / FILE)
    return page


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
