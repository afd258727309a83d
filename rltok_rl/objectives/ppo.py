"""PPO for boundaries: TorchRL's loss, without the need of a critic, with figures of the steps that count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from rltok_rl.functional.metrics import clip_fraction, mean_and_spread
from rltok_rl.functional.policy_gradient import clipped_ratio
from rltok_rl.functional.reduction import loss_mean, masked_mean, zero_masked
from rltok_rl.objectives.base import StepLoss, free_steps, read
from rltok_rl.objectives.estimators import ESTIMATORS, OLD_ESTIMATORS, check_estimator
from rltok_rl.objectives.policy import advantage_figures, advantages_of, pass_keys_on, scores_of, update_figures

NAMES = (*ESTIMATORS, *OLD_ESTIMATORS)
"""Estimators of this package, under their old names too."""
UNSUPPORTED = ("advantage_norm", "delay_actor", "max_importance_ratio", "normalize_advantage_exclude_dims")
"""Options of TorchRL's loss that this one does not have, and refuses rather than ignores."""


class BoundaryClipPPOLoss(ClipPPOLoss):
    """The clipped objective for boundary decisions.

        L = -mean_t min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t),      r_t = pi(a_t) / pi_old(a_t)

    A :class:`torchrl.objectives.ClipPPOLoss` with these differences. No critic is needed, also where advantages are
    made inside. The estimators of this package can be named:
    ``loss.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")``.
    Forced and masked decisions have no part in the loss, nor in any figure: ``ESS`` (a share in (0, 1]), ``kl_approx``,
    ``clip_fraction``, ``entropy``, ``advantage_mean``, ``advantage_spread``. The actor is used as it is
    (``functional=False``), because policy and language model share parameters.

    Args:
        actor_network: scores the decisions.
        critic_network: a critic, or None.
        clip_epsilon: epsilon, or (low, high).
        entropy_coeff: weight of the entropy bonus; can be scheduled, from 0 too.
        critic_coeff: weight of the critic's loss.
        normalize_advantage: give advantages mean 0 and spread 1, over the decisions that count.
        process_group: processes that train together; the mean is over the decisions of all.
        **options: of :class:`torchrl.objectives.ClipPPOLoss`, save those in :data:`UNSUPPORTED`.
    """

    @dataclass
    class _AcceptedKeys(ClipPPOLoss._AcceptedKeys):
        """TorchRL's keys, and which decisions were forced."""

        forced: NestedKey = "forced"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    SUPPORTED_VALUE_ESTIMATORS = (*ClipPPOLoss.SUPPORTED_VALUE_ESTIMATORS, *NAMES)
    loss_mask_key = StepLoss.loss_mask_key

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        critic_network: TensorDictModuleBase | None = None,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        entropy_coeff: float = 0.0,
        critic_coeff: float | None = None,
        process_group: Any = None,
        **options: Any,
    ) -> None:
        refused = sorted(name for name in UNSUPPORTED if options.get(name))
        if refused:
            raise ValueError(f"options must be those of ClipPPOLoss without {list(UNSUPPORTED)}, got {refused}")
        if not isinstance(entropy_coeff, (int, float, Tensor)):
            raise TypeError(f"entropy_coeff must be one number: there is one kind of decision, got {entropy_coeff!r}")
        options.setdefault("functional", False)
        super().__init__(
            actor_network,
            critic_network,
            clip_epsilon=clip_epsilon,
            entropy_coeff=entropy_coeff,
            critic_coeff=critic_coeff,
            **options,
        )
        self.process_group = process_group

    @property
    def out_keys(self) -> list[NestedKey]:
        """Losses, then figures."""
        losses = ["loss_objective", *(["loss_entropy"] if self.entropy_bonus else [])]
        losses += ["loss_critic"] if self._has_critic else []
        return [*losses, "entropy", "clip_fraction", "ESS", "kl_approx", "advantage_mean", "advantage_spread"]

    @out_keys.setter
    def out_keys(self, values: list[NestedKey]) -> None:
        self._out_keys = values

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A tensordict without batch dimension: losses and figures."""
        keys = self.tensor_keys
        tensordict = tensordict.copy()  # a critic writes its values
        estimator = self._value_estimator
        if estimator is None and tensordict.get(keys.advantage, None) is None and self.critic_network is not None:
            estimator = self.value_estimator  # TorchRL's default, generalised advantages of the critic
        tensordict, advantages = advantages_of(tensordict, keys.advantage, estimator)
        free, group = free_steps(self, tensordict, keys.forced), self.process_group
        figures = advantage_figures(advantages, free, group)
        if self.normalize_advantage:
            mean, spread = mean_and_spread(advantages, free, process_group=group)
            advantages = (advantages - mean) / spread.clamp(min=1e-6)
        old = read(tensordict, keys.sample_log_prob).detach()
        log_probs, entropy = scores_of(tensordict, self.actor_network, keys.action)
        clip = self._epsilons()
        log_ratios = zero_masked(log_probs - old, free)
        objective = clipped_ratio(log_ratios, torch.zeros_like(log_ratios), advantages, clip)
        out = {"loss_objective": self._reduced(-objective, free)}
        if self.entropy_bonus:
            out["loss_entropy"] = self._reduced(-self.entropy_coeff * entropy, free)
        if self._has_critic:
            error, *_ = self.loss_critic(tensordict)
            out["loss_critic"] = self._reduced(error.reshape(log_probs.shape), free)
        figures |= {
            "entropy": masked_mean(entropy.detach(), free, process_group=group),
            "clip_fraction": clip_fraction(log_ratios.detach(), clip, free, process_group=group),
            **update_figures(log_ratios, free, group),
        }
        return TensorDict({**out, **figures})

    def _epsilons(self) -> tuple[float, float]:
        if self._asymmetric_clip:
            return self.clip_epsilon_low, self.clip_epsilon_high
        return self.clip_epsilon, self.clip_epsilon

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> BoundaryClipPPOLoss:
        """Judge decisions by another estimator: in TorchRL's ways, or by one of the names of this package.

        One that is named spans the loss's processes; an instance takes the loss's keys over.
        """
        if isinstance(value_type, str) and value_type in NAMES:
            value_type = check_estimator(value_type, hyperparams)
            hyperparams = {"process_group": self.process_group, **hyperparams}
        super().make_value_estimator(value_type, **hyperparams)
        self._forward_value_estimator_keys()
        return self

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        pass_keys_on(self, self.tensor_keys.sample_log_prob)
        self._set_in_keys()

    def _reduced(self, values: Tensor, mask: Tensor | None) -> Tensor:
        if self.reduction == "none":
            return zero_masked(values, mask)
        if self.reduction == "sum":
            return zero_masked(values, mask).sum()
        return loss_mean(values, mask, process_group=self.process_group)
