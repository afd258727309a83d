"""Advantage estimators without a critic, as TorchRL value estimators.

Each reads rewards from a rollout, calls one function of :mod:`rltok_rl.functional`, and writes ``advantage`` and
``value_target``. They take any TorchRL rollout ``[*B, T]``, not only an environment of text.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torchrl.objectives.utils import get_value_estimator_entry, register_value_estimator
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.functional import baselines
from rltok_rl.functional.returns import check_gamma, discounted_return
from rltok_rl.objectives.base import under_next
from rltok_rl.objectives.baseline import Baseline, as_baseline, check_advantages, name_of
from rltok_rl.objectives.view import MaskKey, View
from rltok_rl.utils import did_you_mean


class ReturnEstimator(ValueEstimatorBase):
    """Discounted return, and what is left of it beyond a baseline.

        value_target = G_t = R_{t+1} + gamma G_{t+1}            advantage = baseline(G)_t

    Registered in TorchRL as ``"discounted_return"``, ``"batch_centred"``, ``"leave_one_out"`` and ``"z_normalised"``.

    An estimator of one's own replaces ``_returns(view)``, from a :class:`~rltok_rl.objectives.view.View` of the rollout
    to returns [*B, T], or ``_advantages(returns, view)``, from those to advantages [*B, T]. The latter takes the
    place of the baseline, and none may be given beside it; one that asks for the baseline too, through
    ``super()._advantages(returns, view)``, says so by ``uses_baseline = True`` in the class.

    Args:
        gamma: discount in [0, 1].
        baseline: a key of :data:`~rltok_rl.functional.baselines.BASELINES`; a function of their signature,
            ``(returns, *, mask, process_group) -> advantages``, all [*B, T]; or a :class:`torch.nn.Module` of that
            signature, whose buffers are part of the estimator's state. A class of such is made here.
        value_network: a critic; its value is taken from the return before the baseline if ``subtract_value``.
        subtract_value: see there. Reads ``state_value`` from the rollout where it is, and asks the critic otherwise.
        mask_key: bool entry that tells which steps are real; ``"auto"`` takes ``("collector", "mask")`` if it is there.
        process_group: let the baseline span the rows of all its processes.
        time_dim: dimension of time; None finds the one named "time", or takes the last.
        differentiable: let gradients reach the rewards.
        device: not used: an estimator holds no tensors.

    Example:
        >>> from tensordict import TensorDict
        >>> rollout = TensorDict({"next": {"reward": torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])}}, [2, 2])
        >>> ReturnEstimator(gamma=1.0, baseline="leave_one_out")(rollout)["advantage"].squeeze(-1)
        tensor([[-4., -2.],
                [ 4.,  2.]])
    """

    uses_baseline = False
    """Whether an ``_advantages`` of one's own asks for the baseline; that of this class does."""

    def __init__(
        self,
        *,
        gamma: float,
        baseline: str | Baseline | type[nn.Module] = "none",
        value_network: Any = None,
        subtract_value: bool = False,
        mask_key: MaskKey = "auto",
        process_group: ProcessGroup | None = None,
        time_dim: int | None = None,
        differentiable: bool = False,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(value_network=value_network, differentiable=differentiable, device=device)
        self.gamma = gamma
        self.baseline = as_baseline(baseline)
        if self.baseline is not baselines.no_baseline and self._judges_alone:
            raise ValueError(
                f"baseline must be 'none' with {type(self).__name__}, whose own _advantages takes its place, "
                f"got {name_of(self.baseline)!r} (baseline=none on the command line; uses_baseline = True in the class "
                f"where it asks for one)"
            )
        self.subtract_value, self.mask_key, self.process_group = subtract_value, mask_key, process_group
        self.time_dim = time_dim

    @property
    def gamma(self) -> float:
        """The discount; may be set anew, and is part of the state that is saved.

        A number and not a buffer: a loss cast to bfloat16 would turn a buffer of 0.99 into 0.988, and powers of a
        number are taken on the host, where reading a tensor would stall the device.
        """
        return self._gamma

    @gamma.setter
    def gamma(self, value: float) -> None:
        self._gamma = float(check_gamma(value))

    def get_extra_state(self) -> dict[str, float]:
        """Numbers that a checkpoint carries beside tensors."""
        return {"gamma": self.gamma}

    def set_extra_state(self, state: dict[str, float]) -> None:
        """Take such numbers back."""
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def in_keys(self) -> list[NestedKey]:
        """What is read; the base class would derive it from a critic."""
        keys = self.tensor_keys
        own: list[NestedKey] = [under_next(keys.reward), under_next(keys.done)]
        if self.subtract_value and self.value_network is not None:
            own += [key for key in self.value_network.in_keys if key not in own]
        return own

    @dispatch
    def forward(
        self,
        tensordict: TensorDictBase,
        *,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        time_dim: int | None = None,
    ) -> TensorDictBase:
        """Write ``advantage`` and ``value_target`` [*B, T, 1] into the rollout.

        Args:
            tensordict: [*B, T].
            params: parameters of the critic, where it is functional.
            target_params: not used: there is no bootstrap.
            time_dim: dimension of time, of this call.
        """
        with nullcontext() if self.differentiable else torch.no_grad():
            view = View(tensordict, self._get_time_dim(time_dim, tensordict), self.mask_key)
            returns = self._returns(view)
            judged = returns
            if self.subtract_value:
                judged = returns - view.read_value(self.tensor_keys.value, self.value_network, params)
            advantages = self._beyond_baseline(judged, view)
        tensordict.set(self.tensor_keys.advantage, view.to_rollout(advantages))
        tensordict.set(self.tensor_keys.value_target, view.to_rollout(returns))
        return tensordict

    def value_estimate(
        self,
        tensordict: TensorDictBase,
        target_params: TensorDictBase | None = None,
        next_value: Tensor | None = None,
        time_dim: int | None = None,
        **_: Any,
    ) -> Tensor:
        """The return alone, [*B, T, 1]; nothing is written."""
        with nullcontext() if self.differentiable else torch.no_grad():
            view = View(tensordict, self._get_time_dim(time_dim, tensordict), self.mask_key)
            return view.to_rollout(self._returns(view))

    def _returns(self, view: View) -> Tensor:
        keys = self.tensor_keys
        return discounted_return(
            view.read(under_next(keys.reward)),
            self.gamma,
            done=view.find(under_next(keys.done)),
            mask=view.mask,
        )

    @property
    def _judges_alone(self) -> bool:
        """Whether a subclass makes advantages without the baseline."""
        return type(self)._advantages is not ReturnEstimator._advantages and not self.uses_baseline

    def _beyond_baseline(self, returns: Tensor, view: View) -> Tensor:
        """Advantages [*B, T], with that shape."""
        own = type(self)._advantages is not ReturnEstimator._advantages
        maker = f"{type(self).__name__}._advantages" if own else f"baseline {name_of(self.baseline)}"
        return check_advantages(self._advantages(returns, view), returns, maker)

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        """[*B, T] to [*B, T]; what subclasses replace."""
        return self.baseline(returns, mask=view.mask, process_group=self.process_group)


class GroupCentred(ReturnEstimator):
    """Returns compared among rows that read the same text, registered as ``"group_centred"``.

    Rows come in groups of ``group_size``, one after the other, as
    :class:`~rltok_rl.data.RepeatedSource` deals them.

    Args:
        gamma: discount in [0, 1].
        group_size: rows of a group.
        exclude_self: compare with the others of the group (unbiased) or with all of it (the paper's habit).
        **options: of :class:`ReturnEstimator`.
    """

    def __init__(self, *, gamma: float, group_size: int, exclude_self: bool = True, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        self.group_size, self.exclude_self = group_size, exclude_self

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        return baselines.group_centred(
            returns, group_size=self.group_size, exclude_self=self.exclude_self, mask=view.mask
        )


class RunningMeanReturn(ReturnEstimator):
    """Returns beyond the mean of earlier batches at the same position, registered as ``"running_mean"``.

    Call it once per batch, in training mode: each call remembers the batch that it judged.

    Args:
        gamma: discount in [0, 1].
        num_steps: T, positions to remember.
        decay: what a batch weighs after one more.
        **options: of :class:`ReturnEstimator`.
    """

    total: Tensor
    count: Tensor

    def __init__(self, *, gamma: float, num_steps: int, decay: float = 0.9, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        self.decay = decay
        for name, value in baselines.RunningMean.empty(num_steps)._asdict().items():
            self.register_buffer(name, value)

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        if len(self.total) != returns.shape[-1]:
            raise ValueError(f"num_steps must be the {returns.shape[-1]} steps of the rollout, got {len(self.total)}")
        state = baselines.RunningMean(self.total, self.count)
        advantages, state = baselines.running_mean(
            returns, state, decay=self.decay, mask=view.mask, process_group=self.process_group
        )
        if self.training:
            self.total.copy_(state.total)
            self.count.copy_(state.count)
        return advantages


class ControlVariateReturn(ReturnEstimator):
    """Returns beyond what a regression on other rows expects, registered as ``"control_variate"``.

    Args:
        gamma: discount in [0, 1].
        regressor_keys: entries [*B, T] or [*B, T, F] to regress on. Nothing there may depend on the decisions from t
            on; what the early exit makes of the text never does.
        hindsight: regress on discounted sums of these entries over the steps to come, which is what returns are sums
            over, beside the entries themselves. The text is given, whatever the decisions, so that its future may be
            looked at.
        ridge: see :func:`~rltok_rl.functional.baselines.control_variate`.
        folds: see there.
        **options: of :class:`ReturnEstimator`.
    """

    def __init__(
        self,
        *,
        gamma: float,
        regressor_keys: tuple[NestedKey, ...] = (("next", "early_log_prob"),),
        hindsight: bool = True,
        ridge: float = 1e-3,
        folds: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, **options)
        self.regressor_keys, self.hindsight = tuple(regressor_keys), hindsight
        self.ridge, self.folds = ridge, folds

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards and regressors."""
        return [*super().in_keys, *self.regressor_keys]

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        features = torch.cat([view.read_features(key) for key in self.regressor_keys], -1)  # [*B, T, F]
        if self.hindsight:
            done = view.find(under_next(self.tensor_keys.done))
            ahead = [discounted_return(x, self.gamma, done=done, mask=view.mask) for x in features.unbind(-1)]
            features = torch.cat((features, torch.stack(ahead, -1)), -1)
        return baselines.control_variate(
            returns, features, ridge=self.ridge, folds=self.folds, mask=view.mask, process_group=self.process_group
        )


for _name, _baseline in (("discounted_return", "none"), *((name, name) for name in baselines.BASELINES)):
    if _name != "none":
        register_value_estimator(_name, default_kwargs={"gamma": 0.99, "baseline": _baseline})(ReturnEstimator)
register_value_estimator("group_centred", default_kwargs={"gamma": 0.99, "group_size": 2})(GroupCentred)
register_value_estimator("running_mean", default_kwargs={"gamma": 0.99})(RunningMeanReturn)
register_value_estimator("control_variate", default_kwargs={"gamma": 0.99})(ControlVariateReturn)


def make_estimator(name: str, **options: Any) -> ValueEstimatorBase:
    """An estimator by the name it is registered under, ours or TorchRL's.

    Args:
        name: for instance ``"leave_one_out"``.
        **options: of its class.

    Example:
        >>> make_estimator("batch_centred", gamma=0.9).gamma
        0.9
    """
    check_estimator_name(name, options)
    entry = get_value_estimator_entry(name)
    return entry.cls(**{**entry.default_kwargs, **options})


def check_estimator_name(name: str, options: Mapping[str, Any]) -> None:
    """Require one of :data:`ESTIMATORS`, and no other baseline beside one that is named for its own."""
    if name not in ESTIMATORS:
        meant = did_you_mean(str(name), ESTIMATORS, baselines.WORDS)
        raise ValueError(f"name must be one of {list(ESTIMATORS)}, got {name!r}{meant}")
    if name in baselines.BASELINES and options.get("baseline", name) != name:
        raise ValueError(
            f"baseline must not be given with {name!r}, which is named for its own, got {options['baseline']!r}; "
            f"'discounted_return' takes any"
        )


ESTIMATORS = (
    "discounted_return",
    "batch_centred",
    "leave_one_out",
    "z_normalised",
    "group_centred",
    "running_mean",
    "control_variate",
    "critic_advantage",
    "vtrace_return",
)
"""Names that are registered in TorchRL by this package."""
