"""How each rate control drives a small policy to its target and keeps it there.

    python -m rltok_rl.experiments.studies.rate_control --out experiments/results/rate-control

The policy is linear in random states and sees its last boundaries, as a U-Net's does. Adam trains it on the rate loss
and on REINFORCE with noise as rewards. In half of the runs every boundary earns a reward: a task that pulls the rate
away from the target.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from rltok_rl.experiments.commands.parsers import make_parser
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.studies.common import StepLines, command_line, write_numbers
from tensordict import TensorDict
from torch import Tensor, nn

from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob, boundary_logits
from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.objectives import BoundaryReinforceLoss, JointLoss, RateLoss
from rltok_rl.objectives.rate_loss import CONTROLLERS
from rltok_rl.sampling import sample_boundaries
from rltok_rl.training.environment import machine
from rltok_rl.viz.style import SERIES, plain_figures, save_figure

COEFFICIENTS = {"logit_pressure": 0.01, "ratio": 0.03, "binomial": 1.0, "hinge": 1.0, "pi": 0.01, "price": 0.01}
"""As published, with a policy loss at 0.01; else 0.01."""
STARTS, TARGETS, PULLS = (0.05, 0.8), (0.1, 0.2, 0.33), (0.0, 0.3)
ROWS, STEPS, WIDTH, LAGS = 16, 128, 16, 4
NEAR = 0.01
SMOOTH = 50  # updates that a rate is averaged over
EVERY = 10  # updates between two averaged rates that are stored
NOISE = 0.2  # nats, standard deviation of the rewards


@dataclass(frozen=True)
class Run:
    """A policy under a rate control: the rate, averaged over 50 updates, is near within 0.01 of the target."""

    control: str
    start: float
    target: float
    pull: float
    updates: int | None  # until the rate is near for the first time
    settled: int | None  # until it stays near; None if it is not near at the end
    overshoot: float  # how far the rate went beyond the target, seen from its start
    error: float  # mean rate minus target over the last quarter
    holds: bool  # whether the rate is near throughout the last quarter
    rates: list[float]  # mean probability, averaged over up to 50 updates, at every tenth update


class LinearPolicy(nn.Module):
    """Boundary terms that are linear in states with a constant channel, with a start rate."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(1 + LAGS, WIDTH) / WIDTH**0.5)
        self.offset = torch.tensor(start, dtype=torch.float64).logit().item()

    def rollout(self, states: Tensor) -> TensorDict:
        """Draw boundaries [B, T] for states [B, T, D]."""
        terms = states @ self.weight.T  # [B, T, 1 + w]
        base, lags = terms[..., 0] + self.offset, terms[..., 1:]
        boundaries = sample_boundaries(base.detach(), lags.detach(), force_first=False)
        logits = boundary_logits(base, lags, boundaries)
        content = {
            "logits": logits,
            "action": boundaries.long(),
            "action_log_prob": boundary_log_prob(logits, boundaries),
            "entropy": boundary_entropy(logits),
            "forced": torch.zeros_like(boundaries),
        }
        return TensorDict(content, boundaries.shape)


def drive(control: str, start: float, target: float, pull: float, *, num_updates: int) -> Run:
    """Train a policy from a start rate; the task pays ``pull`` nats per boundary."""
    torch.manual_seed(0)
    policy = LinearPolicy(start)
    reinforce = BoundaryReinforceLoss("discounted_return", gamma=0.0, baseline="leave_one_out")
    terms = {"policy": reinforce, "rate": RateLoss(target, control=control)}
    loss = JointLoss(terms, {"policy": 0.01, "rate": COEFFICIENTS[control]})
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    rates = []
    for _ in range(num_updates):
        states = torch.randn(ROWS, STEPS, WIDTH)
        states[..., 0] = 1.0
        rollout = policy.rollout(states)
        reward = pull * rollout["action"] + NOISE * torch.randn(ROWS, STEPS)
        rollout["next"] = TensorDict({"reward": reward.unsqueeze(-1)}, reward.shape)
        losses = loss(rollout)
        optimizer.zero_grad()
        loss.total(losses).backward()
        optimizer.step()
        rates.append(losses["mean_prob"].item())
    return summarise(control, start, target, pull, rates)


