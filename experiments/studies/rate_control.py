"""How each rate control drives a small policy to its target and holds it there.

    python -m rltok_rl.experiments.studies.rate_control --out experiments/results/rate-control

The policy is linear in random states and sees its last boundaries, as a U-Net's does; Adam trains it on the rate loss
and on REINFORCE, whose rewards are noise, and in half of the runs pay for every boundary: a task that wants another
rate than the target.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import matplotlib
import torch
from rltok_rl.experiments.commands import parsers
from tensordict import TensorDict
from torch import Tensor, nn

from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob, boundary_logits
from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.objectives import BoundaryReinforceLoss, JointLoss, RateLoss
from rltok_rl.objectives.rate import CONTROLLERS
from rltok_rl.sampling import sample_boundaries
from rltok_rl.training.record import machine
from rltok_rl.viz.style import SERIES

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

COEFFICIENTS = {"logit_pressure": 0.01, "ratio": 0.03, "binomial": 1.0, "hinge": 1.0, "pi": 0.01, "price": 0.01}
"""As published, beside a policy loss at 0.01; 0.01 where nothing is."""
STARTS, TARGETS, PULLS = (0.05, 0.8), (0.1, 0.2, 0.33), (0.0, 0.3)
ROWS, STEPS, WIDTH, LAGS = 16, 128, 16, 4
NEAR = 0.01
SMOOTH = 50  # updates that a rate is averaged over
NOISE = 0.2  # nats, standard deviation of the rewards


@dataclass(frozen=True)
class Run:
    """One policy under one control."""

    control: str
    start: float
    target: float
    pull: float
    updates: int | None
    """Updates until the rate, averaged over 50, is within 0.01 of the target; None if it never is."""
    settled: int | None
    """Updates until it is so for good; None if it is not at the end. A rate that shoots through has not settled."""
    overshoot: float
    """How far the rate went beyond the target, seen from where it started."""
    error: float
    """Mean rate minus target over the last quarter."""
    holds: bool
    """Whether the averaged rate stays within 0.01 throughout the last quarter."""
    rates: list[float]
    """Mean probability at every update."""


class LinearPolicy(nn.Module):
    """Boundary terms that are linear in states with a constant channel, at a given rate to begin with."""

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


def drive(control: str, start: float, target: float, pull: float, *, num_updates: int, seed: int = 0) -> Run:
    """Train one policy from a starting rate.

    Args:
        control: a key of ``COEFFICIENTS``.
        start: rate to begin with.
        target: rate to reach.
        pull: nats that the task pays per boundary.
        num_updates: updates of Adam, learning rate 0.02.
        seed: of everything.
    """
    torch.manual_seed(seed)
    policy = LinearPolicy(start)
    terms = {
        "policy": BoundaryReinforceLoss("discounted_return", gamma=0.0, baseline="leave_one_out"),
        "rate": RateLoss(target, control=control),
    }
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
    return judge(control, start, target, pull, rates)


def judge(control: str, start: float, target: float, pull: float, rates: Sequence[float]) -> Run:
    """Time to target, overshoot and steady error of a course of rates."""
    course = torch.tensor(rates)
    smooth = course.unfold(0, SMOOTH, 1).mean(-1)
    near = (smooth - target).abs() <= NEAR
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
        overshoot=max(0.0, float(((smooth - target) * direction).max())),
        error=float(course[-last:].mean()) - target,
        holds=bool(near[-last:].all()),
        rates=[round(x, 4) for x in rates],
    )


def table(runs: Sequence[Run]) -> str:
    """One line per control and pull: the worst and the mean over starts and targets."""
    header = ["control", "coefficient", "pull", "holds ± 0.01", "for good after, median (worst)"]
    header += ["largest overshoot", "largest steady error"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for pull in sorted({run.pull for run in runs}):
        for control in dict.fromkeys(run.control for run in runs):
            mine = [run for run in runs if run.control == control and run.pull == pull]
            times: list[float] = [run.settled for run in mine if run.settled is not None]
            times += [math.inf] * (len(mine) - len(times))
            speed = f"{median(times):.0f} ({max(times):.0f})".replace("inf", "never")
            worst = max((run.error for run in mine), key=abs)
            lines.append(
                f"| `{control}` | {COEFFICIENTS[control]:g} | {pull:g} | "
                f"{sum(run.holds for run in mine)} of {len(mine)} | {speed} | "
                f"{max(run.overshoot for run in mine):.3f} | {worst:+.3f} |"
            )
    return "\n".join(lines)


def course(rates: Sequence[float]) -> Tensor:
    """Each rate averaged with those before it, up to 50 of them."""
    total = torch.tensor(rates, dtype=torch.float64).cumsum(0)
    before = torch.nn.functional.pad(total, (SMOOTH, 0))[: len(total)]
    return (total - before) / torch.arange(1, len(total) + 1).clamp(max=SMOOTH)


def draw(runs: Sequence[Run], path: Path) -> None:
    """The course of every rate, a panel per control, with and without pull."""
    controls = list(dict.fromkeys(run.control for run in runs))
    pulls = sorted({run.pull for run in runs})
    colours = dict(zip(TARGETS, (SERIES[0], SERIES[3], SERIES[2]), strict=True))
    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150})
    figure, panels = plt.subplots(
        len(pulls),
        len(controls),
        figsize=(2.1 * len(controls), 1.9 * len(pulls)),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for line, pull in zip(panels, pulls, strict=True):
        for axes, control in zip(line, controls, strict=True):
            for run in runs:
                if run.control == control and run.pull == pull:
                    axes.plot(course(run.rates), color=colours[run.target], lw=1)
            for target in TARGETS:
                axes.axhline(target, color=colours[target], lw=0.6, ls=":")
            axes.set_title(control if pull == pulls[0] else "", fontsize=8, loc="left")
        line[0].set_ylabel(f"rate, task pays {pull:g} nats" if pull else "rate")
    for target in TARGETS:
        panels[0, -1].annotate(
            f"target {target:g}",
            (1, target),
            (-2, 3),
            ("axes fraction", "data"),
            "offset points",
            ha="right",
            color=colours[target],
            fontsize=7,
        )
    for axes in panels[-1]:
        axes.set_xlabel("updates")
        axes.set_ylim(0, 0.85)
    figure.savefig(path)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = parsers.rate_control()
    options = parser.parse_args(arguments)
    grid = [(c, s, t, p) for c in (*RATE_CONTROLS, *CONTROLLERS) for p in PULLS for s in STARTS for t in TARGETS]
    start, runs = time.perf_counter(), []
    for number, (control, begin, target, pull) in enumerate(grid, 1):
        runs.append(drive(control, begin, target, pull, num_updates=options.updates))
        left = (time.perf_counter() - start) / number * (len(grid) - number)
        print(f"  {number}/{len(grid)} {control}: {begin} -> {target}, {left:.0f} s left", file=sys.stderr, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m rltok_rl.experiments.studies.rate_control", *(arguments or sys.argv[1:])])
    text = f"`{command}`\n\n{machine('cpu')}; {time.perf_counter() - start:.0f} s\n\n{table(runs)}\n"
    (options.out / "rate-control.md").write_text(text)
    content = {"command": command, "machine": machine("cpu"), "runs": [asdict(run) for run in runs]}
    (options.out / "rate-control.json").write_text(json.dumps(content) + "\n")
    draw(runs, options.out / "rate-control.png")
    print(text)
    print(options.out / "rate-control.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
