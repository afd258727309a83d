"""Everything that has to obey the laws. Adding an estimator, a baseline or an objective is adding a line here.

Estimators that run texts again are in ``tests/trial_cases.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rltok_rl.functional import baselines, policy_gradient, returns
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.objectives.estimators import make_estimator

from ..named_estimators import named_estimator

SHAPE = (6, 21)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*(shape or SHAPE), dtype=dtype)


def with_zero_critic(function: Callable[..., Any], lmbda: float = 1.0) -> Callable[..., Tensor]:
    """With values of 0 and lambda = 1, nothing but a discounted return."""

    def judge(rewards: Tensor, gamma: float, **options: Any) -> Tensor:
        zeros = torch.zeros_like(rewards)
        return function(rewards, zeros, zeros, gamma, lmbda, **options)

    return judge


def on_policy(which: int) -> Callable[..., Tensor]:
    """V-trace's advantages (0) or targets (1) for decisions of the current policy."""

    def judge(rewards: Tensor, values: Tensor, after: Tensor, gamma: float, lmbda: float, **options: Any) -> Tensor:
        return policy_gradient.vtrace(rewards, values, after, 0 * values, gamma, lmbda=lmbda, **options)[which]

    return judge


class SameDecisions:
    """An actor that finds every decision as likely as it was when it was taken."""

    in_keys = ["action_log_prob"]

    def get_dist(self, tensordict: TensorDict) -> SameDecisions:
        self.stored = tensordict["action_log_prob"]
        return self

    def log_prob(self, action: Tensor) -> Tensor:
        return self.stored


def as_rollout(rewards: Tensor, done: Tensor | None = None, mask: Tensor | None = None, **entries: Any) -> TensorDict:
    """[*B, T] with a critic that says 0, decisions, and further entries."""
    ends = (torch.zeros_like(rewards, dtype=torch.bool) if done is None else done).unsqueeze(-1)
    column, zero = rewards.unsqueeze(-1), torch.zeros_like(rewards)
    after = {"reward": column, "done": ends, "terminated": ends, "state_value": zero}
    entries |= {"state_value": zero, "action": zero, "action_log_prob": zero, "logits": zero, "next": after}
    return TensorDict(entries if mask is None else {**entries, "valid": mask}, rewards.shape)


def estimate(
    name: str, entry: str, rewards: Tensor, gamma: float | Tensor, *, done: Any = None, mask: Any = None, **options: Any
) -> Tensor:
    """The same through a TorchRL estimator."""
    mask_key = None if mask is None else "valid"
    estimator = named_estimator(name, gamma=gamma, differentiable=True, mask_key=mask_key, **options)
    return estimator(as_rollout(rewards, done, mask)).get(entry).squeeze(-1)


def at_even_odds(rewards: Tensor, gamma: float, **options: Any) -> Tensor:
    """Natural advantages where every decision is open: the returns themselves."""
    sums = returns.discounted_return(rewards, gamma, **options)
    return policy_gradient.natural_advantage(sums, torch.zeros_like(sums), mask=options.get("mask"))


def of_opposite_rows(rewards: Tensor, gamma: float, **options: Any) -> Tensor:
    """Twice DisARM's advantages where every decision is open and made differently by the second row: the returns."""
    sums = returns.discounted_return(rewards, gamma, **options)
    decided = torch.zeros_like(sums, dtype=torch.bool)
    mask = options.get("mask")
    return 2 * policy_gradient.disarm_advantage(sums, torch.zeros_like(sums), decided, ~decided, mask=mask)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "discounted_return": returns.discounted_return,
    "generalized_advantage": with_zero_critic(returns.generalized_advantage),
    "natural_advantage": at_even_odds,
    "disarm_advantage": of_opposite_rows,
    "vtrace targets": with_zero_critic(on_policy(1)),
    "vtrace advantages": with_zero_critic(on_policy(0)),
}
_CRITIC, _VTRACE = {"lmbda": 1.0}, {"actor_network": SameDecisions()}
RETURNS: dict[str, Callable[..., Tensor]] = FUNCTIONS | {
    "estimator discounted_return": partial(estimate, "discounted_return", "advantage"),
    "estimator natural_gradient": partial(estimate, "natural_gradient", "advantage"),
    "estimator natural_gradient, target": partial(estimate, "natural_gradient", "value_target"),
    "estimator critic_advantage": partial(estimate, "critic_advantage", "advantage", **_CRITIC),
    "estimator critic_advantage, target": partial(estimate, "critic_advantage", "value_target", **_CRITIC),
    "estimator vtrace_return": partial(estimate, "vtrace_return", "advantage", **_VTRACE),
    "estimator vtrace_return, target": partial(estimate, "vtrace_return", "value_target", **_VTRACE),
}
"""(rewards [*B, T], gamma, *, done, mask) -> returns [*B, T]."""


@dataclass(frozen=True)
class Baseline:
    """A baseline and its claims."""

    function: Callable[..., Tensor]
    unbiased: bool = True
    shrinks: bool = False  # the expected gradient is (n - 1)/n of the true one
    centred: bool = True  # indifferent to what all rows of a position have in common
    absorbs: bool = True  # returns that are the same everywhere leave nothing
    linear: bool = True
    group: int | None = None  # rows that are compared with one another; None for all
    blind_to_rows: bool = True  # rows that are masked as a whole do not matter
    leading: bool = True  # takes any leading dimensions
    module: bool = False  # around a function: built before a graph, and given masks by a tensordict, which fit


EARLIER = torch.linspace(-1, 2, 4 * 64).view(4, 64)


