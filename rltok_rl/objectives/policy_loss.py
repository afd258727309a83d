"""Shared parts of the policy losses: estimators, advantages, scores and metrics."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives.utils import ValueEstimators, build_value_estimator
from torchrl.objectives.value import (
    GAE,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    ValueEstimatorBase,
    VTrace,
)

from rltok_rl.functional.policy_metrics import approximate_kl, effective_sample_size, mean_and_spread
from rltok_rl.functional.reduction import Mask
from rltok_rl.objectives.base import MissingEntryError, StepReductions, read
from rltok_rl.objectives.estimators import check_estimator


class PolicyLoss(StepReductions):
    """A loss of decisions and their advantages; also a ``LossModule``."""

    _value_estimator: ValueEstimatorBase | None

    def build_estimator(self, estimator: Any, options: dict[str, Any]) -> ValueEstimatorBase | None:
        """Return an estimator: an instance as it is; a class, a name or TorchRL's enum with its options.

        Names are this package's and those of TorchRL's enum, such as ``"GAE"``, in any case as TorchRL reads them.
        """
        if isinstance(estimator, str):
            by_name: dict[str, Any] = {kind.name.lower(): kind for kind in ValueEstimators}
            estimator = by_name.get(estimator.lower(), estimator)
        if isinstance(estimator, ValueEstimators):
            if estimator is ValueEstimators.VTrace and getattr(self, "actor_network", None) is None:
                raise ValueError("VTrace needs a loss with an actor, which scores the decisions again, got actor=None")
            return build_value_estimator(self, estimator, **options)
        if isinstance(estimator, str):
            name = check_estimator(estimator, options)
            return build_value_estimator(self, name, **{"process_group": self.process_group, **options})
        if isinstance(estimator, type):
            estimator, options = estimator(**options), {}
        if options:
            raise ValueError(f"options {sorted(options)} belong to an estimator given by name, got {estimator!r}")
        if not isinstance(estimator, (ValueEstimatorBase, type(None))):
            raise TypeError(
                f"estimator must be a torchrl.objectives.value.ValueEstimatorBase, such as ReturnEstimator, a class or "
                f"name of one, or None, got a {type(estimator).__name__}"
            )
        return estimator

    def pass_keys(self, log_prob: NestedKey) -> None:
        """Give the estimator the keys and the mask of this loss."""
        estimator: Any = self._value_estimator
        if estimator is None:
            return
        keys = {**vars(self.tensor_keys), "sample_log_prob": log_prob}
        accepted = type(estimator.tensor_keys).__dataclass_fields__
        estimator.set_keys(**{name: key for name, key in keys.items() if name in accepted})
        if hasattr(estimator, "mask_key") and self.loss_mask_key != "auto":
            estimator.mask_key = self.loss_mask_key

    def advantage_metrics(self, advantages: Tensor, mask: Mask) -> dict[str, Tensor]:
        """Mean and spread of the advantages."""
        mean, spread = mean_and_spread(advantages, mask, process_group=self.process_group)
        return {"advantage_mean": mean, "advantage_spread": spread}

    def ratio_metrics(self, log_ratios: Tensor, mask: Mask) -> dict[str, Tensor]:
        """Distance between the policy and the one that decided."""
        metrics = {"ESS": effective_sample_size, "kl_approx": approximate_kl}
        return {name: f(log_ratios.detach(), mask, process_group=self.process_group) for name, f in metrics.items()}


def advantages_of(
    tensordict: TensorDictBase, key: NestedKey, estimator: ValueEstimatorBase | None
) -> tuple[TensorDictBase, Tensor]:
    """Return the rollout with its advantages, and these [*B, T], detached; the caller's rollout is unchanged."""
    if tensordict.get(key, None) is None:
        if estimator is None:
            raise MissingEntryError(tensordict, key, ", or the loss an estimator that makes it")
        stock = isinstance(estimator, (GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace))
        value = estimator.tensor_keys.value
        if stock and estimator.value_network is None and tensordict.get(value, None) is None:
            raise MissingEntryError(tensordict, value, f", or {type(estimator).__name__} a value_network that makes it")
        tensordict = estimator(tensordict.copy())
    return tensordict, read(tensordict, key).detach()


def score_actions(tensordict: TensorDictBase, actor: TensorDictModuleBase, action: NestedKey) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [*B, T] of the rollout's decisions under an actor."""
    policy = actor.get_dist(tensordict)
    shape = tuple(tensordict.batch_size)
    return policy.log_prob(tensordict.get(action)).reshape(shape), policy.entropy().reshape(shape)