def summarise(control: str, start: float, target: float, pull: float, rates: Sequence[float]) -> Run:
    """Measure time to target, overshoot and steady error of a run with these rates."""
    history = torch.tensor(rates)
    averaged = history.unfold(0, SMOOTH, 1).mean(-1)
    near = (averaged - target).abs() <= NEAR
    arrived = int(near.float().argmax()) + SMOOTH if bool(near.any()) else None
    away = (~near).nonzero().flatten()
    settled = (int(away[-1]) + 1 if len(away) else 0) + SMOOTH
    direction = 1.0 if start < target else -1.0
    last = len(rates) // 4
    return Run(
        control=control,
        start=start,
        target=target,
        pull=pull,
        updates=arrived,
        settled=settled if bool(near[-1]) else None,
        overshoot=max(0.0, float(((averaged - target) * direction).max())),
        error=float(history[-last:].mean()) - target,
        holds=bool(near[-last:].all()),
        rates=pd.Series(rates).rolling(SMOOTH, min_periods=1).mean()[::EVERY].round(4).tolist(),
    )


def table(runs: Sequence[Run]) -> str:
    """Return a Markdown table with a row per control and pull, over all starts and targets."""
    header = ["control", "coefficient", "pull", "holds ± 0.01", "for good after, median (worst)"]
    header += ["largest overshoot", "largest steady error"]
    rows = []
    for (pull, control), group in _groups(runs).items():
        times = [math.inf if run.settled is None else run.settled for run in group]
        speed = f"{median(times):.0f} ({max(times):.0f})".replace("inf", "never")
        error = max((run.error for run in group), key=abs)
        holds, overshoot = sum(run.holds for run in group), max(run.overshoot for run in group)
        rows.append([f"`{control}`", f"{COEFFICIENTS[control]:g}", f"{pull:g}", f"{holds} of {len(group)}"])
        rows[-1] += [speed, f"{overshoot:.3f}", f"{error:+.3f}"]
    return markdown(header, rows)


def _groups(runs: Sequence[Run]) -> dict[tuple[float, str], list[Run]]:
    """Runs by pull and control."""
    cells = itertools.product(sorted({run.pull for run in runs}), dict.fromkeys(run.control for run in runs))
    return {cell: [run for run in runs if (run.pull, run.control) == cell] for cell in cells}


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Draw the averaged rates of all runs, a column per control and a row per pull."""
    groups = _groups(runs)
    pulls, controls = (list(dict.fromkeys(names)) for names in zip(*groups, strict=True))
    colours = dict(zip(TARGETS, (SERIES[0], SERIES[3], SERIES[2]), strict=True))
    with plain_figures() as plt:
        layout: Any = {"sharex": True, "sharey": True, "layout": "constrained", "squeeze": False}
        size = (2.1 * len(controls), 1.9 * len(pulls))
        figure, panels = plt.subplots(len(pulls), len(controls), figsize=size, **layout)
        for axes, ((pull, control), group) in zip(panels.flat, groups.items(), strict=True):
            for run in group:
                axes.plot(
                    [EVERY * place for place in range(len(run.rates))], run.rates, color=colours[run.target], lw=1
                )
            for target, colour in colours.items():
                axes.axhline(target, color=colour, lw=0.6, ls=":")
            axes.set(ylim=(0, 0.85), title=control if pull == pulls[0] else "")
        for axes, pull in zip(panels[:, 0], pulls, strict=True):
            axes.set_ylabel(f"rate, task pays {pull:g} nats" if pull else "rate")
        for axes in panels[-1]:
            axes.set_xlabel("updates")
        place: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        for target, colour in colours.items():
            panels[0, -1].annotate(f"target {target:g}", (1, target), (-2, 3), color=colour, fontsize=7, **place)
        return save_figure(figure, path)


def main(arguments: list[str] | None = None) -> int:
    """Run the study; return the exit status."""
    options = make_parser("rate-control", __doc__).parse_args(arguments)
    command = command_line("rate_control", sys.argv[1:] if arguments is None else arguments)
    grid = [(c, s, t, p) for c in (*RATE_CONTROLS, *CONTROLLERS) for p in PULLS for s in STARTS for t in TARGETS]
    start, progress, runs = time.perf_counter(), StepLines("run"), []
    for number, (control, begin, target, pull) in enumerate(grid, 1):
        runs.append(drive(control, begin, target, pull, num_updates=options.updates))
        progress(number, len(grid), f", {control}: {begin} -> {target}")
    options.out.mkdir(parents=True, exist_ok=True)
    page = f"`{command}`\n\n{machine('cpu')}; {time.perf_counter() - start:.0f} s\n\n{table(runs)}\n"
    (options.out / "rate-control.md").write_text(page)
    content = {"command": command, "machine": machine("cpu"), "runs": [asdict(run) for run in runs]}
    write_numbers(options.out / "rate-control.json", content)
    print(page, draw(runs, options.out / "rate-control.png"), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
