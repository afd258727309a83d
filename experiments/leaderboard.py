"""The leaderboard of the docs, from committed results alone: equal results make equal pages.

    rltok leaderboard
    python -m rltok_rl.experiments.leaderboard --results experiments/results --out docs/leaderboard.md

Every finished run below the folder of results is in it, beside those that it can be compared with: the same held-out
text, the same budget. A test holds the page to the results.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.comparable import looks_ahead, same_text, within_one_error
from rltok_rl.experiments.compare_page import EVALUATION, paired, system_figures
from rltok_rl.experiments.comparison import with_error
from rltok_rl.experiments.leaderboard_studies import estimators, languages, link
from rltok_rl.experiments.markdown import markdown, with_unit
from rltok_rl.experiments.run_folder import RunFolder, read_run

from rltok_rl.training.files import replace_text

HEADER = (
    "system",
    "estimator",
    "bits per byte",
    "above the best",
    "boundaries per byte (target)",
    "parameters",
    "FLOPs",
    "tried besides",
    "bytes",
    "seed",
)


def page(results: Path, beside: Path) -> str:
    """The leaderboard as Markdown.

    Args:
        results: folder of results, searched to its bottom.
        beside: folder that the page will lie in, for links.
    """
    found = [read_run(path.parent) for path in sorted(results.rglob("summary.json")) if _is_run(path.parent)]
    runs = [run for run in found if _figures(run)["bits_per_byte"] is not None]
    parts = [
        "# Leaderboard",
        "Generated from the [results](" + link(results, beside) + ") by `rltok leaderboard`; do not edit. Rows of a "
        "table share their held-out text and their budget; rows of two tables must not be compared. In bold: within "
        "one standard error of the best. Every run has one seed, whose luck no error here tells.",
    ]
    parts += [_group(group, beside) for group in _groups(runs)]
    parts += [languages(path, beside) for path in sorted(results.rglob("learn.json"))]
    parts += [estimators(path, beside) for path in sorted(results.rglob("estimators.json"))]
    return "\n\n".join(parts) + "\n"


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _groups(runs: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Runs that can be compared, together; by text, the largest budget first."""
    groups: list[list[RunFolder]] = []
    for run in runs:
        mine = next((group for group in groups if _comparable(group[0], run)), None)
        if mine is None:
            groups.append([run])
        else:
            mine.append(run)
    return sorted(groups, key=lambda group: (group[0].option("data.source"), -_spent(group[0]), str(group[0].path)))


def _comparable(one: RunFolder, other: RunFolder) -> bool:
    """Whether two runs share their budget, and what their bits per byte are of."""
    if _budget(one) != _budget(other) or not same_text(one, other):
        return False
    first, second = (_judged(run) for run in (one, other))
    return (first or {}).get("counts") == (second or {}).get("counts")


def _budget(run: RunFolder) -> tuple[Any, ...]:
    flops = run.option("optim.total_flops")
    return ("FLOPs", flops) if flops else ("bytes", run.option("optim.total_bytes"))


def _spent(run: RunFolder) -> float:
    return float((run.summary or {}).get("flops") or 0.0)


def _judged(run: RunFolder) -> dict[str, Any] | None:
    path = run.path / EVALUATION
    return json.loads(path.read_text()) if path.is_file() else None


def _figures(run: RunFolder) -> dict[str, Any]:
    """What the table says of a run: of its held-out documents if it was judged on them, else of its last look."""
    if _judged(run) is not None:
        return system_figures(run.name, run)
    summary = run.summary or {}
    return {
        "bits_per_byte": summary.get("held_out_bits_per_byte"),
        "standard_error": summary.get("held_out_standard_error"),
        "rate": summary.get("held_out_rate"),
        "target_rate": run.target_rate,
        "oracle": looks_ahead(run),
        "parameters": run.model.get("parameters", 0) + run.model.get("segmenter_parameters", 0),
        "counts": None,
        "seed": run.option("seed"),
        **{key: summary.get(key) for key in ("flops", "tried_flops", "bytes")},
    }


