"""Runs that differ in nothing but their seed: which they are, what to call them, and their figures in one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

import torch
from rltok_rl.experiments.runs.folder import RunFolder

from rltok_rl.evaluation import corpus_bits_per_byte, corpus_standard_error
from rltok_rl.training.record import bytes_per_second


@dataclass(frozen=True)
class Group:
    """A line of a comparison."""

    name: str
    runs: tuple[RunFolder, ...]

    @property
    def counted(self) -> list[RunFolder]:
        """The runs that its figures are of: those that are finished, if any is."""
        return [run for run in self.runs if run.summary is not None] or list(self.runs)

    @property
    def seeds(self) -> str:
        """Of the runs that are counted, and of those that are not."""
        counted = self.counted
        behind = [str(run.option("seed")) for run in self.runs if not any(run is one for one in counted)]
        shown = ", ".join(str(run.option("seed")) for run in counted)
        return f"{shown} ({', '.join(behind)} not finished)" if behind else shown

    @property
    def finished(self) -> bool:
        """Whether its figures are those of an end."""
        return all(run.summary is not None for run in self.counted)


@dataclass(frozen=True)
class Figure:
    """A figure over seeds."""

    mean: float
    spread: float | None = None
    """Standard deviation over seeds, from n - 1; None of one."""
    error: float | None = None
    """Standard error of the mean, spread / √n."""


def seed_groups(runs: Sequence[RunFolder], options: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Group]:
    """Runs on the same held-out text, those together that have all options but the seed in common.

    A seed comes once in a group: the same training twice says nothing about another one.

    Args:
        runs: to put together.
        options: of each, flat.
        names: of each.
    """
    found: list[list[int]] = []
    for n, one in enumerate(options):
        mine = next((group for group in found if _alike(one, [options[m] for m in group])), None)
        if mine is None:
            found.append([n])
        else:
            mine.append(n)
    titles = [_called([(names[n], str(options[n].get("seed"))) for n in group]) for group in found]
    for place, group in enumerate(found):
        if titles.count(titles[place]) > 1 or (titles[place] in names and len(group) > 1):
            titles[place] = ", ".join(names[n] for n in group)
    return [Group(title, tuple(runs[n] for n in group)) for title, group in zip(titles, found, strict=True)]


def _alike(one: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run differs from those of a group in its seed alone, and from each of them in that."""
    same = all(one.get(key) == group[0].get(key) for key in {*one, *group[0]} - {"seed"})
    return same and one.get("seed") not in [other.get("seed") for other in group]


def _called(runs: Sequence[tuple[str, str]]) -> str:
    """What several runs are called together: the name that is left without their seeds, else all names.

    Example:
        >>> _called([("ema-0", "0"), ("ema-1", "1")]), _called([("runs-1", "3"), ("mine", "4")])
        ('ema', 'runs-1, mine')
    """
    if len(runs) == 1:
        return runs[0][0]
    left = {_without(name, seed) for name, seed in runs}
    common = left.pop() if len(left) == 1 else ""
    return common or ", ".join(name for name, _ in runs)


def _without(name: str, seed: str) -> str:
    """A name without the last number in it that is the seed, and what leads to that."""
    pattern = rf"(?:(?:^|[-_.=/])(?:seed|s)[-_.=]*|[-_.=]*)(?<!\d){re.escape(seed)}(?!\d)"
    found = list(re.finditer(pattern, name))
    return (name[: found[-1].start()] + name[found[-1].end() :]).strip("-_.=/ ") if found else name


def values_of(run: RunFolder) -> dict[str, float | None]:
    """The figures of a run, by short names; None where there is none.

    Args:
        run: finished or not.
    """
    look = run.looks[-1] if run.looks else {}
    return {
        "loss": look.get("held_out_bits_per_byte"),
        "early": look.get("held_out_early_bits_per_byte"),
        "rate": look.get("held_out_rate"),
        "entropy": run.last("entropy"),
        "advantage_spread": run.last("advantage_spread"),
        "bytes": run.bytes_done,
        "flops": run.last_flops,
        "speed": bytes_per_second(run.starts),
    }


