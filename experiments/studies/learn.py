"""Whether boundaries are learned where the best ones are known, and which systems learn them.

    python -m rltok_rl.experiments.studies.learn out=experiments/results/learn

Fields of :class:`LearnOptions` are options. Each language has one schedule (``conf/experiment``) for all seeds and
systems; the result is the share of the optimal return on fresh texts after the last update. Results are saved run by
run: the same command resumes after an interruption, and redraws a finished study.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from rltok_rl.experiments.reports.markdown import markdown, number
from rltok_rl.experiments.studies.common import StepLines, check_choices, check_minimums, command_line, read_options
from rltok_rl.experiments.studies.learn_runs import SYSTEMS, fingerprint, run_config, train_and_evaluate

from rltok_rl.data.disk import replace_text
from rltok_rl.training.environment import machine
from rltok_rl.utils import keep_memory
from rltok_rl.viz.style import ALERT, INK, OURS, PALE, QUIET, SERIES, plain_figures, save_figure, shades

GOAL, GOAL_SECONDS = 0.95, 180.0
"""Share of the optimal return that the learned policy has to reach, and its limit of CPU seconds."""
SYSTEM_LABELS = {
    "learned": "learned, local flips",
    "paper": "paper: return, batch mean, γ 0.99",
    "paper_short": "paper, γ 0.9",
    "no_early_exit": "paper, no early exit",
    "uniform": "uniform",
    "random": "random",
}
"""Systems of the study on languages, by their names in `learn.json`, in the order of the legend."""
_COLOURS = {
    "learned": OURS,
    "paper": ALERT,
    "paper_short": SERIES[4],
    "no_early_exit": SERIES[1],
    "uniform": SERIES[2],
    "random": PALE,
}
_TITLES = {
    "recall": "Recall: a value, filler, the value again",
    "lexicon": "Lexicon: words without spaces that come back",
}


@dataclass
class LearnOptions:
    """Options of the study."""

    languages: list[str] = field(default_factory=lambda: list(_TITLES))
    """Experiments to run."""
    systems: list[str] = field(default_factory=lambda: list(SYSTEMS))
    """Keys of ``SYSTEMS``; the learned policy comes first, the others get the rate that it reached."""
    seeds: int = 5
    """Seeds of the learned policy: 0, 1, ..."""
    other_seeds: int = 2
    """Seeds of every other system."""
    looks: int = 12
    """Evaluations during training."""
    overrides: list[str] = field(default_factory=list)
    """Options of every run, as on its command line."""
    out: str = "runs/learn"
    """Folder of results."""


def read_learn_options(arguments: Sequence[str]) -> LearnOptions:
    """Read and check the options of a command line, ``name=value``."""
    options = read_options(LearnOptions, arguments)
    check_choices(options, languages=_TITLES, systems=SYSTEMS)
    if "learned" not in options.systems:
        raise ValueError(f"systems must hold 'learned', whose rate the others get, got {options.systems}")
    check_minimums(options, {"seeds": 1, "other_seeds": 1, "looks": 1})
    return options


def grid(options: LearnOptions) -> list[tuple[str, str, int]]:
    """Return language, system and seed of all runs in order; the learned policies come first."""
    others = [system for system in options.systems if system != "learned"]
    learned = itertools.product(range(options.seeds), options.languages, ["learned"])
    compared = itertools.product(range(options.other_seeds), options.languages, others)
    return [(language, system, seed) for seed, language, system in (*learned, *compared)]


def select(results: Sequence[dict[str, Any]], language: str, system: str) -> list[dict[str, Any]]:
    """Return the results of one system on one language."""
    return [result for result in results if (result["language"], result["system"]) == (language, system)]


def matched_rate(results: Sequence[dict[str, Any]], language: str) -> float:
    """Return the mean boundaries per byte of the learned policies of a language."""
    return round(fmean(result["final"]["rate"] for result in select(results, language, "learned")), 2)


def passed(result: dict[str, Any]) -> bool:
    """Whether a run reached the goal, at its end and in time."""
    return bool(result["final"]["share"] >= GOAL and result["cpu_seconds"] <= GOAL_SECONDS)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per language and system."""
    header = ["language", "system", "seeds", "share of the optimal return", "lowest", "boundaries per byte"]
    header += ["drawn of the best", "in sight", "elsewhere", "CPU seconds"]
    rows, languages = [], dict.fromkeys(result["language"] for result in results)
    for language, system in itertools.product(languages, SYSTEMS):
        if seeds := select(results, language, system):
            metrics = pd.DataFrame([result["final"] for result in seeds])
            means = metrics[["rate", "hits", "in_sight", "elsewhere"]].mean()
            shares, seconds = metrics["share"], [result["cpu_seconds"] for result in seeds]
            cells = [str(len(seeds)), f"{shares.mean():.3f}", f"{shares.min():.3f}", *map(number, means)]
            time = f"{fmean(seconds):.0f} (at most {max(seconds):.0f})"
            rows.append([f"`{language}`", SYSTEM_LABELS[system], *cells, time])
    return markdown(header, rows)


