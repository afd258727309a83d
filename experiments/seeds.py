"""Runs that differ in nothing but their seed: which they are, what to call them, and their figures in one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rltok_rl.experiments.run_folder import RunFolder

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
