"""Everything that has to obey the laws. Adding an estimator, a baseline or an objective is adding a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rltok_rl.functional import baselines, policy_gradient, returns
from rltok_rl.objectives.estimators import make_estimator

from ..named_estimators import named_estimator

SHAPE = (6, 21)


def zeros_like_pair(rewards: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(rewards), torch.zeros_like(rewards)


def gae(rewards: Tensor, gamma: float, **options: Any) -> Tensor:
    """With values of 0 and lambda = 1, nothing but a discounted return."""
    return returns.generalized_advantage(rewards, *zeros_like_pair(rewards), gamma, 1.0, **options)


def td_lambda(rewards: Tensor, gamma: float, **options: Any) -> Tensor:
    return returns.td_lambda_return(rewards, *zeros_like_pair(rewards), gamma, 1.0, **options)


def vtrace_targets(rewards: Tensor, gamma: float, **options: Any) -> Tensor:
    values = zeros_like_pair(rewards)
    return policy_gradient.vtrace(rewards, *values, torch.zeros_like(rewards), gamma, **options)[1]


def vtrace_advantages(rewards: Tensor, gamma: float, **options: Any) -> Tensor:
    values = zeros_like_pair(rewards)
    return policy_gradient.vtrace(rewards, *values, torch.zeros_like(rewards), gamma, **options)[0]


class SameDecisions:
    """An actor that finds every decision as likely as it was when it was taken."""

    in_keys = ["action_log_prob"]

    def __init__(self) -> None:
        self.stored = torch.empty(0)

    def get_dist(self, tensordict: TensorDict) -> SameDecisions:
        self.stored = tensordict["action_log_prob"]
        return self

    def log_prob(self, action: Tensor) -> Tensor:
        return self.stored


def as_rollout(rewards: Tensor, done: Tensor | None = None, mask: Tensor | None = None, **entries: Any) -> TensorDict:
    """[*B, T] with a critic that says 0, decisions, and what else is given."""
    ends = torch.zeros_like(rewards, dtype=torch.bool) if done is None else done
    column, wide_ends = rewards.unsqueeze(-1), ends.unsqueeze(-1)
    zero = torch.zeros_like(column)
    following = {"reward": column, "done": wide_ends, "terminated": wide_ends, "state_value": zero}
    decisions = {"action": torch.zeros_like(rewards), "action_log_prob": torch.zeros_like(rewards)}
    entries |= {"state_value": zero, "next": following, **decisions}
    if mask is not None:
        entries["valid"] = mask
    return TensorDict(entries, rewards.shape)


def estimate(
    name: str,
    entry: str,
    rewards: Tensor,
    gamma: float | Tensor,
    *,
    done: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The same through a TorchRL estimator."""
    mask_key = None if mask is None else "valid"
    estimator = named_estimator(name, gamma=gamma, differentiable=True, mask_key=mask_key, **options)
    return estimator(as_rollout(rewards, done, mask)).get(entry).squeeze(-1)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "discounted_return": returns.discounted_return,
    "generalized_advantage": gae,
    "td_lambda_return": td_lambda,
    "vtrace targets": vtrace_targets,
    "vtrace advantages": vtrace_advantages,
}
ESTIMATORS: dict[str, Callable[..., Tensor]] = {
    "estimator discounted_return": partial(estimate, "discounted_return", "advantage"),
    "estimator critic_advantage": partial(estimate, "critic_advantage", "advantage", lmbda=1.0),
    "estimator critic_advantage, target": partial(estimate, "critic_advantage", "value_target", lmbda=1.0),
    "estimator vtrace_return": partial(estimate, "vtrace_return", "advantage", actor_network=SameDecisions()),
    "estimator vtrace_return, target": partial(
        estimate, "vtrace_return", "value_target", actor_network=SameDecisions()
    ),
}
RETURNS = FUNCTIONS | ESTIMATORS
"""(rewards [*B, T], gamma, *, done, mask) -> returns [*B, T]."""


@dataclass(frozen=True)
class Baseline:
    """A baseline and what it claims."""

    function: Callable[..., Tensor]
    unbiased: bool = True
    shrinks: bool = False  # the expected gradient is (n - 1)/n of the true one
    centred: bool = True  # indifferent to what all rows of a position have in common
    absorbs: bool = True  # returns that are the same everywhere leave nothing
    linear: bool = True
    group: int | None = None  # how many rows are compared with one another; None for all
    blind_to_rows: bool = True  # what rows that are masked as a whole could have been does not matter
    leading: bool = True  # takes any leading dimensions
    module: bool = False  # around a function: built before a graph, and given masks by a tensordict, which fit


