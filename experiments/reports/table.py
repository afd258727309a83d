"""Table of runs: one row per run with its options, metrics and FLOPs; groups of seeds; loss curves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd
from rltok_rl.experiments.recipes import flat
from rltok_rl.experiments.reports.markdown import code, with_error, with_unit
from rltok_rl.experiments.reports.paired import paired_over_documents, paired_over_seeds, tied_with_best
from rltok_rl.experiments.runs.folder import RunFolder
from rltok_rl.experiments.runs.segmenters import TOKENIZERS

from rltok_rl.training.environment import bytes_per_second

Item = TypeVar("Item")

METRICS = [
    *("held_out_bits_per_byte", "held_out_early_bits_per_byte", "held_out_rate", "entropy", "advantage_spread"),
    *("bytes", "total_flops", "speed", "held_out_relative_return", "held_out_share"),
]
"""Columns that are averaged over seeds."""
CURVE = ("run", "text", "update", "bytes", "flops", "padded_flops", "bits_per_byte", "standard_error")
"""Columns of loss curves; ``text`` is ``training`` or ``held out``."""

_NOT_COMPARED = (
    *("out", "resume", "checkpoint_every", "checkpoint_minutes", "logger", "snapshots", "compare", "recipe", "changes"),
)
_TEXT = ("source", "options", "column", "split_by", "min_bytes", "max_bytes", "limit", "short_documents", "held_out")
_WINDOWS = ("data.num_rows", "data.num_steps", "snapshots.batches")  # their seed is fixed

RATE_TOLERANCE = 0.05
"""Relative distance of a realised rate from its target above which a result of the leaderboard or suite is void."""
COMPARED_TOLERANCE = 0.02
"""The same distance above which a system of a comparison is never bold: at equal total FLOPs, a model pays for more
boundaries with fewer bytes."""


def off_target(rate: Any, target: Any, tolerance: float = RATE_TOLERANCE) -> Any:
    """Return whether realised rates are too far from their targets, relative to these.

    Example:
        >>> off_target(0.104, 0.1), off_target(0.106, 0.1), off_target(0.104, 0.1, COMPARED_TOLERANCE)
        (False, True, True)
    """
    return abs(rate / target - 1) > tolerance


def run_table(runs: Mapping[str, RunFolder]) -> pd.DataFrame:
    """Return the table of runs by name: a row per run, None for missing values."""
    return pd.DataFrame([run_row(run) for run in runs.values()], index=list(runs), dtype=object)


def run_row(run: RunFolder) -> dict[str, Any]:
    """Return a row of the table.

    ``held_out_*`` are metrics of the last snapshot. ``bits_per_byte``, ``rate`` etc. are those of the evaluation on
    held-out documents (``evaluation.json``), or else of the last snapshot. ``tried_flops`` is None if the run's
    estimator tried boundaries without recording their cost.
    """
    summary = run.summary or {}
    snapshot = run.snapshots[-1] if run.snapshots else summary
    evaluation = run.evaluation or {
        **{f"corpus_{name}": snapshot.get(f"held_out_{name}") for name in ("bits_per_byte", "standard_error")},
        "early_corpus_bits_per_byte": snapshot.get("held_out_early_bits_per_byte"),
        "rate": snapshot.get("held_out_rate"),
        "target_rate": run.target_rate,
        "oracle": looks_ahead(run),
    }
    space, edge = (evaluation.get("word_edges", {}).get(name, {}) for name in ("space", "any"))
    names = ("rate", "target_rate", "oracle", "documents", "windows", "counts", "nats", "target_rates", "at_rates")
    flops, tried = summary.get("flops"), summary.get("tried_flops", 0.0)
    return {
        "run": run,
        "finished": run.summary is not None,
        "seed": run.option("seed"),
        "estimator": estimator_name(run),
        "parameters": run.model.get("parameters", 0) + run.model.get("segmenter_parameters", 0),
        # held-out documents
        "bits_per_byte": evaluation["corpus_bits_per_byte"],
        "standard_error": evaluation["corpus_standard_error"],
        "early_bits_per_byte": evaluation["early_corpus_bits_per_byte"],
        **{name: evaluation.get(name) for name in names},
        "split_by": evaluation.get("split_by"),
        "rows_per_text": evaluation.get("rows_per_text", 1),
        "predicted": evaluation.get("bytes"),
        "space_recall": space.get("covered"),
        "space_precision": space.get("share"),
        "space_chance": space.get("chance"),
        "edge_precision": edge.get("share"),
        "edge_chance": edge.get("chance"),
        # the last snapshot
        "snapshot_bytes": snapshot.get("bytes"),
        **{name: snapshot.get(name) for name in ("held_out_standard_error", *METRICS[:3])},
        **{f"{name}{end}": snapshot.get(f"{name}{end}") for name in METRICS[-2:] for end in ("", "_standard_error")},
        # training
        "entropy": run.final_mean("entropy"),
        "advantage_spread": run.final_mean("advantage_spread"),
        "updates": summary.get("updates"),
        "bytes": summary.get("bytes", run.bytes_done),
        "flops": flops,
        "padded_flops": summary.get("padded_flops"),
        "tried_flops": tried,
        "total_flops": run.last_flops if flops is None else flops + (tried or 0.0),
        "seconds": sum(start["seconds"] for start in run.starts),
        "speed": bytes_per_second(run.starts),
        "peak_memory": summary.get("peak_memory"),
    }


def estimator_name(run: RunFolder) -> str:
    """Return estimator, gamma and baseline of a learned policy; a dash if a rule or a segmenter draws boundaries."""
    if run.option("segmenter.name") != "learned" or run.option("actor.name") != "learned":
        return "-"
    baseline = run.option("baseline.name")
    name = f"{code(run.option('estimator.name'))}, gamma {run.option('estimator.gamma'):g}"
    return name if baseline in (None, "none") else f"{name}, {code(baseline)}"


def looks_ahead(run: RunFolder) -> bool:
    """Whether the run's boundaries depend on later bytes, so that its losses are not those of a model."""
    return run.option("segmenter.name") in TOKENIZERS