def verdict(results: Sequence[dict[str, Any]], language: str) -> str:
    """Return one line on the learned policies of a language."""
    seeds = select(results, language, "learned")
    return (
        f"{language}: {sum(map(passed, seeds))} of {len(seeds)} seeds at or above {GOAL} of the optimal return after "
        f"the last update, within {GOAL_SECONDS:.0f} CPU seconds of one thread"
    )


def run(options: LearnOptions, command: str) -> list[dict[str, Any]]:
    """Train the runs that have no results yet, write all results (with the ``command``), and return them."""
    keep_memory()
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    store = out / "learn.json"
    saved = json.loads(store.read_text())["courses"] if store.exists() else []
    content: dict[str, Any] = {"command": command, "machine": machine("cpu"), "options": asdict(options)}
    del content["options"]["out"]
    cells, progress = grid(options), StepLines("learn")
    results: list[dict[str, Any]] = []
    reused = 0
    for place, (language, system, seed) in enumerate(cells):
        rate = None if system == "learned" else matched_rate(results, language)
        config = run_config(language, system, seed, rate=rate, overrides=options.overrides)
        key = {"language": language, "system": system, "seed": seed, "options": fingerprint(config)}
        result = next((cell for cell in saved if cell.items() >= key.items()), None)
        if result is None:
            show = _show_evaluation(f" {language} {system} seed {seed}", progress, place - reused, len(cells) - reused)
            run_result = train_and_evaluate(config, num_evaluations=options.looks, after_evaluation=show)
            result = {**key, "rate_given": rate, **run_result}
        else:
            reused += 1
        results.append(result)
        # Results with other options are not shown, and dropped at the end.
        others = [cell for cell in saved if cell not in results] if place < len(cells) - 1 else []
        replace_text(store, json.dumps(content | {"courses": [*results, *others]}) + "\n")
    lines = [verdict(results, language) for language in options.languages]
    (out / "learn.md").write_text("\n\n".join([f"`{command}`", machine("cpu"), *lines, table(results)]) + "\n")
    draw_learning(results, out / "learn.png")
    return results


def _show_evaluation(label: str, progress: StepLines, done: int, total: int) -> Callable[[dict[str, Any], float], None]:
    """Make the function that prints a line per evaluation."""

    def show(metrics: dict[str, Any], share: float) -> None:
        note = f", share {metrics['share']:.3f}, rate {metrics['rate']:.3f}, {metrics['cpu_seconds']:.0f} CPU s"
        progress(round(done + share, 2), total, label + note)

    return show


