"""Parts of the method: drawing boundaries, the environment, returns and losses."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.bench.timing import BenchRow, compare, compare_seconds, fresh_model, paper_trainer
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.objectives.value import functional as torchrl_value

from rltok_rl.data import local_prose
from rltok_rl.functional.returns import discounted_return
from rltok_rl.sampling import METHODS, sample_boundaries

ROWS, LENGTH, LAGS = 32, 4096, 8
GAMMAS = (0.9, 0.99, 1.0)
EPISODE = 500  # mean steps
STEPPED = 512  # steps of the environment that are timed; a byte costs nearly the same at every position
Terms = tuple[Tensor, Tensor]
"""Base logits [B, T] and lag weights [B, T, w] of a policy."""


def sampler(device: str) -> list[BenchRow]:
    """Drawing boundaries: every method against the plain loop, on easy and on hard policies."""
    torch.manual_seed(0)
    rows = []
    for policy in (trained_like, fresh, alternating, every_third, long_chain):
        base, lags = (x.to(device) for x in policy(LAGS))
        auto, loop = (partial(sample_boundaries, base, lags, method=method) for method in ("auto", "loop"))
        name, goal = f"auto / loop, w={LAGS}, {_title(policy)}", 100.0 if device == "cpu" else None
        rows.append(compare("sampler", name, auto, loop, pairs=5, repeat=10, goal=goal))
    base, lags = (x.to(device) for x in trained_like(LAGS))
    timed = partial(sample_boundaries, base, lags), partial(unordered_loop, base, lags)
    rows.append(compare("sampler", f"auto / unordered loop, w={LAGS}, trained like", *timed, pairs=5, repeat=10))
    for num_lags in (1, 4, 8, 12):
        for policy in (trained_like, long_chain):
            base, lags = (x.to(device) for x in policy(num_lags))
            loop = partial(sample_boundaries, base, lags, method="loop")
            for method, properties in METHODS.items():
                if method != "loop" and properties.missing(device, num_lags) is None:
                    ours = partial(sample_boundaries, base, lags, method=method)
                    name = f"{method} / loop, w={num_lags}, {_title(policy)}"
                    rows.append(compare("sampler", name, ours, loop, pairs=3, repeat=2))
    return rows


def _title(policy: Callable[[int], Terms]) -> str:
    return policy.__name__.replace("_", " ")


def trained_like(num_lags: int) -> Terms:
    """Decided policies: boundaries after 18 % of bytes, rarely right after another one."""
    noise = torch.randn(ROWS, LENGTH, 1 + num_lags)
    base = torch.where(torch.rand(ROWS, LENGTH) < 0.18, 2.5, -4.0) + 0.8 * noise[..., 0]
    return base, -3.0 * torch.exp(-torch.arange(num_lags) / 2) + 0.5 * noise[..., 1:]


def fresh(num_lags: int) -> Terms:
    """Policies before training: all logits are near that of the target rate."""
    terms = 0.06 * torch.randn(ROWS, LENGTH, 1 + num_lags)
    return terms[..., 0] - 1.39, terms[..., 1:]


def alternating(num_lags: int) -> Terms:
    """A boundary exactly if the previous byte has none."""
    lags = torch.zeros(ROWS, LENGTH, num_lags)
    lags[..., 0] = -80.0
    return torch.full((ROWS, LENGTH), 40.0), lags


def every_third(num_lags: int) -> Terms:
    """A boundary at every third byte."""
    lags = torch.zeros(ROWS, LENGTH, num_lags)
    lags[..., :2] = -80.0
    return torch.full((ROWS, LENGTH), 40.0), lags


def long_chain(num_lags: int) -> Terms:
    """Copies or negates the oldest visible boundary: one flip changes everything after it."""
    sign = torch.where(torch.rand(ROWS, LENGTH) < 0.5, 40.0, -40.0)
    lags = torch.zeros(ROWS, LENGTH, num_lags)
    lags[..., -1] = 2 * sign
    return -sign, lags


def unordered_loop(base: Tensor, lags: Tensor) -> Tensor:
    """The fastest loop in plain torch: one call sums over lags, in an order that torch chooses.

    It differs from the other methods in the last bits; with it the reference is no straw man.
    """
    num_lags = lags.shape[-1]
    thresholds = torch.logit(torch.rand(base.shape, device=base.device))
    reversed_lags = lags.flip(-1).contiguous()
    padded = base.new_zeros(base.shape[0], base.shape[1] + num_lags)
    padded[:, num_lags] = 1.0
    for t in range(1, base.shape[1]):
        logits = base[:, t] + (reversed_lags[:, t] * padded[:, t : t + num_lags]).sum(-1)
        padded[:, num_lags + t] = logits > thresholds[:, t]
    return padded[:, num_lags:] > 0


def environment(device: str) -> list[BenchRow]:
    """The environment: whole rollouts."""
    torch.manual_seed(0)
    return [_rollout(device)]


def _rollout(device: str) -> BenchRow:
    """One forward pass against 4,096 steps."""
    model = fresh_model("small", device).eval()
    env = ByteBoundaryEnv(model, local_prose(), num_steps=LENGTH, batch_size=(8,), seed=0)
    actor = LearnedBoundaryActor(model)

    @torch.no_grad()
    def parallel() -> float:
        start = time.perf_counter()
        env.parallel_rollout(actor)["next", "reward"].sum().item()
        return time.perf_counter() - start

    @torch.no_grad()
    def stepped() -> float:
        start = time.perf_counter()
        EnvBase.rollout(env, STEPPED, actor)["next", "reward"].sum().item()
        return (time.perf_counter() - start) * LENGTH / STEPPED

    name, goal = "parallel rollout / stepping, small, T=4096, B=8", 10.0 if device == "cpu" else 200.0
    return compare_seconds("environment", name, parallel, stepped, pairs=3, goal=goal, note="both without gradients")


def estimators(device: str) -> list[BenchRow]:
    """Discounted returns against TorchRL's equivalents, and the share of estimator and losses in an update."""
    torch.manual_seed(0)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # reward2go is a convolution
        cases = [(name, gamma, ends) for ends in (False, True) for gamma in GAMMAS for name in _EQUIVALENTS]
        rows = [_returns(*case, device) for case in cases]
    return [*rows, _losses(device)]


