"""REINFORCE for boundaries, on the rollout's own log-probabilities or on those of an actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives.utils import ValueEstimators
from torchrl.objectives.value import ValueEstimatorBase, VTrace

from rltok_rl.functional.policy_gradient import importance_weighted, score_function
from rltok_rl.functional.reduction import zero_masked
from rltok_rl.objectives.base import StepLoss, read, with_last_byte
from rltok_rl.objectives.critics import VTraceReturn
from rltok_rl.objectives.estimators import ESTIMATORS
from rltok_rl.objectives.policy_loss import PolicyLoss, advantages_of, score_actions

AVERAGES = ("free", "all", "window")
"""What the policy's loss is averaged over."""


class BoundaryReinforceLoss(PolicyLoss, StepLoss):
    """REINFORCE: make decisions with positive advantage likelier (Section 2.4).

        L_policy = -mean_t log pi(a_t) sg(A_t)

    Without ``actor`` the log-probabilities are those of the rollout, which must carry gradients: policy, language
    model and early exit then train in one backward pass. With ``actor`` stored decisions are scored again, and
    ``off_policy=True`` weights each by how much likelier it has become. Advantages of ``"vtrace_return"`` are weighted
    already. Forced decisions count nowhere.

    Writes ``loss_policy`` and the metrics ``entropy``, ``advantage_mean``, ``advantage_spread``; with an actor also
    ``ESS`` and ``kl_approx``.

    Args:
        estimator: a value estimator or its name, used if the rollout has no ``advantage``.
        actor: scores the decisions; None reads ``action_log_prob``.
        off_policy: weight decisions by ``pi / pi_old`` (needs an actor).
        max_weight: largest weight.
        average: over ``"free"`` decisions; over ``"all"`` real steps, where forced decisions count 0; over the T + 1
            bytes of a row's ``"window"``, where forced decisions and the last byte, which is read and predicts nothing,
            count 0. The authors' released code does that, with one text per row.
        **options: ``reduction`` and ``process_group`` of :class:`~rltok_rl.objectives.base.StepLoss`, and options of an
            estimator given by name: ``gamma``, ``baseline``, ``group_size``, ...

    Example:
        >>> from tensordict import TensorDict
        >>> loss = BoundaryReinforceLoss("discounted_return", gamma=0.99, baseline="leave_one_out")
        >>> rollout = TensorDict({"action_log_prob": torch.zeros(2, 1, requires_grad=True)}, [2, 1])
        >>> rollout["next"] = TensorDict({"reward": torch.tensor([[[1.0]], [[3.0]]])}, [2, 1])
        >>> loss(rollout)["loss_policy"].backward()
        >>> rollout["action_log_prob"].grad.T
        tensor([[ 1., -1.]])
    """

    @dataclass
    class _AcceptedKeys:
        action: NestedKey = "action"
        action_log_prob: NestedKey = "action_log_prob"
        entropy: NestedKey = "entropy"
        forced: NestedKey = "forced"
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    SUPPORTED_VALUE_ESTIMATORS = (*ValueEstimators, *ESTIMATORS)

    def __init__(
        self,
        estimator: ValueEstimatorBase | str | None = None,
        *,
        actor: TensorDictModuleBase | None = None,
        off_policy: bool = False,
        max_weight: float | None = None,
        average: Literal["free", "all", "window"] = "free",
        reduction: Literal["mean", "sum", "none"] = "mean",
        process_group: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(reduction=reduction, process_group=process_group)
        if average not in AVERAGES:
            raise ValueError(f"average must be one of {list(AVERAGES)}, got {average!r}")
        if off_policy and actor is None:
            raise ValueError("off_policy needs an actor that scores the decisions of another policy, got actor=None")
        if max_weight is not None and not off_policy:
            raise ValueError(f"max_weight belongs to off_policy=True, got max_weight={max_weight}")
        self.actor_network = actor
        self.off_policy, self.max_weight, self.average = off_policy, max_weight, average
        self.make_value_estimator(estimator, **options)

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> BoundaryReinforceLoss:
        """Replace the estimator by an instance, or by a class, a name or a ``ValueEstimators`` with its options.

        TorchRL's estimators read the rollout's ``state_value``, or compute it with the option ``value_network``.
        """
        estimator = self.build_estimator(value_type, hyperparams)
        if self.off_policy and isinstance(estimator, (VTraceReturn, VTrace)):
            name = "vtrace_return" if isinstance(estimator, VTraceReturn) else "VTrace"
            raise ValueError(f"off_policy must be False with {name}, whose advantages are weighted already")
        self._value_estimator = estimator
        self._forward_value_estimator_keys()
        return self

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        self.pass_keys(self.tensor_keys.action_log_prob)

    @property
    def in_keys(self) -> list[NestedKey]:
        """Advantages or the estimator's entries, and log-probabilities or the actor's."""
        keys = self.tensor_keys
        names: list[NestedKey] = [keys.action_log_prob, keys.forced]
        names += [keys.entropy] if self.actor_network is None else [keys.action, *self.actor_network.in_keys]
        names += [keys.advantage] if self._value_estimator is None else self._value_estimator.in_keys
        return list(dict.fromkeys(names))

    @property
    def out_keys(self) -> list[NestedKey]:
        """The loss, then metrics."""
        ratios = [] if self.actor_network is None else ["ESS", "kl_approx"]
        return ["loss_policy", "entropy", "advantage_mean", "advantage_spread", *ratios]

    def compute(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Compute the loss and its metrics."""
        keys = self.tensor_keys
        tensordict, advantages = advantages_of(tensordict, keys.advantage, self._value_estimator)
        free = self.free_steps(tensordict)
        metrics = self.advantage_metrics(advantages, free)
        advantages = zero_masked(advantages, free)  # masked entries may be NaN, and 0 times NaN is NaN
        log_probs = read(tensordict, keys.action_log_prob)
        if self.actor_network is None:
            if torch.is_grad_enabled() and not log_probs.requires_grad:
                raise ValueError(
                    f"{keys.action_log_prob!r} carries no gradient, so that nothing would be learned from it: roll out "
                    f"with gradients (env.parallel_rollout outside torch.no_grad), or give the loss an actor that "
                    f"scores decisions again"
                )
            objective = score_function(log_probs, advantages)
            if tensordict.get(keys.entropy, None) is not None:
                metrics["entropy"] = self.metric(read(tensordict, keys.entropy), free)
        else:
            old = zero_masked(log_probs.detach(), free)
            log_probs, entropy = score_actions(tensordict, self.actor_network, keys.action)
            log_probs = zero_masked(log_probs, free)
            if self.off_policy:
                objective = importance_weighted(log_probs, old, advantages, max_weight=self.max_weight)
            else:
                objective = score_function(log_probs, advantages)
            metrics |= {"entropy": self.metric(entropy, free), **self.ratio_metrics(log_probs - old, free)}
        if self.average != "free" and free is not None:
            objective, free = torch.where(free, objective, 0.0), self.steps(tensordict)
        if self.average == "window" and self.reduction == "mean":
            objective, free = F.pad(objective, (0, 1)), with_last_byte(free, objective)  # [*B, T + 1]
        return {"loss_policy": self.reduce(-objective, free), **metrics}


class EntropyBonus(StepLoss):
    """Entropy bonus: ``L = -mean_t H_t`` over free decisions. Writes ``loss_entropy`` and ``entropy``."""

    @dataclass
    class _AcceptedKeys:
        entropy: NestedKey = "entropy"
        forced: NestedKey = "forced"

    out_keys = ["loss_entropy", "entropy"]

    def compute(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Compute the loss and its metric."""
        entropy, free = read(tensordict, self.tensor_keys.entropy), self.free_steps(tensordict)
        return {"loss_entropy": self.reduce(-entropy, free), "entropy": self.metric(entropy, free)}