def over_seeds(group: Group) -> dict[str, Figure | None]:
    """The figures of a group: means over the runs that are counted, and how far these lie apart.

    Args:
        group: of one run or several.
    """
    columns = [values_of(run) for run in group.counted]
    found: dict[str, Figure | None] = {}
    for name in columns[0]:
        known = [value for one in columns if (value := one[name]) is not None and not math.isnan(value)]
        if len(known) < len(columns):
            found[name] = None
        elif len(known) == 1:
            found[name] = Figure(known[0])
        else:
            found[name] = Figure(fmean(known), stdev(known), stdev(known) / math.sqrt(len(known)))
    return found


_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of Student's t with 1 to 30 degrees of freedom."""


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Args:
        freedom: degrees of freedom, at least 1. Above 30 an expansion around the normal quantile is used.

    Example:
        >>> t_quantile(2), round(t_quantile(31), 3), round(t_quantile(1000), 3)
        (4.303, 2.039, 1.962)
    """
    if freedom < 1:
        raise ValueError(f"freedom must be at least 1, got {freedom}")
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences."""

    mean: float
    error: float | None
    """Standard error; None if there is one pair."""
    pairs: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval, by Student's t; infinite if there is one pair."""
        return math.inf if self.error is None else t_quantile(self.pairs - 1) * self.error

    @property
    def significant(self) -> bool:
        """Whether the 95 % interval leaves out 0."""
        return abs(self.mean) > self.half_width


def paired_over_documents(row: dict[str, Any], other: dict[str, Any]) -> Difference | None:
    """Bits per byte of a system minus those of another on the same documents; None if the documents differ.

    Args:
        row: ``counts`` (bytes) and ``nats`` of each document, or of each group of documents.
        other: the same of the other system.
    """
    if not row.get("counts") or row["counts"] != other.get("counts"):
        return None
    counts = torch.tensor(row["counts"])
    nats = torch.tensor(row["nats"], dtype=torch.float64) - torch.tensor(other["nats"], dtype=torch.float64)
    return Difference(corpus_bits_per_byte(counts, nats), corpus_standard_error(counts, nats), len(counts))


def paired_over_seeds(values: dict[Any, float], others: dict[Any, float]) -> Difference | None:
    """Differences of two systems that were trained from the same seeds; None if they share none.

    Args:
        values: by seed.
        others: by seed, of the other system.

    Example:
        >>> difference = paired_over_seeds({0: 2.1, 1: 2.2, 2: 2.3}, {0: 2.2, 1: 2.31, 2: 2.39})
        >>> round(difference.mean, 3), difference.pairs, difference.significant
        (-0.1, 3, True)
    """
    apart = [value - others[seed] for seed, value in values.items() if seed in others]
    if not apart:
        return None
    error = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else None
    return Difference(fmean(apart), error, len(apart))


def tied_with_best(values: Sequence[float | None], differences: Sequence[Difference | None]) -> set[int]:
    """Numbers of the systems that a paired test cannot tell from the best: those that tables print bold.

    Args:
        values: of each system, lower is better; None leaves it out.
        differences: of each from the best one, None if nothing is paired. A system without a test is never bold, and
            neither is a best one that nothing was tested against.

    Example:
        >>> apart = [Difference(0.001, 0.002, 9), None, Difference(0.1, 0.002, 9)]
        >>> sorted(tied_with_best([2.181, 2.18, 2.28], apart))
        [0, 1]
    """
    known = [number for number, value in enumerate(values) if value is not None]
    if not known:
        return set()
    best = min(known, key=lambda number: values[number])  # type: ignore[arg-type, return-value]
    tested = {n: d for n in known if n != best and (d := differences[n]) is not None and d.error is not None}
    return {best, *(n for n, one in tested.items() if not one.significant)} if tested else set()
