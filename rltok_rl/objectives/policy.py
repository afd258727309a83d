"""What the two policy losses share: advantages, scores of decisions, figures."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torch.distributed import ProcessGroup
from torchrl.objectives import LossModule
from torchrl.objectives.utils import build_value_estimator
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.functional.metrics import approximate_kl, effective_sample_size, mean_and_spread
from rltok_rl.objectives.base import MissingEntryError, read
from rltok_rl.objectives.estimators import check_estimator


def as_estimator(
    loss: LossModule,
    estimator: ValueEstimatorBase | type[ValueEstimatorBase] | str | None,
    process_group: ProcessGroup | None,
    options: dict[str, Any],
) -> ValueEstimatorBase | None:
    """An estimator for a loss: given as itself, as a class, or by name.

    One that is made here spans the loss's processes, and takes actor and critic from the loss where it wants them.
    """
    if isinstance(estimator, str):
        name = check_estimator(estimator, options)
        return build_value_estimator(loss, name, **{"process_group": process_group, **options})
    if isinstance(estimator, type):
        return estimator(**options)
    if options:
        raise ValueError(f"options {sorted(options)} belong to an estimator given by name, got {estimator!r}")
    return estimator


def pass_keys_on(loss: LossModule, log_prob: NestedKey) -> None:
    """Tell the estimator of a loss where the loss looks, for what and for which steps."""
    estimator = loss._value_estimator
    if estimator is None:
        return
    keys = {**vars(loss.tensor_keys), "sample_log_prob": log_prob}
    accepted = type(estimator.tensor_keys).__dataclass_fields__
    estimator.set_keys(**{name: key for name, key in keys.items() if name in accepted})
    if hasattr(estimator, "mask_key") and loss.loss_mask_key != "auto":
        estimator.mask_key = loss.loss_mask_key


def advantages_of(
    tensordict: TensorDictBase, key: NestedKey, estimator: ValueEstimatorBase | None
) -> tuple[TensorDictBase, Tensor]:
    """Advantages [*B, T], detached, and the tensordict with what the estimator added; the caller's is left alone."""
    if tensordict.get(key, None) is None:
        if estimator is None:
            raise MissingEntryError(tensordict, key, ", or the loss an estimator that makes it")
        tensordict = estimator(tensordict.copy())
    return tensordict, read(tensordict, key).detach()


def scores_of(tensordict: TensorDictBase, actor: TensorDictModuleBase, action: NestedKey) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [*B, T] that an actor gives to the decisions of a rollout."""
    policy = actor.get_dist(tensordict)
    log_probs, entropy = policy.log_prob(tensordict.get(action)), policy.entropy()
    shape = tuple(tensordict.batch_size)
    return log_probs.reshape(shape), entropy.reshape(shape)


def update_figures(
    log_ratios: Tensor, mask: Tensor | None, process_group: ProcessGroup | None = None
) -> dict[str, Tensor]:
    """How far the policy has moved from the one that decided."""
    log_ratios = log_ratios.detach()
    return {
        "ESS": effective_sample_size(log_ratios, mask, process_group=process_group),
        "kl_approx": approximate_kl(log_ratios, mask, process_group=process_group),
    }


def advantage_figures(
    advantages: Tensor, mask: Tensor | None, process_group: ProcessGroup | None = None
) -> dict[str, Tensor]:
    """Mean and spread of the advantages that decisions were judged by."""
    mean, spread = mean_and_spread(advantages, mask, process_group=process_group)
    return {"advantage_mean": mean, "advantage_spread": spread}


def carries_gradient(log_probs: Tensor, key: NestedKey) -> Tensor:
    """Refuse to train on log-probabilities that lead nowhere."""
    if torch.is_grad_enabled() and not log_probs.requires_grad:
        raise ValueError(
            f"{key!r} carries no gradient, so that nothing would be learned from it: roll out with gradients "
            f"(env.parallel_rollout outside torch.no_grad), or give the loss an actor that scores decisions again"
        )
    return log_probs
