"""Page of a comparison over several seeds: means, paired differences over seeds and over held-out groups, one figure.

    rltok train --multirun experiment=compare-seeds data.source=books
    rltok report runs/compare-seeds

Every folder in the given one is a comparison of the same systems from another seed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rltok_rl.experiments.reports.comparable import equal_budgets, spent_flops, total_flops
from rltok_rl.experiments.reports.markdown import markdown, with_unit
from rltok_rl.experiments.reports.seeds import (
    Difference,
    paired_over_documents,
    paired_over_seeds,
    tied_with_best,
)
from rltok_rl.experiments.reports.systems_page import is_comparison, judged_systems, system_figures
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.renamed import current_text
from rltok_rl.training.atomic_files import replace_text
from rltok_rl.training.record import without_folders
from rltok_rl.viz.comparison import draw_loss_against_flops

PAGE, TABLE, FIGURE = "compare-seeds.md", "compare-seeds.json", "compare-seeds.png"
SHARES = (0.1, 0.2, 0.3, 1.0)
"""Shares of a run's updates at which the policy's entropy is shown (Figure 13 of the paper)."""
_REFERENCE = "uniform"
HEADER = (
    "system",
    "estimator",
    "total FLOPs",
    "bits per byte",
    "each seed",
    "minus {reference}: over seeds",
    "over {unit}s",
    "boundaries per byte (target)",
    "bytes",
    "spaces that have a boundary",
)


@dataclass(frozen=True)
class System:
    """One system from several seeds."""

    name: str
    rows: Mapping[int, dict[str, Any]]
    """Figures of each seed, as :func:`~rltok_rl.experiments.reports.systems_page.system_figures` gives them."""

    @property
    def losses(self) -> dict[int, float]:
        """Bits per byte by seed."""
        return {seed: row["bits_per_byte"] for seed, row in self.rows.items()}

    def mean_nats(self, seeds: Collection[int]) -> dict[str, Any]:
        """Average the nats of each held-out document or group over seeds.

        Args:
            seeds: to average over, at least one.
        """
        rows = [self.rows[seed] for seed in seeds]
        nats = [fmean(values) for values in zip(*(row["nats"] for row in rows), strict=True)]
        return {"counts": rows[0]["counts"], "nats": nats}


def paired_by_unit(one: System, other: System) -> Difference | None:
    """Return the difference over documents or groups, averaged over the seeds that both systems have.

    Args:
        one: system.
        other: that its bits per byte are compared with.
    """
    shared = [seed for seed in one.rows if seed in other.rows]
    return paired_over_documents(one.mean_nats(shared), other.mean_nats(shared)) if shared else None


def seed_folders(folder: Path) -> list[Path]:
    """Return the comparisons in a folder, one per seed.

    Args:
        folder: that holds them.
    """
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and is_comparison(path)]


def write_seeds_page(folder: Path, *, formats: Sequence[str] = ("png",)) -> Path:
    """Write ``compare-seeds.md``, ``compare-seeds.json`` and ``compare-seeds.png``.

    Args:
        folder: whose folders are comparisons of the same systems.
        formats: of the figure; the page shows the PNG, which is always among them.
    """
    runs = {
        (system, path.name): read_run(path / system) for path in seed_folders(folder) for system in judged_systems(path)
    }
    systems = _systems(runs)
    replace_text(folder / TABLE, json.dumps(_content(systems, runs), indent=None, separators=(",", ":")) + "\n")
    histories = {f"{system} {seed}": (run.history, run.held_out) for (system, seed), run in runs.items()}
    groups = {one.name: [f"{s} {seed}" for s, seed in runs if s == one.name] for one in systems}
    if all(history for history, _ in histories.values()):
        for suffix in formats:
            draw_loss_against_flops(histories, (folder / FIGURE).with_suffix(f".{suffix}"), groups=groups)
    replace_text(folder / PAGE, seeds_page(json.loads((folder / TABLE).read_text())))
    return folder / PAGE


def _systems(runs: Mapping[tuple[str, str], RunFolder]) -> list[System]:
    """Systems with the figures of their seeds, the reference last."""
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    for (name, _), run in runs.items():
        figures = system_figures(name, run)
        seeds = by_name.setdefault(name, {})
        if figures["seed"] in seeds:
            raise ValueError(f"seed {figures['seed']} of {name!r} must be there once, got it twice, also in {run.path}")
        seeds[figures["seed"]] = figures
    systems = [System(name, dict(sorted(rows.items()))) for name, rows in by_name.items()]
    return sorted(systems, key=lambda one: one.name == _REFERENCE)


def _content(systems: Sequence[System], runs: Mapping[tuple[str, str], RunFolder]) -> dict[str, Any]:
    """All that the page shows, so that the page can be made again without the runs."""
    first = next(iter(runs.values()))
    commands = {without_folders((run.summary or {}).get("command", "")) for run in runs.values()}
    machines = {(run.summary or {}).get("machine", "") for run in runs.values()}
    revisions = {start["git"]["revision"] for run in runs.values() for start in run.starts if start.get("git")}
    return {
        "commands": sorted(commands),
        "machines": sorted(machines),
        "revisions": sorted(revisions),
        "data": {
            name: first.option(f"data.{name}") for name in ("source", "split_by", "held_out", "num_rows", "num_steps")
        },
        "model": {"preset": first.option("model.preset"), **(first.option("model.overrides") or {})},
        "systems": [
            {
                "name": one.name,
                "rows": {seed: {**row, "entropy": _entropy(runs, row)} for seed, row in one.rows.items()},
            }
            for one in systems
        ],
    }


def _entropy(runs: Mapping[tuple[str, str], RunFolder], row: Mapping[str, Any]) -> list[float] | None:
    """Policy entropy at the shares of the run, in nats per decision; None without a learned policy."""
    run = next(run for (name, _), run in runs.items() if name == row["system"] and run.option("seed") == row["seed"])
    return entropy_at_shares(run)


def entropy_at_shares(run: RunFolder, shares: Sequence[float] = SHARES) -> list[float] | None:
    """Return the policy's entropy at shares of a run, each averaged over a fortieth of the run's updates.

    Args:
        run: with ``metrics.csv``.
        shares: of its updates, each in (0, 1].
    """
    values = [value for value in run.history.get("entropy", []) if value == value]
    if not values:
        return None
    width = max(1, len(values) // 40)
    ends = [max(width, round(share * len(values))) for share in shares]
    return [fmean(values[end - width : end]) for end in ends]


def seeds_page(content: Mapping[str, Any]) -> str:
    """Return the page as Markdown.

    Args:
        content: of ``compare-seeds.json``.
    """
    systems = systems_of(content)
    rows = [row for one in systems for row in one.rows.values()]
    reference, unit = _reference(systems), content["data"]["split_by"] or "document"
    first = rows[0]
    spent = [spent_flops(row) for row in rows]
    data = content["data"]
    options = ", ".join(f"{name} {value}" for name, value in content["model"].items() if name != "preset")
    notes = [
        f"{first['predicted']:,} held-out bytes in {first['documents']:,} {unit}s, the same for all systems and seeds; "
        + (f"no {unit} is on both sides of the split." if data["split_by"] else "split by single documents."),
        "Bits per byte: mean ± standard deviation over seeds. Bold: not distinguishable from the best by a paired test "
        "over seeds (95 %), if total FLOPs differ by at most 2 %; systems with one seed are never bold.",
        f"Differences to {reference.name} are paired, with their 95 % interval (Student's t): by seed (the same order "
        f"of the training text, the same initial weights), and by {unit}, averaged over seeds.",
        f"Total FLOPs include an estimator's trials; they differ by {percent(max(spent) / min(spent) - 1)} at most.",
        f"Machine: {'; '.join(content['machines'])}. Revision: {', '.join(one[:10] for one in content['revisions'])}.",
    ]
    parts = [
        f"# {with_unit(min(spent), 'FLOPs')} in total, {len(reference.rows)} seeds",
        "\n".join(f"    {command}" for command in content["commands"]),
        f"`{data['source']}`, {data['num_rows']} rows of {data['num_steps']} bytes; model "
        f"`{content['model']['preset']}` with {options or 'nothing replaced'}, {first['parameters']:,} parameters.",
        seeds_table(content),
        "\n".join(f"- {note}" for note in notes),
        *_pairs(systems, reference, unit),
        f"![Bits per byte against total FLOPs]({FIGURE})",
        "Left: training, a thin line for each seed (dots: held-out text). Right: mean and standard deviation over "
        "seeds on the held-out windows of the evaluations during training, which are fewer than those of the table.",
        *_settling(systems),
    ]
    return "\n\n".join(parts) + "\n"


def systems_of(content: Mapping[str, Any]) -> list[System]:
    """Return the systems of ``compare-seeds.json``.

    Args:
        content: of the file.
    """
    return [System(one["name"], {int(s): row for s, row in one["rows"].items()}) for one in content["systems"]]


def _reference(systems: Sequence[System]) -> System:
    return next((one for one in systems if one.name == _REFERENCE), systems[0])


def seeds_table(content: Mapping[str, Any]) -> str:
    """Return the table of systems as Markdown.

    Args:
        content: of ``compare-seeds.json``.
    """
    systems, unit = systems_of(content), content["data"]["split_by"] or "document"
    reference = _reference(systems)
    means = [fmean(one.losses.values()) for one in systems]
    real = [None if next(iter(one.rows.values()))["oracle"] else mean for one, mean in zip(systems, means, strict=True)]
    best = min((n for n, mean in enumerate(real) if mean is not None), key=lambda n: means[n])
    bold = tied_with_best(real, [paired_over_seeds(one.losses, systems[best].losses) for one in systems])
    if not equal_budgets(spent_flops(row) for one in systems for row in one.rows.values()):
        bold = set()
    body = []
    for number, (one, mean) in enumerate(zip(systems, means, strict=True)):
        rows = list(one.rows.values())
        loss = f"{mean:.3f} ± {stdev(one.losses.values()):.3f}" if len(rows) > 1 else f"{mean:.3f}"
        target = rows[0]["target_rate"]
        body.append(
            [
                f"{one.name}{' *' if rows[0]['oracle'] else ''}",
                current_text(rows[0]["estimator"]),
                total_flops({name: fmean(row[name] for row in rows) for name in ("flops", "tried_flops")}),
                f"**{loss}**" if number in bold else loss,
                ", ".join(f"{value:.3f}" for value in one.losses.values()),
                *(
                    ["-", "-"]
                    if one is reference
                    else [
                        interval(paired_over_seeds(one.losses, reference.losses)),
                        interval(paired_by_unit(one, reference)),
                    ]
                ),
                f"{fmean(row['rate'] for row in rows):.3f} ({'none' if target is None else f'{target:g}'})",
                with_unit(fmean(row["bytes"] for row in rows), "B"),
                ", ".join("-" if row["space_recall"] is None else percent(row["space_recall"]) for row in rows),
            ]
        )
    return markdown([name.format(reference=reference.name, unit=unit) for name in HEADER], body)


def percent(share: float) -> str:
    """Return a share in per cent.

    Example:
        >>> percent(0.9834)
        '98.3 %'
    """
    return f"{100 * share:.1f} %"


def interval(difference: Difference | None) -> str:
    """Return a difference with its 95 % interval as tables show it.

    Args:
        difference: None if nothing is paired.

    Example:
        >>> interval(Difference(-0.05, 0.002, 3))
        '-0.050 [-0.059, -0.041]'
    """
    if difference is None:
        return "-"
    mean, half = difference.mean, difference.half_width
    return f"{mean:+.3f}" + ("" if difference.error is None else f" [{mean - half:+.3f}, {mean + half:+.3f}]")


def _pairs(systems: Sequence[System], reference: System, unit: str) -> list[str]:
    """What the pairs of systems without the reference say of each other."""
    others = [one for one in systems if one is not reference]
    lines = []
    for number, one in enumerate(others):
        for other in others[number + 1 :]:
            by_seed = paired_over_seeds(one.losses, other.losses)
            by_unit = paired_by_unit(one, other)
            if by_seed is None or by_seed.error is None:
                verdict = "one seed or none in common, so without a test over seeds"
            else:
                verdict = f"over seeds they {'can' if by_seed.significant else 'cannot'} be told apart"
            lines.append(
                f"- {one.name} minus {other.name}: {interval(by_seed)} over seeds, {interval(by_unit)} over {unit}s; "
                f"{verdict}."
            )
    return ["\n".join(lines)] if lines else []


def _settling(systems: Sequence[System]) -> list[str]:
    """Entropy of the learned policies on the way."""
    body = [
        [f"{one.name}, seed {seed}", *(f"{value:.3f}" for value in row["entropy"])]
        for one in systems
        for seed, row in one.rows.items()
        if row.get("entropy")
    ]
    if not body:
        return []
    header = [
        "policy entropy, nats per decision",
        *(f"at {100 * share:.0f} % of the run" for share in SHARES),
    ]
    return ["When boundaries settle:", markdown(header, body)]
