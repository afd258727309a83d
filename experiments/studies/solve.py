"""How fast policies are learned in worlds with packaged models: return curves, and the price of the threshold.

    python -m rltok_rl.experiments.studies.solve out=experiments/results/solve             # hours of a core; resumes
    python -m rltok_rl.experiments.studies.solve worlds=[recall] learners=[sb3_ppo]        # one curve

Fields of :class:`SolveOptions` are options. The language models stay as they are. Returns are those of fixed texts that
nothing is trained on. Each cell (world, learner, seed) has a file, which is kept: the command trains the missing ones
and draws the page of all that are there. Several commands with the same ``out`` share the cells.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.studies.common import StepLines, check_choices, check_minimums, command_line, read_options
from rltok_rl.experiments.studies.learners import FIXED, LEARNERS, WORLDS, Course

from rltok_rl.data.disk import claim_file, replace_text
from rltok_rl.evaluation import mean_and_error
from rltok_rl.evaluation.policies import draw_texts
from rltok_rl.evaluation.policy_episodes import read_episodes
from rltok_rl.training.environment import machine
from rltok_rl.viz.axes import mean_line, spread_apart
from rltok_rl.viz.style import INK, PALE, QUIET, plain_figures, run_style, save_figure

TEXTS, TEXTS_SEED = {"recall": 256, "lexicon": 256, "novel": 128}, 1_000_000
"""Number of texts of every evaluation, and their seed; runs have seeds 0, 1, ..."""
EVALUATIONS = 16
"""Least number of evaluations of a learner, besides the one before its first update."""
SETTINGS = """\
Mean undiscounted returns on texts that no learner trains on, the same for all; ± is the standard error over seeds,
bands of the figure are standard deviations over seeds. A learner solves a world at its first evaluation of at least
the threshold; decisions and CPU seconds until then are means over the seeds that solve it. CPU seconds are those of
training on one thread, without evaluations. Adding `worlds=[WORLD] learners=[LEARNER]` to the command trains one
curve.

All learners read 32 episodes per update, with gamma 0.95. The three PPOs have 4 epochs of 4 minibatches, a clipping
range of 0.2, GAE with lambda 0.95 and an entropy coefficient of 0.01. `sb3_ppo` and `cleanrl_ppo` step the
environment and train networks of their own at a learning rate of 0.001, which `cleanrl_ppo` lowers to 0.
`torchrl_ppo` and REINFORCE train the model's linear boundary policy from random weights with parallel rollouts,
with a learning rate of 0.05 for PPO and 0.2 for REINFORCE (of 0.05, 0.1 and 0.2 the best for one seed of
leave-one-out) in worlds whose models multiply boundary logits by 1/16, and a sixteenth of it on the novel, whose model
does not. REINFORCE makes one step per update. It is named after the baseline of its discounted returns, or
after another estimator: `control_variate` regresses on the early exit, `local_flips` decodes further boundaries of the
same texts, which count as CPU seconds and not as decisions. `random` draws as many boundaries as the optimum, on the
novel as many as the model's target rate."""
"""Text of the page."""
Curves = list[list[tuple[int, float, float]]]
"""Decisions, CPU seconds and return at each evaluation, for each seed."""


