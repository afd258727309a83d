"""Advantage estimators with a critic: generalised advantages, and V-trace for decisions of another policy."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.policy_gradient import vtrace
from rltok_rl.functional.returns import check_gamma, generalized_advantage
from rltok_rl.objectives.base import under_next
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View


@register_value_estimator("critic_advantage", default_kwargs={"gamma": 0.99, "lmbda": 0.95})
class CriticAdvantage(ReturnEstimator):
    """Generalised advantages, registered as ``"critic_advantage"``.

    Values are read from the rollout (``state_value`` and ``("next", "state_value")``) if it has them, else computed
    with the critic: once before and once after the step, never under vmap, so that critics that pool tokens work.

    Args:
        gamma: discount in [0, 1].
        lmbda: in [0, 1]; 1 is the return minus the value, 0 the one-step error.
        value_network: the critic; None needs the values in the rollout.
        **options: of :class:`ReturnEstimator`; the baseline is applied to the advantages.
    """

    def __init__(self, *, gamma: float, lmbda: float, value_network: Any = None, **options: Any) -> None:
        super().__init__(gamma=gamma, value_network=value_network, **options)
        self.lmbda = lmbda

    @property
    def lmbda(self) -> float:
        """The weight of later steps; can be changed, and is part of the state."""
        return self._lmbda

    @lmbda.setter
    def lmbda(self, value: float) -> None:
        self._lmbda = float(check_gamma(value, "lmbda"))

    def get_extra_state(self) -> dict[str, float]:
        """Numbers in the state besides tensors."""
        return {**super().get_extra_state(), "lmbda": self.lmbda}

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards, ends, and the critic's entries before and after a step."""
        keys = self.tensor_keys
        names: list[NestedKey] = [under_next(keys.reward), under_next(keys.done), under_next(keys.terminated)]
        values = [keys.value] if self.value_network is None else self.value_network.in_keys
        return [*names, *values, *map(under_next, values)]

    @dispatch
    def forward(
        self,
        tensordict: TensorDictBase,
        *,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        time_dim: int | None = None,
    ) -> TensorDictBase:
        """Write ``advantage`` and ``value_target`` [*B, T, 1].

        Args:
            tensordict: [*B, T].
            params: parameters of a functional critic.
            target_params: its parameters for the value after each step; None uses ``params``.
            time_dim: dimension of time, for this call.
        """
        view, advantages, target = self._estimate(tensordict, params, target_params, time_dim)
        tensordict.set(self.tensor_keys.advantage, view.to_rollout(self._checked_advantages(advantages, view)))
        tensordict.set(self.tensor_keys.value_target, view.to_rollout(target))
        return tensordict

    def value_estimate(
        self,
        tensordict: TensorDictBase,
        target_params: TensorDictBase | None = None,
        next_value: Tensor | None = None,
        time_dim: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Return the critic's regression target [*B, T, 1]; nothing is written."""
        view, _unused, target = self._estimate(tensordict, None, target_params, time_dim)
        return view.to_rollout(target)

    def _estimate(
        self,
        tensordict: TensorDictBase,
        params: TensorDictBase | None,
        target_params: TensorDictBase | None,
        time_dim: int | None,
    ) -> tuple[View, Tensor, Tensor]:
        """Advantages before the baseline, and the critic's target, [*B, T] each."""
        with nullcontext() if self.differentiable else torch.no_grad():
            dim = self._get_time_dim(time_dim, tensordict)
            view = View(tensordict, dim, self.mask_key)
            values = view.read_value(self.tensor_keys.value, self.value_network, params)
            after = View(tensordict.get("next"), dim, None)
            later_params = params if target_params is None else target_params  # a tensordict has no truth value
            following = after.read_value(self.tensor_keys.value, self.value_network, later_params)
            return view, *self._combine(view, values, following)

    def _combine(self, view: View, values: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        rewards, ends = self._rewards_and_ends(view)
        advantages = generalized_advantage(rewards, values, following, self.gamma, self.lmbda, mask=view.mask, **ends)
        return advantages, advantages + (values if view.mask is None else values.masked_fill(~view.mask, 0.0))

    def _rewards_and_ends(self, view: View) -> tuple[Tensor, dict[str, Any]]:
        keys = self.tensor_keys
        ends = {name: view.find(under_next(getattr(keys, name))) for name in ("done", "terminated")}
        return view.read(under_next(keys.reward)), ends


@register_value_estimator("vtrace_return", default_kwargs={"gamma": 0.99, "lmbda": 1.0})
class VTraceReturn(CriticAdvantage):
    """V-trace advantages for decisions of an earlier policy, registered as ``"vtrace_return"``.

    Args:
        gamma: discount in [0, 1].
        lmbda: in [0, 1].
        actor_network: the current policy; scores the rollout's actions. ``action_log_prob`` is the earlier policy's.
        value_network: the critic; None reads values from the rollout, or uses 0.
        rho_clip: largest weight of a temporal difference.
        c_clip: largest weight of later steps.
        **options: of :class:`CriticAdvantage`.
    """

    @dataclass
    class _AcceptedKeys:
        """All keys of an estimator, since TorchRL ignores inherited ones, and those of the decisions."""

        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"
        steps_to_next_obs: NestedKey = "steps_to_next_obs"
        sample_log_prob: NestedKey = "action_log_prob"
        action: NestedKey = "action"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys

    def __init__(
        self,
        *,
        gamma: float,
        lmbda: float = 1.0,
        actor_network: TensorDictModuleBase,
        value_network: Any = None,
        rho_clip: float = 1.0,
        c_clip: float = 1.0,
        **options: Any,
    ) -> None:
        if not hasattr(actor_network, "get_dist"):
            raise TypeError(f"vtrace_return needs an actor_network that scores decisions, got {actor_network!r}")
        value_network = _zero_critic if value_network is None else value_network
        super().__init__(gamma=gamma, lmbda=lmbda, value_network=value_network, **options)
        self.__dict__["actor_network"] = actor_network  # the loss owns it
        self.rho_clip, self.c_clip = rho_clip, c_clip

    @classmethod
    def for_loss(cls, loss_module: Any, **options: Any) -> VTraceReturn:
        """Build the estimator with a loss's actor and critic."""
        options.setdefault("actor_network", loss_module.actor_network)
        return super().for_loss(loss_module, **options)

    @property
    def in_keys(self) -> list[NestedKey]:
        """Entries of a critic's estimator, and of the actor."""
        keys = self.tensor_keys
        return list(dict.fromkeys([*super().in_keys, keys.action, keys.sample_log_prob, *self.actor_network.in_keys]))

    def _combine(self, view: View, values: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        rewards, ends = self._rewards_and_ends(view)
        inputs = view.rollout.select(*self.actor_network.in_keys, strict=False)
        log_probs = self.actor_network.get_dist(inputs).log_prob(view.rollout.get(self.tensor_keys.action))
        log_probs = log_probs.reshape(view.rollout.batch_size)
        log_ratios = log_probs.movedim(view.time_dim, -1) - view.read(self.tensor_keys.sample_log_prob)
        ends |= {"lmbda": self.lmbda, "rho_clip": self.rho_clip, "c_clip": self.c_clip, "mask": view.mask}
        return vtrace(rewards, values, following, log_ratios, self.gamma, **ends)


class ZeroCritic(TensorDictModuleBase):
    """A critic without parameters whose values are 0, for losses that require a critic.

    Args:
        in_keys: an entry of the rollout, read for its shape and device.
        out_keys: entry of the zeros.
    """

    def __init__(self, in_keys: tuple[NestedKey, ...] = ("done",), out_keys: tuple[NestedKey, ...] = ("state_value",)):
        super().__init__()
        self.in_keys, self.out_keys = list(in_keys), list(out_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write zeros [*B, 1]."""
        like = tensordict.get(self.in_keys[0])
        zeros = torch.zeros(*tensordict.batch_size, 1, device=like.device)
        return tensordict.set(self.out_keys[0], zeros)


_zero_critic = ZeroCritic()