def remembering(returns_: Tensor, **options: Any) -> Tensor:
    """A running mean that has seen one batch before."""
    length = returns_.shape[-1]
    _, state = baselines.running_mean(EARLIER[..., :length].to(returns_.dtype), baselines.RunningMean.empty(length))
    return baselines.running_mean(returns_, state, **options)[0]


def some_regressors(returns_: Tensor) -> Tensor:
    """Regressors that differ from position to position, and from row to row."""
    size, length = returns_[..., 0].numel(), returns_.shape[-1]
    position = torch.arange(length, dtype=torch.float64).expand_as(returns_)
    row = torch.arange(size, dtype=torch.float64).view(*returns_.shape[:-1], 1).expand_as(returns_)
    return torch.stack((position, (row * 1.7 + position).sin()), -1)


def fitted(returns_: Tensor, **options: Any) -> Tensor:
    return control_variate(returns_, some_regressors(returns_), **options)


def through_estimator(name: str, **options: Any) -> Callable[..., Tensor]:
    """A TorchRL estimator as a baseline: with gamma = 0, rewards are returns."""

    def judge(returns_: Tensor, *, mask: Tensor | None = None, process_group: Any = None) -> Tensor:
        return estimate(name, "advantage", returns_, 0.0, mask=mask, process_group=process_group, **options)

    return judge


def remembering_estimator(returns_: Tensor, *, mask: Tensor | None = None, process_group: Any = None) -> Tensor:
    """The estimator of a running mean that has judged one batch before."""
    length, options = returns_.shape[-1], {"gamma": 0.0, "differentiable": True, "process_group": process_group}
    judge = make_estimator("discounted_return", baseline="running_mean", num_steps=length, mask_key=None, **options)
    judge(as_rollout(EARLIER[..., :length].to(returns_.dtype)))
    judge.mask_key = None if mask is None else "valid"
    return judge(as_rollout(returns_, mask=mask))["advantage"].squeeze(-1)


def fitted_estimator(returns_: Tensor, *, mask: Tensor | None = None, process_group: Any = None) -> Tensor:
    options = {"regressor_keys": ("known",), "hindsight": False, "mask_key": None if mask is None else "valid"}
    judge = make_estimator("control_variate", gamma=0.0, differentiable=True, process_group=process_group, **options)
    return judge(as_rollout(returns_, mask=mask, known=some_regressors(returns_)))["advantage"].squeeze(-1)


_SHRINKS = {"unbiased": False, "shrinks": True}
_SCALES = {"unbiased": False, "centred": False, "linear": False}
_REMEMBERS = {"centred": False, "absorbs": False, "linear": False}
_FITS = {"centred": False, "blind_to_rows": False}
_GROUPS = {"group": 2, "leading": False}


def _per_rows(baseline: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return partial(baselines.per_rows, baseline=baseline, rows_per_mean=2)


_whole_group = partial(baselines.group_mean, group_size=2, exclude_self=False)
BASELINES: dict[str, Baseline] = {
    "none": Baseline(baselines.no_baseline, centred=False, absorbs=False),
    "batch_mean": Baseline(baselines.batch_mean, **_SHRINKS),
    "leave_one_out": Baseline(baselines.leave_one_out),
    "group_mean": Baseline(partial(baselines.group_mean, group_size=2), **_GROUPS),
    "group_mean, self included": Baseline(_whole_group, **_SHRINKS, **_GROUPS),
    "z_score": Baseline(baselines.z_score, **_SCALES),
    "per_rows batch_mean": Baseline(_per_rows(baselines.batch_mean), **_SHRINKS, **_GROUPS),
    "per_rows leave_one_out": Baseline(_per_rows(baselines.leave_one_out), **_GROUPS),
    "per_rows z_score": Baseline(_per_rows(baselines.z_score), **_SCALES, **_GROUPS),
    "running_mean": Baseline(remembering, **_REMEMBERS),
    "control_variate": Baseline(fitted, **_FITS),
    "estimator batch_mean": Baseline(through_estimator("batch_mean"), module=True, **_SHRINKS),
    "estimator leave_one_out": Baseline(through_estimator("leave_one_out"), module=True),
    "estimator group_mean": Baseline(through_estimator("group_mean", group_size=2), module=True, **_GROUPS),
    "estimator batch_mean, per rows": Baseline(
        through_estimator("batch_mean", rows_per_mean=2), module=True, **_SHRINKS, **_GROUPS
    ),
    "estimator z_score": Baseline(through_estimator("z_score"), module=True, **_SCALES),
    "estimator running_mean": Baseline(remembering_estimator, module=True, **_REMEMBERS),
    "estimator control_variate": Baseline(fitted_estimator, module=True, **_FITS),
}


@dataclass(frozen=True)
class Objective:
    """A policy objective of log-probabilities, old log-probabilities and advantages."""

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    plain: bool = True  # its gradient is that of its value; not so where a weight is held constant
    unbiased_off_policy: bool = False  # for single decisions


_weighted = policy_gradient.importance_weighted
OBJECTIVES: dict[str, Objective] = {
    "score_function": Objective(lambda new, old, advantage: policy_gradient.score_function(new, advantage)),
    "clipped_ratio": Objective(partial(policy_gradient.clipped_ratio, clip=0.2)),
    "clipped_ratio, asymmetric": Objective(partial(policy_gradient.clipped_ratio, clip=(0.1, 0.3))),
    "importance_weighted": Objective(_weighted, plain=False, unbiased_off_policy=True),
    "importance_weighted, cut": Objective(partial(_weighted, max_weight=2.0), plain=False),
}
