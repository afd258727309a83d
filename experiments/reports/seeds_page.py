"""Page of a comparison over several seeds: means, paired differences over seeds and over documents, one figure.

    rltok train --multirun experiment=compare-seeds data.source=books
    rltok report runs/compare-seeds

Every folder in the given one is a comparison of the same systems with another seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from rltok_rl.experiments.recipes import as_typed
from rltok_rl.experiments.reports.earlier_seeds import with_earlier
from rltok_rl.experiments.reports.markdown import (
    bullets,
    code,
    markdown,
    options_text,
    percent,
    plain,
    rounded,
    with_error,
    with_unit,
)
from rltok_rl.experiments.reports.paired import Difference, bootstrap_text, interval
from rltok_rl.experiments.reports.policy_options import MODEL_FIELD, method_options, split_options, unlike
from rltok_rl.experiments.reports.provenance import provenance, provenance_notes
from rltok_rl.experiments.reports.seed_table import SeedTable, preferred_reference, rate_notes, seeds_table
from rltok_rl.experiments.reports.systems_page import evaluated_systems, is_comparison, system_rows
from rltok_rl.experiments.reports.table import COMPARED_TOLERANCE, equal_budgets, total_flops
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.data.disk import replace_text
from rltok_rl.training.environment import without_folders
from rltok_rl.viz.difference_figure import draw_differences
from rltok_rl.viz.run_figures import draw_loss_against_flops
from rltok_rl.viz.style import FORMATS

PAGE, TABLE, FIGURE = "compare-seeds.md", "compare-seeds.json", "compare-seeds.png"
DIFFERENCES = "differences.png"
SHARES = (0.1, 0.2, 0.3, 1.0)
"""Shares of a run's updates at which the policy's entropy is shown (Figure 13 of the paper)."""
MOST_PAIRED = 4
"""Systems of which all pairs are compared."""
_DATA = ("source", "split_by", "held_out", "num_rows", "num_steps")
_CURVES = (
    f"![Bits per byte against total FLOPs]({FIGURE})",
    "Left: training, a thin line for each seed (dots: held-out text). Right: mean and standard deviation over "
    "seeds on the held-out windows of the evaluations during training, which are fewer than those of the table.",
)


def comparisons(folder: Path) -> list[Path]:
    """Return the comparisons in a folder, such as one per seed."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and is_comparison(path)]


def write_seeds_page(folder: Path, *, formats: Sequence[str] = ("png",), earlier: Path | None = None) -> Path:
    """Write ``compare-seeds.md``, ``compare-seeds.json``, and the figures in ``formats``.

    ``earlier`` is the ``compare-seeds.json`` of a page that the runs are added to; it has no curves, so none are drawn.
    """
    runs: dict[str, RunFolder] = {}
    systems: dict[str, dict[int, dict[str, Any]]] = {}
    methods: dict[str, dict[str, Any]] = {}
    for path in comparisons(folder):
        folders = {name: read_run(path / name) for name in evaluated_systems(path)}
        for row, run in zip(system_rows(folders), folders.values(), strict=True):
            name, seed = row["system"], row["seed"]
            rows = systems.setdefault(name, {})
            if seed in rows:
                raise ValueError(f"seed {seed} of {name!r} must be there once, got it twice, also in {run.path}")
            method, first = method_options(run), next(iter(rows.values()), row)
            _require_equal(_data(run), _data(next(iter(runs.values()), run)), "must be equal in all runs", run)
            _require_equal(
                {**method, "counts": row["counts"]},
                {**methods.setdefault(name, method), "counts": first["counts"]},
                f"of {name!r} must be equal in all seeds",
                run,
            )
            rows[seed] = {**row, "entropy": entropy_at_shares(run), **provenance(run)}
            runs[f"{name} {path.name}"] = run
    reference = preferred_reference(systems)
    order = sorted(systems, key=lambda name: name == reference)  # the reference comes last
    has_policy = {row["system"] for rows in systems.values() for row in rows.values() if row["estimator"] != "-"}
    shared, options = split_options({name: methods[name] for name in order if name in has_policy})
    content = _content(list(runs.values()), options, {name: dict(sorted(systems[name].items())) for name in order})
    content["shared_options"] = shared
    if earlier is not None:
        content = with_earlier(content, earlier)
    content = rounded(content)
    for system in content["systems"]:
        _require_equal_budgets(system["name"], system["rows"])
    written = json.dumps(content, indent=None, separators=(",", ":")) + "\n"
    table = SeedTable(content)
    page = seeds_page(content, table)  # first: nothing is replaced if this fails
    replace_text(folder / TABLE, written)
    groups = {name: [label for label in runs if label.rpartition(" ")[0] == name] for name in order}
    for suffix in FORMATS:
        (folder / FIGURE).with_suffix(f".{suffix}").unlink(missing_ok=True)  # an older one, which may be of other seeds
    if content["has_curves"]:
        histories = {label: (run.history, run.held_out) for label, run in runs.items()}
        for suffix in formats:
            draw_loss_against_flops(histories, (folder / FIGURE).with_suffix(f".{suffix}"), groups=groups)
    if differences := table.differences():
        for suffix in formats:
            draw_differences(differences, (folder / DIFFERENCES).with_suffix(f".{suffix}"), reference=table.reference)
    replace_text(folder / PAGE, page)
    return folder / PAGE