def _group(runs: Sequence[RunFolder], beside: Path) -> str:
    """A table of runs that can be compared, best first, and how each was made."""
    rows = sorted(((_figures(run), run) for run in runs), key=lambda pair: pair[0]["bits_per_byte"])
    real = [figures for figures, _ in rows if not figures["oracle"]]
    strong = within_one_error([(one["bits_per_byte"], one["standard_error"]) for one in real])
    bold = [id(real[n]) for n in strong]
    body = [_line(figures, run, real[0] if real else figures, id(figures) in bold, beside) for figures, run in rows]
    first, run = rows[0]
    kind, amount = _budget(run)
    budget = with_unit(amount, "FLOPs" if kind == "FLOPs" else "B") + ("" if kind == "FLOPs" else " of training text")
    parts = [f"## `{run.option('data.source')}`, {budget}", _measured(first, run), markdown(list(HEADER), body)]
    if len(real) < len(rows):
        parts.append("An asterisk marks an oracle, which looks at bytes to come; never in bold.")
    return "\n\n".join([*parts, _commands(runs)])


def _measured(figures: dict[str, Any], run: RunFolder) -> str:
    """What bits per byte are of."""
    if figures["counts"] is not None:
        return (
            f"Bits per byte of {figures['predicted']:,} held-out bytes in {figures['documents']:,} documents, errors "
            "over documents; “above the best” is paired, document by document."
        )
    options = [run.option(name) for name in ("snapshots.batches", "data.num_rows", "data.num_steps")]
    return f"Bits per byte of {math.prod(options):,} held-out bytes, looked at after training; errors over batches."


def _line(figures: dict[str, Any], run: RunFolder, best: dict[str, Any], strong: bool, beside: Path) -> list[str]:
    loss = with_error(figures["bits_per_byte"], figures["standard_error"])
    apart, error = paired(figures, best) if figures["counts"] is not None else (None, None)
    target, tried = figures["target_rate"], figures["tried_flops"]
    by_script = "by script" if figures.get("target_rates") else "none"
    return [
        f"[{run.name}]({link(run.path / 'report.md', beside)}){' *' if figures['oracle'] else ''}",
        _estimator(run),
        f"**{loss}**" if strong else loss,
        "-" if apart is None else with_error(apart, error),
        f"{figures['rate']:.3f} ({by_script if target is None else f'{target:g}'})",
        f"{figures['parameters']:,}",
        with_unit(figures["flops"], "FLOPs"),
        "not noted" if tried is None else with_unit(tried, "FLOPs") if tried else "-",
        with_unit(figures["bytes"], "B"),
        str(figures["seed"]),
    ]


def _estimator(run: RunFolder) -> str:
    """What judged the decisions of a run; a dash where a rule or gradients through the model draw them."""
    if (run.option("segmenter.name") or "learned") != "learned" or run.option("actor.name") != "learned":
        return "-"
    baseline = run.option("baseline.name")
    return f"`{run.option('estimator.name')}`, gamma {run.option('estimator.gamma'):g}" + (
        f", `{baseline}`" if baseline not in (None, "none") else ""
    )


def _commands(runs: Sequence[RunFolder]) -> str:
    """How each run was made, a line per command."""
    by_command: dict[str, list[str]] = {}
    for run in runs:
        by_command.setdefault((run.summary or {}).get("command", ""), []).append(run.name)
    return "\n".join(f"- {', '.join(sorted(names))}: `{command}`" for command, names in sorted(by_command.items()))


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="rltok leaderboard", description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("experiments/results"), help="folder of results")
    parser.add_argument("--out", type=Path, default=Path("docs/leaderboard.md"), help="the page to write")
    options = parser.parse_args(arguments)
    try:
        if not options.results.is_dir():
            raise FileNotFoundError(f"--results must be a folder of results, got {str(options.results)!r}")
        text = page(options.results, options.out.parent)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(options.out, text)
    except (FileNotFoundError, ValueError) as error:
        print(f"rltok leaderboard: {error}", file=sys.stderr)
        return 2
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
