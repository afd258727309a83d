"""Advantage estimators with a critic: generalised advantages, and V-trace for decisions of another policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.policy_gradient import vtrace
from rltok_rl.functional.reduction import zero_masked
from rltok_rl.functional.returns import check_gamma, generalized_advantage
from rltok_rl.objectives.base import under_next
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View


@register_value_estimator("critic_advantage", default_kwargs={"gamma": 0.99, "lmbda": 0.95})
class CriticAdvantage(ReturnEstimator):
    """Generalised advantages, registered as ``"critic_advantage"``.

    Values are read from the rollout (``state_value`` and ``("next", "state_value")``) if it has them, else computed
    with the critic: once before and once after the step, never under vmap, so that critics that pool tokens work.

    ``lmbda`` in [0, 1] is the weight of later steps: 1 is the return minus the value, 0 the one-step error. Options are
    those of :class:`ReturnEstimator`; the baseline is applied to the advantages.
    """

    rows_per_pass: int | None = None
    """Rows whose values are computed together, to save memory; None is all. A
    :class:`~rltok_rl.training.TrainingStep` sets the rows of a micro-batch."""

    def __init__(
        self, *, gamma: float, lmbda: Annotated[float, "[0, 1]"], value_network: Any = None, **options: Any
    ) -> None:
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
        """Return the non-tensor state."""
        return {**super().get_extra_state(), "lmbda": self.lmbda}

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards, ends, and the critic's entries before and after a step."""
        keys = self.tensor_keys
        names: list[NestedKey] = [under_next(keys.reward), under_next(keys.done), under_next(keys.terminated)]
        values = [keys.value] if self.value_network is None else self.value_network.in_keys
        return [*names, *values, *map(under_next, values)]

    def _estimate(
        self, view: View, params: TensorDictBase | None, target_params: TensorDictBase | None
    ) -> tuple[Tensor, Tensor]:
        keys, critic = self.tensor_keys, self.value_network
        rows = self.rows_per_pass
        values = view.read_value(keys.value, critic, params, rows_per_pass=rows)
        # A tensordict has no truth value.
        params = params if target_params is None else target_params
        after = view.next().read_value(keys.value, critic, params, rows_per_pass=rows)
        ends = {name: view.find(under_next(getattr(keys, name))) for name in ("done", "terminated")}
        return self._combine(view, (view.read(under_next(keys.reward)), values, after), ends | {"mask": view.mask})

    def _combine(self, view: View, inputs: tuple[Tensor, Tensor, Tensor], options: Any) -> tuple[Tensor, Tensor]:
        """The advantages and the value target, from rewards, values and next values."""
        advantages = generalized_advantage(*inputs, self.gamma, self.lmbda, **options)
        return advantages, advantages + zero_masked(inputs[1], view.mask)


@register_value_estimator("vtrace_return", default_kwargs={"gamma": 0.99, "lmbda": 1.0})
class VTraceReturn(CriticAdvantage):
    """V-trace advantages for decisions of an earlier policy, registered as ``"vtrace_return"``.

    ``actor_network`` is the current policy and scores the rollout's actions; ``action_log_prob`` is the earlier
    policy's. Without a critic, values are read from the rollout or 0. ``rho_clip`` is the largest weight of a temporal
    difference, ``c_clip`` that of later steps. Options are those of :class:`CriticAdvantage`.
    """

    @dataclass
    class _AcceptedKeys:  # all keys, because TorchRL ignores inherited ones
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
        value_network = ZeroCritic() if value_network is None else value_network
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

    def _combine(self, view: View, inputs: tuple[Tensor, Tensor, Tensor], options: Any) -> tuple[Tensor, Tensor]:
        entries = view.rollout.select(*self.actor_network.in_keys, strict=False)
        log_probs = self.actor_network.get_dist(entries).log_prob(view.rollout.get(self.tensor_keys.action))
        log_probs = log_probs.reshape(view.rollout.batch_size).movedim(view.time_dim, -1)
        log_ratios = log_probs - view.read(self.tensor_keys.sample_log_prob)
        options |= {"lmbda": self.lmbda, "rho_clip": self.rho_clip, "c_clip": self.c_clip}
        return vtrace(*inputs, log_ratios, self.gamma, **options)


class ZeroCritic(TensorDictModuleBase):
    """A critic without parameters whose values are 0, for losses that require a critic.

    ``in_keys`` names an entry of the rollout that is read for its shape and device, ``out_keys`` that of the zeros.
    """

    def __init__(self, in_keys: tuple[NestedKey, ...] = ("done",), out_keys: tuple[NestedKey, ...] = ("state_value",)):
        super().__init__()
        self.in_keys, self.out_keys = list(in_keys), list(out_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write zeros [*B, 1]."""
        like = tensordict.get(self.in_keys[0])
        zeros = torch.zeros(*tensordict.batch_size, 1, device=like.device)
        return tensordict.set(self.out_keys[0], zeros)