def _data(run: RunFolder) -> dict[str, Any]:
    """Return the options of a run's text that the page shows."""
    return {f"data.{name}": run.option(f"data.{name}") for name in _DATA}


def _require_equal(mine: Mapping[str, Any], first: Mapping[str, Any], words: str, run: RunFolder) -> None:
    """Require that a run has the options or counts of the first one, so that one page can describe both."""
    for option, values in unlike(mine, first).items():
        own, other = (f"{value!r:.60}" for value in values)
        raise ValueError(f"{option} {words}, got {other}, and {own} in {run.path}")


def _require_equal_budgets(name: str, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Require that the seeds of a system have equal total FLOPs, within 2 %."""
    totals = {seed: total_flops(row) for seed, row in rows.items()}
    if not equal_budgets(totals.values()):
        got = " and ".join(f"{with_unit(flops, 'FLOPs')} in seed {seed}" for seed, flops in totals.items())
        raise ValueError(f"total FLOPs of {name!r} must be equal in all seeds, got {got}")


def _content(
    runs: Sequence[RunFolder],
    options: Mapping[str, dict[str, Any]],
    systems: Mapping[str, dict[int, dict[str, Any]]],
) -> dict[str, Any]:
    """Everything that the page shows: it can be written again without the runs."""
    first, summaries = runs[0], [run.summary or {} for run in runs]
    varying = {option.removeprefix(MODEL_FIELD) for changed in options.values() for option in changed}
    fields = {name: value for name, value in (first.option("model.overrides") or {}).items() if name not in varying}
    return {
        "commands": sorted({without_folders(summary.get("command", "")) for summary in summaries}),
        "machines": sorted({summary.get("machine", "") for summary in summaries}),
        "revisions": sorted({start["git"]["revision"] for run in runs for start in run.starts if start.get("git")}),
        "data": {name: first.option(f"data.{name}") for name in _DATA},
        "model": {"preset": first.option("model.preset"), **fields},
        "systems": [{"name": name, "rows": rows, "options": options.get(name)} for name, rows in systems.items()],
        "has_curves": all(run.history for run in runs),
    }


def entropy_at_shares(run: RunFolder) -> list[float] | None:
    """Return the policy's entropy at :data:`SHARES`, means over a fortieth of the updates; None without a policy."""
    values = pd.Series(run.history.get("entropy", []), dtype=float).dropna()
    if values.empty:
        return None
    means = values.rolling(max(1, len(values) // 40)).mean().bfill()
    return [float(means.iloc[max(0, round(share * len(values)) - 1)]) for share in SHARES]


def seeds_page(content: Mapping[str, Any], table: SeedTable) -> str:
    """Return the page as Markdown, from the content of ``compare-seeds.json`` and its table."""
    data = content["data"]
    first, flops, unit, reference = table.rows.iloc[0], table.total_flops, table.unit, table.reference
    predicted = table.rows["predicted"].dropna().unique()
    options = options_text({name: value for name, value in content["model"].items() if name != "preset"})
    of_systems = table.rows["parameters"]
    sizes = " to ".join(f"{size:,}" for size in sorted({of_systems.min(), of_systems.max()}))
    notes = [
        f"{' or '.join(f'{n:,}' for n in predicted)} held-out bytes in {first['documents']:,} {unit}s, equal for all "
        + ("systems and seeds; " if len(predicted) == 1 else "seeds; ")
        + (f"no {unit} is on both sides of the split." if data["split_by"] else "split by single documents."),
        "Bits per byte: mean ± standard deviation over seeds. Bold: not distinguishable from the best by a paired test "
        "over seeds (95 %), if total FLOPs differ by at most 2 % and all targets are equal. Systems with one seed, "
        f"with two where others have three, or with a seed more than {100 * COMPARED_TOLERANCE:g} % off its "
        "target, are never bold and never the best.",
        *rate_notes(table),
        f"Differences to {reference} are paired, with their 95 % interval (Student's t): by seed (the same order "
        f"of the training text, the same initial weights), and by {unit}, averaged over seeds.",
        "The bootstrap resamples seeds (95 %, percentiles). Student's t, which decides what is bold and what differs "
        "significantly, is wider and the safer one for 3 to 5 seeds.",
        f"By chance, {percent(first['space_chance'] or 0)} of the boundaries are at a space"
        + (f", {percent(first['edge_chance'])} at any edge of a word." if first.get("edge_chance") else "."),
        "Total FLOPs include an estimator's trials, a critic's updates and further epochs, all called "
        f"trials; they differ by {percent(max(flops) / min(flops) - 1)} at most.",
        "CPU hours are those of training (evaluations and checkpoints left out), mean over seeds.",
        "The commands stand for one seed (`seed=`) and some of the systems (`compare.systems=`) each.",
        f"Machine: {plain('; '.join(content['machines']))}. "
        f"Revision: {', '.join(r[:10] for r in content['revisions'])}.",
        *provenance_notes(table.rows),
    ]
    parts = [
        f"# {with_unit(min(flops), 'FLOPs')} in total, {table.num_seeds()}",
        "\n".join(f"    {plain(command)}" for command in dict.fromkeys(map(_of_all_runs, content["commands"]))),
        f"{code(data['source'])}, {data['num_rows']} rows of {data['num_steps']} bytes; model "
        f"{code(content['model']['preset'])} with {options or 'nothing replaced'}, {sizes} parameters.",
        seeds_table(table),
        *_differing(content["systems"]),
        bullets(notes),
        *_pairs(table),
        *_differences(table),
        *(_CURVES if content.get("has_curves", True) else ()),
        *_entropies(table),
    ]
    return "\n\n".join(parts) + "\n"


def _of_all_runs(command: str) -> str:
    """Return a command without its seed, its folder and its choice of systems.

    Example:
        >>> _of_all_runs("rltok train experiment=compare-seeds seed=0,1 'compare.systems=[a, b]' 'out=my runs/1'")
        'rltok train experiment=compare-seeds'
    """
    command = command.replace("python -m rltok_rl.experiments.train", "rltok train")
    option = r"(?:seed|out|compare\.systems)="
    return re.sub(rf""" (?:{option}\S+|'{option}(?:[^']|'"'"')*')""", "", command)  # as shlex.quote quotes words


def _differing(systems: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the options by which learned policies differ."""
    named = [(system["name"], system["options"]) for system in systems if system.get("options")]
    lines = [f"{name}: {code(' '.join(f'{o}={as_typed(v)}' for o, v in options.items()))}" for name, options in named]
    title = "Options that learned policies do not share; behind the first line, only what differs from it:"
    return [title, bullets(lines)] if len(lines) > 1 else []


def _differences(table: SeedTable) -> list[str]:
    """The picture of all systems against the reference."""
    if not table.differences():
        return []
    reference = plain(table.reference)
    return [
        f"![Differences of all systems from {reference}]({DIFFERENCES})",
        "Small dots are seeds; large ones and lines the mean over seeds and its 95 % interval by Student's t, green if "
        f"all of it is below {reference}, orange if above. Hollow: a seed is off its target rate, or an oracle.",
    ]


def _pairs(table: SeedTable) -> list[str]:
    """Differences of all pairs of systems without the reference, if they are few."""
    names, lines = [name for name in table.systems if name != table.reference], []
    for name, other in combinations(names if len(names) <= MOST_PAIRED else [], 2):
        by_seed, by_unit = table.over_seeds(name, other), table.over_documents(name, other)
        if by_seed is None or by_seed.error is None:
            verdict = "one seed or none in common, so without a test over seeds"
        else:
            verdict = f"over seeds they {'differ' if by_seed.significant else 'do not differ'} significantly"
        difference = f"{_over_seeds(by_seed)}, {interval(by_unit)} over {table.unit}s"
        lines.append(f"{name} minus {other}: {difference}; {verdict}.")
    return [bullets(lines)] if lines else []


def _over_seeds(difference: Difference | None) -> str:
    """Format a difference over seeds with both intervals."""
    bootstrap = bootstrap_text(difference)
    return f"{interval(difference)} over seeds" + ("" if bootstrap == "-" else f" (bootstrap {bootstrap})")


def _entropies(table: SeedTable) -> list[str]:
    """Entropy of learned policies during training."""
    body = [
        [f"{row['system']}, seed {row['seed']}", *map(with_error, row["entropy"])]
        for row in table.rows.to_dict("records")
        if row.get("entropy")
    ]
    header = ["policy entropy, nats per decision", *(f"at {100 * share:.0f} % of the run" for share in SHARES)]
    return ["When boundaries settle:", markdown(header, body)] if body else []