def option_table(runs: Mapping[str, RunFolder]) -> pd.DataFrame:
    """Return the options of runs by dotted name, without options that do not affect training."""
    rows = [flat({k: value for k, value in run.config.items() if k not in _NOT_COMPARED}) for run in runs.values()]
    keys = dict.fromkeys(key for row in rows for key in row)
    return pd.DataFrame({key: [row.get(key) for row in rows] for key in keys}, index=list(runs), dtype=object)


def seed_groups(options: pd.DataFrame) -> pd.Series:
    """Name the seed group of each run, from a row of options per run: runs that differ in ``seed`` alone.

    A repeated seed belongs to another group: the same run twice is no second sample.
    """
    alike = pd.Series(map(repr, options.drop(columns="seed").to_numpy().tolist()), index=options.index)
    repeat = options.groupby([alike, options["seed"].map(str)]).cumcount()
    members = [list(rows.index) for _, rows in options.groupby([alike, repeat], sort=False)]
    titles = [_common_name({name: str(options.at[name, "seed"]) for name in group}) for group in members]
    names: dict[Any, str] = {}
    for group, title in zip(members, titles, strict=True):
        ambiguous = titles.count(title) > 1 or (title in options.index and len(group) > 1)
        names |= dict.fromkeys(group, ", ".join(group) if ambiguous else title)
    return options.index.to_series().map(names)


def _common_name(seeds: Mapping[str, str]) -> str:
    """The name that runs share without their seeds, else all names."""
    if len(seeds) == 1:
        return next(iter(seeds))
    short = {_without_seed(name, seed) for name, seed in seeds.items()}
    return (short.pop() if len(short) == 1 else "") or ", ".join(seeds)


def _without_seed(name: str, seed: str) -> str:
    """Remove the last number that is the seed, and its prefix."""
    pattern = rf"(?:(?:^|[-_.=/])(?:seed|s)[-_.=]*|[-_.=]*)(?<!\d){re.escape(seed)}(?!\d)"
    matches = list(re.finditer(pattern, name))
    return (name[: matches[-1].start()] + name[matches[-1].end() :]).strip("-_.=/ ") if matches else name


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of a seed group that its metrics average: the finished ones, if any is finished."""
    return rows[rows["finished"].astype(bool)] if rows["finished"].any() else rows


def best_groups(groups: Sequence[pd.DataFrame], *, by_share: bool = False) -> set[int]:
    """Return the places of the seed groups that a paired test over seeds cannot tell from the best.

    The best has the fewest bits per byte, or the largest share of the optimum. Oracles are excluded, and unfinished
    groups if any group is finished.
    """
    name, sign = ("held_out_share", -1.0) if by_share else ("held_out_bits_per_byte", 1.0)
    any_finished = any(rows["finished"].any() for rows in groups)
    losses = [sign * counted(rows).set_index("seed")[name].astype(float) for rows in groups]
    excluded = [rows["oracle"].any() or (any_finished and not rows["finished"].any()) for rows in groups]
    means = [math.nan if out else group.mean(skipna=False) for out, group in zip(excluded, losses, strict=True)]
    return tied_with_best(means, lambda row, best: paired_over_seeds(losses[row], losses[best]))


def best_systems(rows: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the places of the runs that a paired test over documents cannot tell from the best.

    Oracles are excluded. Empty at unequal budgets.
    """
    if not equal_budgets(total_flops(row) for row in rows if not row["oracle"]):
        return set()
    losses = [math.nan if row["oracle"] else row["bits_per_byte"] for row in rows]
    return tied_with_best(losses, lambda row, best: paired_over_documents(rows[row], rows[best]))