def draw_learning(results: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw a row per language: the learning curve of every system, and a text as every learned policy segments it."""
    languages = list(dict.fromkeys(result["language"] for result in results))
    if not languages:
        raise ValueError("results must hold at least one run, got none")
    with plain_figures() as plt:
        size = (11.4, 3.1 * len(languages) + 0.75)
        figure = plt.figure(figsize=size)
        space: Any = {"left": 0.055, "right": 0.995, "top": 1 - 0.35 / size[1], "bottom": 0.95 / size[1]}
        space |= {"width_ratios": (1, 1.75), "wspace": 0.03, "hspace": 0.3}
        panels = figure.subplots(len(languages), 2, squeeze=False, gridspec_kw=space)
        handles: dict[str, Any] = {}
        for (left, right), language in zip(panels, languages, strict=True):
            handles |= _draw_curves(left, [result for result in results if result["language"] == language])
            left.set_title(_TITLES.get(language, language), fontsize=9.5, weight="bold")
            _draw_samples(right, select(results, language, "learned"))
        panels[-1, 0].set_xlabel("MB of text")
        seeds = {name: len({result["seed"] for result in results if result["system"] == name}) for name in handles}
        order = [name for name in SYSTEM_LABELS if name in handles]
        labels = [f"{SYSTEM_LABELS[name]} ({seeds[name]} seed{'s' * (seeds[name] > 1)})" for name in order]
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.045, 0.0), "ncols": -(-len(order) // 2), "fontsize": 8}
        figure.legend([handles[name] for name in order], labels, **place, columnspacing=1.4, handlelength=1.6)
        return save_figure(figure, path, dpi=125)


def _draw_curves(axes: Any, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Draw the mean and the range over seeds of each system; return the lines by system."""
    handles = {}
    for system in reversed(SYSTEM_LABELS):
        curves = [result["looks"] for result in results if result["system"] == system]
        if not curves:
            continue
        points = list(zip(*curves, strict=False))  # evaluations of all seeds at the same update
        megabytes = [point[0]["bytes"] / 1e6 for point in points]
        shares = [[evaluation["share"] for evaluation in point] for point in points]
        colour, width = _COLOURS[system], 2.2 if system == "learned" else 1.4
        axes.fill_between(megabytes, [*map(min, shares)], [*map(max, shares)], color=colour, alpha=0.16, lw=0)
        (handles[system],) = axes.plot(megabytes, [*map(fmean, shares)], color=colour, lw=width, zorder=width + 1)
        axes.plot(megabytes[-1:], [fmean(shares[-1])], "o", color=colour, ms=4, zorder=4, clip_on=False)
    axes.axhline(1.0, color=INK, lw=0.7)
    axes.axhline(GOAL, color=INK, lw=0.8, ls=(0, (4, 3)))
    axes.text(0.01, GOAL - 0.015, f"{GOAL:g}", transform=axes.get_yaxis_transform(), va="top", fontsize=7.5)
    axes.set(ylim=(0, 1.04), ylabel="share of the optimal return, fresh texts")
    axes.set_xlim(left=0)
    return handles


def _draw_samples(axes: Any, results: Sequence[dict[str, Any]]) -> None:
    """Draw a text per seed: characters on a background by probability, a bar after each of the best boundaries."""
    axes.set_axis_off()
    length = 0
    for row, result in enumerate(results):
        text, best, probs = (result["sample"][key] for key in ("text", "best", "probabilities"))
        length, middle = len(text), row + 0.5
        axes.imshow([probs], cmap=shades(), vmin=0, vmax=1, extent=(0, length, row + 0.94, row + 0.06), aspect="auto")
        for column, character in enumerate(text):
            style: Any = {"ha": "center", "va": "center_baseline", "family": "monospace", "fontsize": 8}
            axes.text(column + 0.5, middle, character, color="white" if probs[column] > 0.72 else INK, **style)
            if best[column] == "1" and column:
                axes.plot([column + 1] * 2, [row + 0.06, row + 0.94], color=ALERT, lw=1.5, solid_capstyle="butt")
        axes.text(-0.8, middle, f"seed {result['seed']}", ha="right", va="center", fontsize=8)
        share = f"{result['final']['share']:.3f}"
        axes.text(length + 0.8, middle, share, va="center", fontsize=8, color=OURS, weight="bold")
    if results:
        axes.text(length + 0.8, -0.12, "share", va="center", fontsize=7.5, color=QUIET)
        axes.set(xlim=(-6, length + 5.5), ylim=(max(len(results), 4) + 0.05, -0.4))
    title = "a fresh text: darker is a likelier boundary of the learned policy, orange the best boundaries"
    axes.set_title(title, fontsize=8.5, x=0.085)


def main(arguments: list[str] | None = None) -> int:
    """Run the study; return 0 if every learned policy reached the goal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = read_learn_options(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    results = run(options, command_line("learn", arguments))
    print((Path(options.out) / "learn.md").read_text())
    print(Path(options.out) / "learn.png")
    return 0 if all(passed(result) for result in results if result["system"] == "learned") else 1


if __name__ == "__main__":
    sys.exit(main())