_EQUIVALENTS: dict[str, Callable[[float, Tensor, Tensor, Tensor], Tensor]] = {
    "reward2go": lambda gamma, r, zero, done: torchrl_value.reward2go(r, done, gamma).view_as(r),
    "td1_return_estimate": lambda gamma, r, zero, done: torchrl_value.td1_return_estimate(gamma, zero, r, done),
    "vec_td1_return_estimate": lambda gamma, r, zero, done: torchrl_value.vec_td1_return_estimate(gamma, zero, r, done),
    "generalized_advantage_estimate": lambda gamma, r, zero, done: torchrl_value.generalized_advantage_estimate(
        gamma, 1.0, zero, zero, r, done
    )[0],
    "vec_generalized_advantage_estimate": lambda gamma, r, zero, done: torchrl_value.vec_generalized_advantage_estimate(
        gamma, 1.0, zero, zero, r, done
    )[0],
}
"""TorchRL's functions on [B, T, 1] that are discounted returns if the critic predicts 0 and lambda is 1."""


def _returns(name: str, gamma: float, with_done: bool, device: str) -> BenchRow:
    """One equivalent at one discount; both sides must agree first."""
    rewards = torch.randn(ROWS, LENGTH, 1, device=device)
    done = torch.rand(rewards.shape, device=device) < (1 / EPISODE if with_done else 0.0)
    theirs = partial(_EQUIVALENTS[name], gamma, rewards, torch.zeros_like(rewards), done)

    def ours() -> Tensor:
        ends = done.squeeze(-1) if with_done else None
        return discounted_return(rewards.squeeze(-1), gamma, done=ends).unsqueeze(-1)

    expected = theirs()
    torch.testing.assert_close(ours(), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    title = f"returns / {name}, gamma {gamma:g}{f', done 1/{EPISODE}' if with_done else ''}"
    note = f"[{ROWS}, {LENGTH}, 1], no gradients"
    return compare("estimators", title, ours, theirs, pairs=5, repeat=10, goal=5.0, note=note)


def _losses(device: str) -> BenchRow:
    """Estimator and losses, forward and backward down to the rollout's entries, against a training step."""
    trainer = paper_trainer(fresh_model("small", device), 8, 1024)
    loss = trainer.loss
    rollout = trainer.env.parallel_rollout(trainer.policy).detach()
    for key in ("logits", "action_log_prob", "entropy", ("next", "final_log_prob"), ("next", "early_log_prob")):
        rollout[key] = rollout[key].requires_grad_()

    def losses() -> None:
        loss.total(loss(rollout)).backward()

    options: dict = {"pairs": 5, "repeat": 5, "goal": 100.0, "note": "goal: at most 1 %"}
    name = "estimator and losses / training step, small, T=1024, B=8"
    return compare("estimators", name, losses, trainer.update, **options)