def system_cells(name: str, row: Mapping[str, Any], difference: str, *, bold: bool) -> list[str]:
    """Format a run: name, estimator, total FLOPs, bits per byte, a difference from another run, and the rate."""
    loss = with_error(row["bits_per_byte"], row["standard_error"])
    return [
        f"{name}{' *' if row['oracle'] else ''}",
        row["estimator"],
        flops_with_trials(row["flops"], row["tried_flops"]),
        f"**{loss}**" if bold else loss,
        difference,
        rate_with_target(row),
    ]


def rate_with_target(row: Mapping[str, Any]) -> str:
    """Format boundaries per byte with their target."""
    target = "none" if row["target_rate"] is None else f"{row['target_rate']:g}"
    return f"{row['rate']:.3f} ({'by script' if row['target_rates'] else target})"


def same_text(run: RunFolder, other: RunFolder) -> bool:
    """Whether two runs were evaluated on the same held-out windows."""
    if _held_out_text(run) != _held_out_text(other):
        return False
    if run.option("snapshots.num_bytes") != other.option("snapshots.num_bytes"):
        return True
    if not (run.snapshots and other.snapshots):
        return True
    # One name may stand for different files. Some segmenters leave out the last byte.
    texts = [each.snapshots[0]["text"] for each in (run, other)]
    return texts[0].startswith(texts[1]) or texts[1].startswith(texts[0])


def _held_out_text(run: RunFolder) -> list[Any]:
    data = run.option("data") or {}
    return [data.get(name) or None for name in _TEXT] + [run.option(name) for name in _WINDOWS]


def grouped(items: Iterable[Item], same: Callable[[Item, Item], bool]) -> list[list[Item]]:
    """Group items that are the same as the first of their group."""
    groups: list[list[Item]] = []
    for item in items:
        group = next((group for group in groups if same(group[0], item)), None)
        if group is None:
            groups.append([item])
        else:
            group.append(item)
    return groups


def total_flops(row: Mapping[str, Any]) -> float:
    """Return total FLOPs of a finished run, trials included if they were recorded."""
    return row["flops"] + (row["tried_flops"] or 0.0)


def equal_budgets(flops: Iterable[float]) -> bool:
    """Whether total FLOPs differ by at most 2 %: otherwise a lower loss may be due to the budget."""
    flops = list(flops)
    return bool(flops) and max(flops) <= 1.02 * min(flops)


def flops_with_trials(flops: float, tried: float | None) -> str:
    """Format total FLOPs with the share of an estimator's trials, if it is visible; None if they were not recorded.

    Example:
        >>> flops_with_trials(10e12, 4e12), flops_with_trials(10e12, 1e9)
        ('14.0 TFLOPs (29 % trials)', '10.0 TFLOPs')
    """
    total = with_unit(flops + (tried or 0.0), "FLOPs")
    if tried is None:
        return f"{total} + trials not recorded"
    share = f"{100 * tried / (flops + tried):.0f}" if tried else "0"
    return total if share == "0" else f"{total} ({share} % trials)"


def loss_curves(runs: Mapping[str, RunFolder]) -> pd.DataFrame:
    """Return a row per update and per snapshot of every run: loss against bytes and FLOPs, in columns :data:`CURVE`."""
    rows = []
    for name, run in runs.items():
        rows += [{**row, "run": name, "text": "training"} for row in pd.DataFrame(run.history).to_dict("records")]
        for row in run.snapshots:
            held_out = {key: row.get(f"held_out_{key}") for key in ("bits_per_byte", "standard_error")}
            rows.append({**row, **held_out, "run": name, "text": "held out"})
    table = pd.DataFrame(rows, columns=list(CURVE)).astype({"update": "Int64", "bytes": "Int64"})
    return table.replace([float("inf"), -float("inf")], float("nan"))
