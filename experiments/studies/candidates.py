"""Candidates of the estimator study by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from rltok_rl.agents import BoundaryCritic
from rltok_rl.experiments.studies.doubly_robust import DoublyRobustFlips
from rltok_rl.experiments.studies.pooled_critic import PooledCritic
from rltok_rl.experiments.studies.shared_gain import SharedGain
from rltok_rl.experiments.studies.sibling_trials import Coupling, SiblingTrials
from tensordict import TensorDictBase
from tensordict.utils import NestedKey

from rltok_rl.diagnostics.estimator_report import Candidate
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import make_estimator
from rltok_rl.objectives.base import read
from rltok_rl.objectives.disarm import DisARM
from rltok_rl.objectives.flips import LocalFlips
from rltok_rl.objectives.token_gain import TokenGain
from rltok_rl.objectives.trials import Trials
from rltok_rl.renamed import RenamedKeys

Maker = Callable[[str, float, UNet, int], Candidate]


def _plain(baseline: str, reward: str, name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    if baseline != "running_mean":
        return Candidate(name, make_estimator("discounted_return", gamma=gamma, baseline=baseline), reward=reward)
    estimator = make_estimator("discounted_return", gamma=gamma, baseline=baseline, num_steps=num_steps)
    return Candidate(name, estimator, reward=reward, learn=lambda _: None)  # estimating updates its mean


def _natural(name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    return Candidate(name, make_estimator("natural_gradient", gamma=gamma, baseline="batch_mean"))


def _group(size: int, name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    estimator = make_estimator("discounted_return", gamma=gamma, baseline="group_mean", group_size=size)
    return Candidate(name, estimator, rows_per_text=size)


def _control_variate(
    keys: tuple[NestedKey, ...] | None, name: str, gamma: float, model: UNet, num_steps: int
) -> Candidate:
    """Make a candidate that regresses returns on entries of the rollout; None: on those of runs."""
    estimator = make_estimator("control_variate", gamma=gamma, **({} if keys is None else {"regressor_keys": keys}))
    return Candidate(name, estimator, flops_per_byte=estimator.fit_flops(model.config.width))


def _critic(
    kind: type[BoundaryCritic | PooledCritic], lmbda: float, name: str, gamma: float, model: UNet, num_steps: int
) -> Candidate:
    """Make a candidate with a critic that is trained on every batch."""
    critic = kind(model.config).to(model.embedding.weight.dtype)
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3)
    estimator = make_estimator("critic_advantage", gamma=gamma, lmbda=lmbda, value_network=critic)
    steps = 4

    def learn(rollout: TensorDictBase) -> None:
        for _ in range(steps):
            value = critic(rollout.select(*critic.in_keys))["state_value"]
            error = (value - rollout["value_target"]).square().mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()

    weights = sum(p.numel() for p in critic.parameters() if p.dim() == 2)
    passes = 2 + 3 * steps  # values before and after each step; forward and backward for each training step
    return Candidate(name, estimator, learn=learn, flops_per_byte=2.0 * passes * weights)


def _flips(num_flips: int, span: int, every: int, name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    estimator = LocalFlips(model, gamma=gamma, num_flips=num_flips, span=span, every=every)
    return Candidate(name, estimator, extra_rows=num_flips / every)


def _doubly_robust(num_flips: int, span: int, name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    estimator = DoublyRobustFlips(model, gamma=gamma, num_flips=num_flips, span=span)
    return Candidate(name, estimator, extra_rows=num_flips, learn=lambda _: None)  # estimating fits its predictions


def _sibling(coupling: Coupling, name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    return Candidate(name, SiblingTrials(model, gamma=gamma, coupling=coupling), extra_rows=1)


def _disarm(name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    return Candidate(name, DisARM(model, gamma=gamma), extra_rows=1)


def _gain(apart: int, name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    return Candidate(name, TokenGain(model, gamma=gamma, apart=apart), extra_rows=1)


def _shared(num_passes: int, apart: int, size: int, name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    """Make a candidate of ``num_passes``, each without one token in ``apart``, averaged over ``size`` rows."""
    estimator = SharedGain(model, gamma=gamma, apart=apart, num_passes=num_passes, group_size=size)
    return Candidate(name, estimator, rows_per_text=size, extra_rows=num_passes)


def _decision(name: str, gamma: float, model: UNet, num_steps: int) -> Candidate:
    """Make a candidate that measures nothing, ``A_t = a_t - p_t``, to compare correlations with."""

    def estimator(rollout: TensorDictBase) -> TensorDictBase:
        chance = read(rollout, "logits").sigmoid()
        decided = (read(rollout, "action").to(chance) - chance).masked_fill(read(rollout, "forced"), 0.0)
        return rollout.set("advantage", decided.unsqueeze(-1))

    return Candidate(name, estimator)


CANDIDATES: dict[str, Maker] = RenamedKeys(
    "candidate",
    {
        "decision": _decision,
        "raw": partial(_plain, "none", "log_likelihood"),
        "batch": partial(_plain, "batch_mean", "log_likelihood"),
        "early": partial(_plain, "none", "early_exit"),
        "paper": partial(_plain, "batch_mean", "early_exit"),
        "leave_one_out": partial(_plain, "leave_one_out", "early_exit"),
        "entropy_relative": partial(_plain, "leave_one_out", "entropy_relative"),
        "z_score": partial(_plain, "z_score", "early_exit"),
        "running_mean": partial(_plain, "running_mean", "early_exit"),
        "natural": _natural,
        "control_variate": partial(_control_variate, None),
        # On the early exit's loss and entropy at each byte, and on its state.
        "regression": partial(_control_variate, (("next", "early_log_prob"), "early_entropy", "encoder_state")),
        "critic_td": partial(_critic, BoundaryCritic, 0.95),
        "critic": partial(_critic, BoundaryCritic, 1.0),
        "pooled_critic_td": partial(_critic, PooledCritic, 0.95),
        "pooled_critic": partial(_critic, PooledCritic, 1.0),
        "group_mean_2": partial(_group, 2),
        "group_mean_4": partial(_group, 4),
        "group_mean_8": partial(_group, 8),
        "local_flips": partial(_flips, 3, 16, 1),
        "local_flips_far": partial(_flips, 3, 32, 1),
        "budgeted_flips": partial(_flips, 2, 16, 4),
        "doubly_robust": partial(_doubly_robust, 3, 16),
        "sibling_trial": partial(_sibling, "independent"),
        "sibling_trial_blocks": partial(_sibling, "blocks"),
        "sibling_trial_antithetic": partial(_sibling, "antithetic"),
        "sibling_trial_disarm": _disarm,
        "token_gain": partial(_gain, 2),
        "token_gain_8": partial(_shared, 8, 8, 1),
        "shared_gain_4": partial(_shared, 1, 2, 4),
        "shared_gain_8": partial(_shared, 1, 2, 8),
    },
)
"""Makers by name: ``(name, gamma, model, num_steps) -> Candidate``."""


def make_candidate(
    name: str, gamma: float, model: UNet, num_steps: int, *, label: str | None = None, price: float = 0.0
) -> Candidate:
    """Make a candidate for the gradient of ``model`` over T = ``num_steps``; ``label`` names it in tables.

    ``price`` is that of a boundary, for estimators that make rewards from likelihoods themselves.
    """
    if name not in CANDIDATES:
        raise ValueError(f"estimators must be among {list(CANDIDATES)}, got {name!r}")
    candidate = CANDIDATES[name](label or name, gamma, model, num_steps)
    if isinstance(candidate.estimator, Trials):
        candidate.estimator.price = price
    return candidate
