"""Which runs can be compared with each other, and what each learned by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rltok_rl.experiments.reports.markdown import with_unit
from rltok_rl.experiments.runs.folder import RunFolder
from rltok_rl.experiments.runs.segmenters import TOKENIZERS

_TEXT = ("source", "options", "column", "split_by", "min_bytes", "max_bytes", "limit", "short_documents", "held_out")
"""Options that say which text is held out."""
_WINDOWS = ("data.num_rows", "data.num_steps", "snapshots.batches")
"""Options that say which windows of it are looked at; their seed is that of no run."""


def same_text(one: RunFolder, other: RunFolder) -> bool:
    """Whether two runs were looked at on the same held-out windows.

    Args:
        one: a run.
        other: another one.
    """
    if held_out_text(one) != held_out_text(other):
        return False
    if one.option("snapshots.num_bytes") != other.option("snapshots.num_bytes") or not (one.looks and other.looks):
        return True
    # Names of folders say little: the same one may hold other files elsewhere. Some segmenters leave the last byte out.
    first, second = (run.looks[0]["text"] for run in (one, other))
    return first.startswith(second) or second.startswith(first)


def held_out_text(run: RunFolder) -> tuple[Any, ...]:
    """What decides which text is held out of a run, and which windows of it are looked at.

    Args:
        run: a run.
    """
    data = run.option("data") or {}
    return (*((name, data.get(name) or None) for name in _TEXT), *((name, run.option(name)) for name in _WINDOWS))


def comparable(runs: Sequence[RunFolder]) -> list[list[int]]:
    """Numbers of runs, those on the same held-out text together.

    Args:
        runs: any.
    """
    groups: list[list[int]] = []
    for number, run in enumerate(runs):
        mine = next((group for group in groups if same_text(runs[group[0]], run)), None)
        if mine is None:
            groups.append([number])
        else:
            mine.append(number)
    return groups


def looks_ahead(run: RunFolder) -> bool:
    """Whether the boundaries of a run depend on bytes to come, so that its losses are not those of a model.

    Args:
        run: a run.
    """
    return run.option("segmenter.name") in TOKENIZERS


def vocabulary(run: RunFolder) -> str:
    """What a run reads and cuts its text into, as far as that is a matter of choice.

    Args:
        run: a run.
    """
    special = run.model.get("num_special") or 0
    name, size = run.option("segmenter.name"), run.option("segmenter.options.vocabulary")
    pieces = f", cut by {name}" + (f" of {size:,} pieces" if size else "") if looks_ahead(run) else ""
    return f"256 bytes{f' and {special} special ids' if special else ''}{pieces}"


def estimator_of(run: RunFolder) -> str:
    """Return estimator, gamma and baseline of a learned policy; a dash if a rule or a segmenter draws boundaries.

    Args:
        run: a run.
    """
    if (run.option("segmenter.name") or "learned") != "learned" or run.option("actor.name") != "learned":
        return "-"
    baseline = run.option("baseline.name")
    return f"`{run.option('estimator.name')}`, gamma {run.option('estimator.gamma'):g}" + (
        f", `{baseline}`" if baseline not in (None, "none") else ""
    )


def trials_recorded(run: RunFolder) -> bool:
    """Return whether a finished run's total FLOPs include its estimator's trials: early runs did not record them.

    Args:
        run: a run.
    """
    tries = run.option("estimator.name") == "local_flips" and estimator_of(run) != "-"
    return run.summary is None or not tries or "tried_flops" in run.summary


def tried_flops(run: RunFolder) -> float | None:
    """Return the FLOPs of a run's trials: 0 without trials, None if they were not recorded.

    Args:
        run: finished.
    """
    return (run.summary or {}).get("tried_flops", 0.0) if trials_recorded(run) else None


def spent_flops(figures: dict[str, Any]) -> float:
    """Return total FLOPs, trials included if they were recorded.

    Args:
        figures: ``flops`` and ``tried_flops``.
    """
    return figures["flops"] + (figures["tried_flops"] or 0.0)


def equal_budgets(spent: Iterable[float]) -> bool:
    """Whether total FLOPs differ by at most 2 %: who spent more may be ahead for that alone, and is never bold.

    Args:
        spent: total FLOPs, at least one.

    Example:
        >>> equal_budgets([10.5e12, 10.6e12]), equal_budgets([10.5e12, 14.8e12])
        (True, False)
    """
    values = list(spent)
    return max(values) <= 1.02 * min(values)


def total_flops(figures: dict[str, Any]) -> str:
    """Return total FLOPs as tables show them, with the share that an estimator spent on trials.

    Args:
        figures: ``flops`` and ``tried_flops``, which is None in runs that did not record it.

    Example:
        >>> total_flops({"flops": 10e12, "tried_flops": 4e12}), total_flops({"flops": 10e12, "tried_flops": 0.0})
        ('14.0 TFLOPs (29 % trials)', '10.0 TFLOPs')
    """
    tried = figures["tried_flops"]
    spent = spent_flops(figures)
    shown = with_unit(spent, "FLOPs")
    if tried is None:
        return f"{shown} + trials not recorded"
    return f"{shown} ({tried / spent:.0%} trials)".replace("%", " %") if tried else shown
