"""REINFORCE for boundaries: on the rollout's own log-probabilities, or scored again by an actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.functional.policy_gradient import importance_weighted, score_function
from rltok_rl.functional.reduction import zero_masked
from rltok_rl.objectives.base import StepLoss, last_steps, read
from rltok_rl.objectives.critics import VTraceReturn
from rltok_rl.objectives.estimators import ESTIMATORS
from rltok_rl.objectives.policy import (
    advantage_figures,
    advantages_of,
    as_estimator,
    carries_gradient,
    pass_keys_on,
    scores_of,
    update_figures,
)


class BoundaryReinforceLoss(StepLoss):
    """Make decisions with positive advantage likelier (Section 2.4).

        L_policy = -mean_t log pi(a_t) sg(A_t)

    Without ``actor`` the log-probabilities are those of the rollout, which has to carry gradients: policy, language
    model and early exit then train in one backward pass. With ``actor`` decisions are scored again, for stored
    rollouts; ``off_policy=True`` weighs each by how much likelier it has become. The estimator ``"vtrace_return"`` asks
    the loss's actor; its advantages are weighted already and want no other weight.

    Writes ``loss_policy``, and the figures ``entropy``, ``advantage_mean``, ``advantage_spread``; with an actor also
    ``ESS`` and ``kl_approx``. Forced decisions have no part in any of them.

    Args:
        estimator: a value estimator or its name, asked where the rollout has no ``advantage``.
        actor: scores the decisions; None reads ``action_log_prob``.
        off_policy: weigh decisions by ``pi / pi_old`` (needs an actor).
        max_weight: largest weight.
        average: over ``"free"`` decisions, or over ``"all"`` real steps, where forced decisions count 0.
            ``"released"`` is the mean of the authors' released code: over all real steps, where the last decision of
            each row counts 0 too, because it is forced there.
        reduction: see :class:`~rltok_rl.objectives.base.StepLoss`.
        process_group: see there.
        **estimator_options: of an estimator given by name: ``gamma``, ``baseline``, ``group_size``, ...

    Example:
        >>> loss = BoundaryReinforceLoss("discounted_return", gamma=0.99, baseline="leave_one_out")
        >>> rollout = TensorDict({"action_log_prob": torch.zeros(2, 1, requires_grad=True)}, [2, 1])
        >>> rollout["next"] = TensorDict({"reward": torch.tensor([[[1.0]], [[3.0]]])}, [2, 1])
        >>> loss(rollout)["loss_policy"].backward()
        >>> rollout["action_log_prob"].grad.T
        tensor([[ 1., -1.]])
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of what is read."""

        action: NestedKey = "action"
        action_log_prob: NestedKey = "action_log_prob"
        entropy: NestedKey = "entropy"
        forced: NestedKey = "forced"
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    SUPPORTED_VALUE_ESTIMATORS = ESTIMATORS

    def __init__(
        self,
        estimator: ValueEstimatorBase | str | None = None,
        *,
        actor: TensorDictModuleBase | None = None,
        off_policy: bool = False,
        max_weight: float | None = None,
        average: Literal["free", "all", "released"] = "free",
        reduction: Literal["mean", "sum", "none"] = "mean",
        process_group: Any = None,
        **estimator_options: Any,
    ) -> None:
        super().__init__(reduction=reduction, process_group=process_group)
        if average not in ("free", "all", "released"):
            raise ValueError(f"average must be one of ['free', 'all', 'released'], got {average!r}")
        if off_policy and actor is None:
            raise ValueError("off_policy needs an actor that scores the decisions of another policy, got actor=None")
        if max_weight is not None and not off_policy:
            raise ValueError(f"max_weight belongs to off_policy=True, got max_weight={max_weight}")
        self.actor_network = actor
        self.off_policy, self.max_weight, self.average = off_policy, max_weight, average
        self._take_estimator(estimator, estimator_options)

    def make_value_estimator(
        self, value_type: ValueEstimatorBase | type[ValueEstimatorBase] | str | None = None, **hyperparams: Any
    ) -> BoundaryReinforceLoss:
        """Judge decisions by another estimator: an instance, a class with its options, or a name with its options."""
        self._take_estimator(value_type, hyperparams)
        return self

    def _take_estimator(self, estimator: Any, options: dict[str, Any]) -> None:
        made = as_estimator(self, estimator, self.process_group, options)
        if self.off_policy and isinstance(made, VTraceReturn):
            raise ValueError("off_policy must be False with vtrace_return, whose advantages are weighted already")
        self._value_estimator = made
        self._forward_value_estimator_keys()

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        pass_keys_on(self, self.tensor_keys.action_log_prob)

    @property
    def in_keys(self) -> list[NestedKey]:
        """Advantages or what makes them, and log-probabilities or what scores them."""
        keys = self.tensor_keys
        own: list[NestedKey] = [keys.action_log_prob, keys.forced]
        own += [keys.entropy] if self.actor_network is None else [keys.action, *self.actor_network.in_keys]
        own += [keys.advantage] if self._value_estimator is None else self._value_estimator.in_keys
        return list(dict.fromkeys(own))

    @property
    def out_keys(self) -> list[NestedKey]:
        """The loss, then figures."""
        scored = [] if self.actor_network is None else ["ESS", "kl_approx"]
        return ["loss_policy", "entropy", "advantage_mean", "advantage_spread", *scored]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A tensordict without batch dimension: the loss and its figures."""
        keys = self.tensor_keys
        tensordict, advantages = advantages_of(tensordict, keys.advantage, self._value_estimator)
        free = self._judged_steps(tensordict, advantages)
        figures = advantage_figures(advantages, free, self.process_group)
        # Zeros where nothing counts: what stands there may not be a number, and 0 times that is none either.
        advantages = zero_masked(advantages, free)
        if self.actor_network is None:
            log_probs = carries_gradient(read(tensordict, keys.action_log_prob), keys.action_log_prob)
            objective = score_function(log_probs, advantages)
            if tensordict.get(keys.entropy, None) is not None:
                figures["entropy"] = self.figure(read(tensordict, keys.entropy), free)
        else:
            log_probs, entropy = scores_of(tensordict, self.actor_network, keys.action)
            log_probs = zero_masked(log_probs, free)
            old = zero_masked(read(tensordict, keys.action_log_prob).detach(), free)
            if self.off_policy:
                objective = importance_weighted(log_probs, old, advantages, max_weight=self.max_weight)
            else:
                objective = score_function(log_probs, advantages)
            figures |= {
                "entropy": self.figure(entropy, free),
                **update_figures(log_probs - old, free, self.process_group),
            }
        if self.average != "free" and free is not None:
            objective, free = torch.where(free, objective, 0.0), self.steps(tensordict)
        return TensorDict({"loss_policy": self.reduce(-objective, free), **figures})

    def _judged_steps(self, tensordict: TensorDictBase, like: Tensor) -> Tensor | None:
        """[*B, T] bool, the real steps whose decision is the policy's; None where all are."""
        free = self.free_steps(tensordict, self.tensor_keys.forced)
        if self.average != "released":
            return free
        inner = ~last_steps(self.steps(tensordict), like)
        return inner if free is None else free & inner


class EntropyBonus(StepLoss):
    """Keep decisions undecided: ``L = -mean_t H_t`` over free decisions.

    Writes ``loss_entropy`` and ``entropy``. Its coefficient is that of the term in a joint loss.

    Args:
        **options: of :class:`~rltok_rl.objectives.base.StepLoss`.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of what is read."""

        entropy: NestedKey = "entropy"
        forced: NestedKey = "forced"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    out_keys = ["loss_entropy", "entropy"]

    @property
    def in_keys(self) -> list[NestedKey]:
        """Entropies, and which decisions were forced."""
        return [self.tensor_keys.entropy, self.tensor_keys.forced]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A tensordict without batch dimension: the loss and its figure."""
        entropy = read(tensordict, self.tensor_keys.entropy)
        free = self.free_steps(tensordict, self.tensor_keys.forced)
        return TensorDict({"loss_entropy": self.reduce(-entropy, free), "entropy": self.figure(entropy, free)})