@dataclass
class SolveOptions:
    """Options of the study."""

    worlds: list[str] = field(default_factory=lambda: list(WORLDS))
    """Keys of ``WORLDS``."""
    learners: list[str] = field(default_factory=lambda: list(LEARNERS))
    """Keys of ``LEARNERS``."""
    seeds: int = 5
    """Seeds of each learner that learns: 0, 1, ..."""
    updates: int = 64
    """Updates of each learner, from 32 episodes each; half as many on the novel, whose model is larger."""
    num_steps: int = 128
    """Decisions per episode."""
    out: str = "runs/solve"
    """Folder of results."""

    def updates_in(self, world: str) -> int:
        """Return the number of updates in a world."""
        return max(1, self.updates // 2) if world == "novel" else self.updates

    def file(self, world: str, *rest: str | int) -> Path:
        """Return the file of a cell (world, learner, seed), which names the length of training."""
        length = f"{self.updates_in(world)}x{self.num_steps}.json"
        return Path(self.out, "cells", "-".join(map(str, (world, *rest, length))))


def read_solve_options(arguments: Sequence[str]) -> SolveOptions:
    """Read and check the options of a command line, ``name=value``."""
    options = read_options(SolveOptions, arguments)
    check_choices(options, worlds=WORLDS, learners=LEARNERS)
    check_minimums(options, {"seeds": 1, "updates": 1, "num_steps": 2})
    return options


def grid(options: SolveOptions) -> list[tuple[str, str, int]]:
    """Return world, learner and seed of all cells: one seed of fixed policies, and the optimum of languages only."""
    cells = itertools.product(range(options.seeds), options.worlds, options.learners)
    return [
        (world, learner, seed)
        for seed, world, learner in cells
        if (world, learner) != ("novel", "optimum") and not (learner in FIXED and seed)
    ]


def train_cell(world: str, learner: str, seed: int, options: SolveOptions) -> dict[str, Any]:
    """Train and evaluate a learner; return its curve of decisions, CPU seconds of training, and held-out return."""
    updates = options.updates_in(world)
    course = Course(world, seed, updates, options.num_steps)
    held_out = course.make_vec(TEXTS[world], held_out=True).unwrapped.env
    held_out.set_seed(TEXTS_SEED)
    texts = draw_texts(held_out, TEXTS[world])
    points: list[tuple[int, float, float]] = []
    update, start = 0, 0.0

    def report(policy: Any) -> None:
        nonlocal update, start
        if update % max(1, updates // EVALUATIONS) == 0 or update == updates:
            seconds = time.process_time() - start if update else 0.0  # setup and evaluations are not training
            returns = read_episodes(held_out, policy, texts, seed=TEXTS_SEED).returns
            points.append((update * course.batch, round(seconds, 2), round(returns.mean().item(), 3)))
            start = time.process_time() - seconds
        update += 1

    LEARNERS[learner](course, report)
    return {"world": world, "learner": learner, "seed": seed, "machine": machine("cpu"), "points": points}


def run(options: SolveOptions) -> list[dict[str, Any]]:
    """Train the cells that have no file; return all of the folder, in the order of worlds, learners and seeds."""
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    missing = [cell for cell in grid(options) if not options.file(*cell).exists()]
    progress, folder = StepLines("solve"), Path(options.out, "cells")
    folder.mkdir(parents=True, exist_ok=True)
    for done, cell in enumerate(missing, 1):
        file = options.file(*cell)
        lock = file.with_suffix(".lock")
        try:
            with claim_file(lock):
                if not file.exists():  # else another command has trained it by now
                    result = train_cell(*cell, options)
                    replace_text(file, json.dumps(result) + "\n")
                    progress(done, len(missing), f" {' '.join(map(str, cell))}: return {result['points'][-1][2]:.2f}")
                lock.unlink(missing_ok=True)
        except BlockingIOError:  # another command trains it
            continue
    files = [file for world in WORLDS for file in folder.glob(options.file(world, "*").name)]
    cells = [json.loads(file.read_text()) for file in files]
    worlds, learners = list(WORLDS), list(LEARNERS)
    return sorted(cells, key=lambda cell: (worlds.index(cell["world"]), learners.index(cell["learner"]), cell["seed"]))


def threshold(world: str) -> float | None:
    """Return the mean return that solves a world, if it has one."""
    return gymnasium.spec(WORLDS[world]).reward_threshold


def solved(points: Sequence[Sequence[float]], goal: float) -> tuple[float, float] | None:
    """Return decisions and CPU seconds at the first evaluation with a mean return of at least ``goal``, if any."""
    return next(((decisions, seconds) for decisions, seconds, value in points if value >= goal), None)


def group(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, Curves]]:
    """Return the curves of all seeds by world and learner."""
    groups: dict[str, dict[str, Curves]] = {}
    for cell in results:
        groups.setdefault(cell["world"], {}).setdefault(cell["learner"], []).append(cell["points"])
    return groups


def solve_table(learners: dict[str, Curves], goal: float | None) -> str:
    """Return a Markdown table of a world, a row per learner; ± are standard errors over seeds."""

    def mean(values: Sequence[float], digits: int = 0) -> str:
        average, error = mean_and_error(values)
        return f"{average:,.{digits}f}" + ("" if error is None else f" ± {error:,.{digits}f}")

    header = ["learner", "return", "CPU seconds", "seeds that solve it", "decisions to solve", "CPU seconds to solve"]
    rows = []
    for learner, curves in learners.items():
        row = [f"`{learner}`", mean([points[-1][2] for points in curves], 1)]
        if learner in FIXED:
            rows.append([*row, *4 * [""]])
            continue
        times = [] if goal is None else [time for points in curves if (time := solved(points, goal))]
        reached = "" if goal is None else f"{len(times)} of {len(curves)}"
        prices = [mean(column, digits) for digits, column in enumerate(zip(*times, strict=True))] or ["", ""]
        rows.append([*row, mean([points[-1][1] for points in curves], 1), reached, *prices])
    columns = 3 if goal is None else len(header)
    return markdown(header[:columns], [row[:columns] for row in rows])


def write_page(results: Sequence[dict[str, Any]], out: Path, command: str) -> str:
    """Write ``solve.md``, with a table per world, and ``solve.png``; return the page."""
    lines = [
        f"`{command}`",
        "; ".join(dict.fromkeys(cell["machine"] for cell in results)),
        SETTINGS,
    ]
    for world, learners in group(results).items():
        goal, decisions = threshold(world), max(points[-1][0] for curves in learners.values() for points in curves)
        words = f"`{WORLDS[world]}`, {decisions:,} decisions, {TEXTS[world]} held-out texts"
        lines += [f"## {world}", words + ("; no threshold" if goal is None else f"; threshold {goal}")]
        lines.append(solve_table(learners, goal))
    page = "\n\n".join([*lines, f"![Return curves]({draw_solve(results, out / 'solve.png').name})"]) + "\n"
    replace_text(out / "solve.md", page)
    return page


def draw_solve(results: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw a panel per world: the curves of learners, with the returns of fixed policies and the threshold as lines."""
    groups, names = group(results), [name for name in LEARNERS if name not in FIXED]
    with plain_figures() as plt:
        figure, panels = plt.subplots(1, len(groups), figsize=(4.2 * len(groups) + 0.4, 4.4), squeeze=False)
        for axes, (world, learners) in zip(panels[0], groups.items(), strict=True):
            for name in (name for name in names if name in learners):
                style = run_style(names.index(name))
                mean = mean_line([([p[0] / 1e3 for p in seed], [p[2] for p in seed]) for seed in learners[name]])
                low, high = (np.add(mean.y, np.multiply(sign, mean.spread)) for sign in (-1, 1))
                axes.fill_between(mean.x, low, high, color=style.colour, alpha=0.15, lw=0)
                axes.plot(mean.x, mean.y, color=style.colour, ls=style.dashes, lw=1.4, label=name)
            levels = {name: curves[0][0][2] for name, curves in learners.items() if name in FIXED}
            levels |= {"threshold": goal} if (goal := threshold(world)) is not None else {}
            for name, value in levels.items():
                dashed = {"color": INK, "ls": (0, (4, 3))} if name == "threshold" else {"color": PALE}
                axes.axhline(value, lw=0.8, zorder=1, **dashed)
            low, high = axes.get_ylim()
            for name, height in zip(levels, spread_apart([*levels.values()], 0.035 * (high - low)), strict=True):
                place = {"transform": axes.get_yaxis_transform(), "va": "center"}
                axes.text(1.01, height, name, fontsize=6.5, color=QUIET, **place)
            axes.set(
                title=WORLDS[world].split("/")[1], xlabel="decisions, thousands", ylabel="return on held-out texts"
            )
        handles = {line.get_label(): line for axes in panels[0] for line in axes.get_legend_handles_labels()[0]}
        figure.tight_layout(rect=(0, 0.14, 1, 1))
        figure.legend(handles.values(), handles, loc="lower center", ncols=max(1, 2 * len(groups)), fontsize=7)
        return save_figure(figure, path, dpi=125)


def main(arguments: list[str] | None = None) -> int:
    """Run the study."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = read_solve_options(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    results = run(options)
    if results:
        print(write_page(results, Path(options.out), command_line("solve", arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
