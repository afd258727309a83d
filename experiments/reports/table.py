"""The table of a comparison: the figures of a run, or of several seeds, in one line, and what to know to read it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rltok_rl.experiments.reports.comparable import looks_ahead, trials_recorded, vocabulary
from rltok_rl.experiments.reports.markdown import number, with_unit
from rltok_rl.experiments.reports.seeds import Figure, Group, over_seeds, paired_over_seeds, tied_with_best, values_of
from rltok_rl.experiments.runs.folder import RunFolder

FIGURES = (
    "bits per byte, held out",
    "early exit",
    "rate (target)",
    "entropy, nats",
    "advantage spread, nats",
    "bytes",
    "total FLOPs",
    "speed",
)


def figures_of(run: RunFolder) -> dict[str, str]:
    """The figures of a run in one line of a table, by the names of its columns.

    Args:
        run: finished or not; held-out figures that are older than the run say of when they are.
    """
    value = values_of(run)
    look = run.looks[-1] if run.looks else {}
    late = look and look["bytes"] != run.bytes_done
    when = f" at {with_unit(look['bytes'], 'B')}" if late else ""
    speed = value["speed"]
    values = (
        with_error(value["loss"], look.get("held_out_standard_error")) + when,
        digits(value["early"]),
        f"{digits(value['rate'])} ({shown(run.target_rate)})",
        number(value["entropy"]),
        number(value["advantage_spread"]),
        with_unit(value["bytes"], "B") + _unfinished(run),
        with_unit(value["flops"], "FLOPs") + ("" if trials_recorded(run) else " + trials not recorded"),
        "-" if speed is None else with_unit(speed, "B/s"),
    )
    return dict(zip(FIGURES, values, strict=True))


def figures_over_seeds(group: Group) -> dict[str, str]:
    """The same of a group: of several seeds means and standard deviations.

    Args:
        group: of one run or several.
    """
    if len(group.counted) == 1:
        return figures_of(group.counted[0])
    found, first = over_seeds(group), group.counted[0]

    def mean(name: str) -> float | None:
        figure = found[name]
        return None if figure is None else figure.mean

    values = (
        _digits_over_seeds(found["loss"]),
        _digits_over_seeds(found["early"]),
        f"{_digits_over_seeds(found['rate'])} ({shown(first.target_rate)})",
        _digits_over_seeds(found["entropy"]),
        _digits_over_seeds(found["advantage_spread"]),
        with_unit(mean("bytes"), "B") + ("" if group.finished else ", not finished"),
        with_unit(mean("flops"), "FLOPs"),
        "-" if mean("speed") is None else with_unit(mean("speed"), "B/s"),
    )
    return dict(zip(FIGURES, values, strict=True))


def best_groups(groups: Sequence[Group]) -> set[int]:
    """Return the numbers of the groups that a paired test over seeds cannot tell from the best.

    Oracles are left out, and unfinished groups if any group is finished. Without two seeds in common with the best
    there is no test, and nothing is bold.

    Args:
        groups: on the same held-out text.
    """
    any_finished = any(group.finished for group in groups)
    losses: list[dict[Any, float]] = []
    for group in groups:
        left_out = looks_ahead(group.runs[0]) or (any_finished and not group.finished)
        by_seed = {run.option("seed"): values_of(run)["loss"] for run in group.counted}
        known = {seed: loss for seed, loss in by_seed.items() if loss is not None}
        losses.append({} if left_out or len(known) < len(by_seed) else known)
    means = [fmean(by_seed.values()) if by_seed else None for by_seed in losses]
    if not any(losses):
        return set()
    best = losses[min((n for n, mean in enumerate(means) if mean is not None), key=lambda n: means[n] or 0.0)]
    return tied_with_best(means, [paired_over_seeds(by_seed, best) for by_seed in losses])


def comparison_notes(tables: Sequence[Sequence[Group]], differing: Sequence[str]) -> list[str]:
    """What has to be known to read the tables.

    Args:
        tables: the groups of each.
        differing: options that are not the same in all runs.
    """
    groups = [group for table in tables for group in table]
    runs = [run for group in groups for run in group.runs]
    notes = []
    if any(len(group.counted) > 1 for group in groups):
        notes.append(
            "Lines of several seeds have means ± the standard deviation over seeds. Bold: not distinguishable from the "
            "best on the same held-out text by a paired test over seeds (95 %)."
        )
    else:
        notes.append("Nothing is bold: a paired test over seeds needs several seeds of each run.")
    alone = [group.name for group in groups if len(group.counted) == 1]
    if alone:
        notes.append(
            "Errors of single runs are over batches of held-out windows: how well that text was measured, not what "
            "other documents would give (`rltok eval` has errors over documents)."
        )
        which = "One run per line" if len(alone) == len(groups) else f"One seed of {', '.join(alone)}"
        notes.append(f"{which}: a difference may be that of seeds.")
    open_runs = [group.name for group in groups if not group.finished]
    if open_runs:
        notes.append(
            f"Not finished: {', '.join(open_runs)}. Figures are of the way there, and never bold beside finished ones."
        )
    helpless = [group.name for group in groups if tokens_do_not_help([values_of(run) for run in group.counted])]
    if helpless:
        notes.append(f"{NO_HELP} So it is with {', '.join(helpless)}.")
    for table in tables:
        spent = [run.last_flops or 0.0 for group in table for run in group.counted]
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


NO_HELP = (
    "**Tokens do not help yet** where the early exit, which sees none, predicts better than the whole model. That is "
    "how trainings begin, and more bytes are what they need: `tiny` on books got over it between 0.4 and 0.8 MB."
)
"""Of the committed runs in ``experiments/results/books``; ``samples.jsonl`` has their looks."""


def tokens_do_not_help(values: Sequence[dict[str, Any]]) -> bool:
    """Whether runs predict worse than their early exits, after they have learned something.

    Args:
        values: of each, as :func:`~rltok_rl.experiments.reports.seeds.values_of` has them.
    """
    known = [one["loss"] - one["early"] for one in values if None not in (one["loss"], one["early"]) and one["bytes"]]
    return bool(known) and sum(known) > 0


def _unfinished(run: RunFolder) -> str:
    if run.summary is not None:
        return ""
    total = None if run.option("optim.total_flops") else run.option("optim.total_bytes")
    return (f" of {with_unit(total, 'B')}" if total else "") + ", not finished"


def _digits_over_seeds(figure: Figure | None) -> str:
    return "-" if figure is None else with_error(figure.mean, figure.spread)


def shown(value: Any) -> str:
    """A value of an option; a dash where there is none."""
    return "-" if value is None else str(value)


def digits(value: float | None) -> str:
    """Three digits after the point; a dash where there is no figure."""
    return "-" if value is None else f"{value:.3f}"


def with_error(value: float | None, error: float | None) -> str:
    """A figure and its standard error, where there is one."""
    return digits(value) if error is None else f"{digits(value)} ± {error:.3f}"
