"""PPO for boundaries: TorchRL's loss, without the need for a critic, with metrics of unmasked steps."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torchrl.objectives import ClipPPOLoss, PPOLoss

from rltok_rl.functional.policy_gradient import clipped_ratio
from rltok_rl.functional.policy_metrics import clip_fraction
from rltok_rl.functional.reduction import zero_masked
from rltok_rl.objectives.base import read
from rltok_rl.objectives.estimators import ESTIMATORS, OLD_ESTIMATORS, check_estimator
from rltok_rl.objectives.policy_loss import PolicyLoss, advantages_of, score_actions
from rltok_rl.objectives.time_last import split_rows
from rltok_rl.ranges import check_number
from rltok_rl.utils import did_you_mean

NAMES = (*ESTIMATORS, *OLD_ESTIMATORS)
"""Estimators of this package, also by their old names."""
UNSUPPORTED = ("advantage_norm", "delay_actor", "max_importance_ratio", "normalize_advantage_exclude_dims")
"""Options of TorchRL's loss that are an error here."""
OPTIONS = sorted(
    {
        name
        for kind in (ClipPPOLoss, PPOLoss)
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
)
"""Keyword options of TorchRL's loss, which ignores unknown ones."""


class BoundaryClipPPOLoss(PolicyLoss, ClipPPOLoss):
    """The clipped objective for boundary decisions.

        L = -mean_t min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t),      r_t = pi(a_t) / pi_old(a_t)

    A :class:`torchrl.objectives.ClipPPOLoss` with these differences. It needs no critic. It takes the estimators of
    this package by name: ``loss.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")``.
    Forced and masked decisions count neither in the loss nor in the metrics ``ESS`` (a share in (0, 1]),
    ``kl_approx``, ``clip_fraction``, ``entropy``, ``advantage_mean``, ``advantage_spread``. ``functional=False`` is
    the default, because policy and language model share parameters.

    Args:
        actor_network: scores the decisions.
        critic_network: a critic, or None.
        clip_epsilon: epsilon, or (low, high).
        entropy_coeff: weight of the entropy bonus; can be scheduled, also from 0.
        process_group: processes that train together; the mean is over the decisions of all.
        **options: of :class:`torchrl.objectives.ClipPPOLoss`, except :data:`UNSUPPORTED`.
    """

    @dataclass
    class _AcceptedKeys(ClipPPOLoss._AcceptedKeys):
        forced: NestedKey = "forced"

    default_keys = _AcceptedKeys
    rows_per_pass: int | None = None
    """Rows for which the critic keeps its graph at a time, to save memory; None is all. A
    :class:`~rltok_rl.training.TrainingStep` sets the rows of a micro-batch."""
    SUPPORTED_VALUE_ESTIMATORS = (*ClipPPOLoss.SUPPORTED_VALUE_ESTIMATORS, *NAMES)

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        critic_network: TensorDictModuleBase | None = None,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        entropy_coeff: float = 0.0,
        process_group: Any = None,
        **options: Any,
    ) -> None:
        refused = sorted(name for name in UNSUPPORTED if options.get(name))
        if refused:
            raise ValueError(f"options must be those of ClipPPOLoss without {list(UNSUPPORTED)}, got {refused}")
        if unknown := next((name for name in options if name not in OPTIONS), None):
            in_one = unknown in ("clip_low", "clip_high")  # the names on the command line
            hint = "; write clip_epsilon=(low, high)" if in_one else did_you_mean(unknown, {*OPTIONS} - {*UNSUPPORTED})
            raise TypeError(f"options must be those of ClipPPOLoss, got {unknown!r}{hint}")
        for bound in clip_epsilon if isinstance(clip_epsilon, (tuple, list)) else (clip_epsilon,):
            check_number("clip_epsilon", bound, "[0, inf)")
        if not isinstance(entropy_coeff, (int, float, Tensor)):
            raise TypeError(f"entropy_coeff must be one number: there is one kind of decision, got {entropy_coeff!r}")
        options = {"functional": False, "clip_epsilon": clip_epsilon, "entropy_coeff": entropy_coeff, **options}
        super().__init__(actor_network, critic_network, **options)
        self.process_group = process_group

    @property
    def out_keys(self) -> list[NestedKey]:
        """Losses, then metrics."""
        losses = ["loss_objective", *(["loss_entropy"] if self.entropy_bonus else [])]
        losses += ["loss_critic"] if self._has_critic else []
        return [*losses, "entropy", "clip_fraction", "ESS", "kl_approx", "advantage_mean", "advantage_spread"]

    @out_keys.setter
    def out_keys(self, values: list[NestedKey]) -> None:
        self._out_keys = values

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return losses and metrics in a tensordict without batch dimension."""
        keys = self.tensor_keys
        tensordict = tensordict.copy()  # a critic writes its values
        estimator = self._value_estimator
        if estimator is None and tensordict.get(keys.advantage, None) is None and self.critic_network is not None:
            estimator = self.value_estimator  # TorchRL's default, generalised advantages of the critic
        tensordict, advantages = advantages_of(tensordict, keys.advantage, estimator)
        free = self.free_steps(tensordict)
        metrics = self.advantage_metrics(advantages, free)
        if self.normalize_advantage:
            mean, spread = metrics["advantage_mean"], metrics["advantage_spread"]
            advantages = (advantages - mean) / spread.clamp(min=1e-6)
        old = read(tensordict, keys.sample_log_prob).detach()
        log_probs, entropy = score_actions(tensordict, self.actor_network, keys.action)
        clip = (self.clip_epsilon_low, self.clip_epsilon_high) if self._asymmetric_clip else (self.clip_epsilon,) * 2
        log_ratios = zero_masked(log_probs - old, free)
        objective = clipped_ratio(log_ratios, torch.zeros_like(log_ratios), advantages, clip)
        losses = {"loss_objective": self.reduce(-objective, free)}
        if self.entropy_bonus:
            losses["loss_entropy"] = self.reduce(-self.entropy_coeff * entropy, free)
        if self._has_critic:
            losses["loss_critic"] = self.reduce(self._critic_error(tensordict).reshape(log_probs.shape), free)
        metrics |= {
            "entropy": self.metric(entropy, free),
            "clip_fraction": clip_fraction(log_ratios.detach(), clip, free, process_group=self.process_group),
            **self.ratio_metrics(log_ratios, free),
        }
        return TensorDict({**losses, **metrics})

    def _critic_error(self, tensordict: TensorDictBase) -> Tensor:
        """Return the critic's error at each step; with several passes, the critic runs again in the backward pass."""

        def error(rows: TensorDictBase) -> Tensor:
            return self.loss_critic(rows.copy())[0]  # which writes values that it reads when it runs again

        names, last = tensordict.names, tensordict.batch_dims - 1
        passes = split_rows(tensordict, self.rows_per_pass, names.index("time") if "time" in names else last)
        if len(passes) == 1:
            return error(tensordict)
        return torch.cat([checkpoint(error, rows, use_reentrant=False) for rows in passes])

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> BoundaryClipPPOLoss:
        """Replace the estimator, in TorchRL's ways or by one of this package's names."""
        if isinstance(value_type, str) and value_type in NAMES:
            value_type = check_estimator(value_type, hyperparams)
            hyperparams = {"process_group": self.process_group, **hyperparams}
        super().make_value_estimator(value_type, **hyperparams)
        self._forward_value_estimator_keys()
        return self

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        self.pass_keys(self.tensor_keys.sample_log_prob)
        self._set_in_keys()