def remembering(function: Callable[..., Any], batch: Tensor) -> Callable[..., Tensor]:
    """A running mean that has seen one batch before."""

    def judge(returns_: Tensor, *, mask: Tensor | None = None, process_group: Any = None) -> Tensor:
        state = baselines.RunningMean.empty(returns_.shape[-1])
        _, state = function(batch[..., : returns_.shape[-1]].to(returns_.dtype), state)
        return function(returns_, state, mask=mask, process_group=process_group)[0]

    return judge


def some_regressors(returns_: Tensor) -> Tensor:
    """Regressors that differ from position to position, and from row to row."""
    size, length = returns_[..., 0].numel(), returns_.shape[-1]
    position = torch.arange(length, dtype=torch.float64).expand_as(returns_)
    row = torch.arange(size, dtype=torch.float64).view(*returns_.shape[:-1], 1).expand_as(returns_)
    return torch.stack((position, (row * 1.7 + position).sin()), -1)


def fitted(returns_: Tensor, *, mask: Tensor | None = None, process_group: Any = None) -> Tensor:
    """A regression on what is known of each position and row."""
    return baselines.control_variate(returns_, some_regressors(returns_), mask=mask, process_group=process_group)


def estimator(name: str, **options: Any) -> Callable[..., Tensor]:
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
    """The estimator of a regression."""
    options = {"regressor_keys": ("known",), "hindsight": False, "mask_key": None if mask is None else "valid"}
    judge = make_estimator("control_variate", gamma=0.0, differentiable=True, process_group=process_group, **options)
    return judge(as_rollout(returns_, mask=mask, known=some_regressors(returns_)))["advantage"].squeeze(-1)


EARLIER = torch.linspace(-1, 2, 4 * 64).view(4, 64)
BASELINES: dict[str, Baseline] = {
    "none": Baseline(baselines.no_baseline, centred=False, absorbs=False),
    "batch_mean": Baseline(baselines.batch_mean, unbiased=False, shrinks=True),
    "leave_one_out": Baseline(baselines.leave_one_out),
    "group_mean": Baseline(partial(baselines.group_mean, group_size=2), group=2, leading=False),
    "group_mean, self included": Baseline(
        partial(baselines.group_mean, group_size=2, exclude_self=False),
        unbiased=False,
        shrinks=True,
        group=2,
        leading=False,
    ),
    "z_score": Baseline(baselines.z_score, unbiased=False, centred=False, linear=False),
    "running_mean": Baseline(remembering(baselines.running_mean, EARLIER), centred=False, absorbs=False, linear=False),
    "control_variate": Baseline(fitted, centred=False, blind_to_rows=False),
    "estimator batch_mean": Baseline(estimator("batch_mean"), unbiased=False, shrinks=True, module=True),
    "estimator leave_one_out": Baseline(estimator("leave_one_out"), module=True),
    "estimator group_mean": Baseline(estimator("group_mean", group_size=2), group=2, leading=False, module=True),
    "estimator z_score": Baseline(estimator("z_score"), unbiased=False, centred=False, linear=False, module=True),
    "estimator running_mean": Baseline(remembering_estimator, centred=False, absorbs=False, linear=False, module=True),
    "estimator control_variate": Baseline(fitted_estimator, centred=False, blind_to_rows=False, module=True),
}


@dataclass(frozen=True)
class Objective:
    """A policy objective of log-probabilities, old log-probabilities and advantages."""

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    plain: bool = True  # its value is what its gradient is the gradient of; not so where a weight is held constant
    unbiased_off_policy: bool = False  # for single decisions
    unbiased_for_strings: bool = False  # for decisions that depend on one another, paid together


OBJECTIVES: dict[str, Objective] = {
    "score_function": Objective(lambda new, old, advantage: policy_gradient.score_function(new, advantage)),
    "clipped_ratio": Objective(partial(policy_gradient.clipped_ratio, clip=0.2)),
    "clipped_ratio, asymmetric": Objective(partial(policy_gradient.clipped_ratio, clip=(0.1, 0.3))),
    "importance_weighted": Objective(policy_gradient.importance_weighted, plain=False, unbiased_off_policy=True),
    "importance_weighted, cut": Objective(partial(policy_gradient.importance_weighted, max_weight=2.0), plain=False),
    "importance_weighted, whole rows": Objective(
        partial(policy_gradient.importance_weighted, whole_row=True), plain=False, unbiased_for_strings=True
    ),
}
