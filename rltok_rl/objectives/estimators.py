"""Advantage estimators without a critic, as TorchRL value estimators.

Each reads rewards from a rollout, calls one function of :mod:`rltok_rl.functional`, and writes ``advantage`` and
``value_target``. They take any TorchRL rollout ``[*B, T]``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.objectives.utils import get_value_estimator_entry, register_value_estimator
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.functional.baselines import no_baseline
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.reduction import Group
from rltok_rl.functional.returns import check_gamma, discounted_return
from rltok_rl.objectives.base import under_next
from rltok_rl.objectives.baseline import BASELINE_NAMES, Baseline, as_baseline, name_of
from rltok_rl.objectives.time_last import MaskKey, View
from rltok_rl.renamed import renamed_word, warn_caller
from rltok_rl.utils import did_you_mean


@register_value_estimator("discounted_return", default_kwargs={"gamma": 0.99})
class ReturnEstimator(ValueEstimatorBase):
    """Discounted returns minus a baseline, registered as ``"discounted_return"``.

        value_target = G_t = R_{t+1} + gamma G_{t+1}            advantage = baseline(G)_t

    A custom estimator overrides ``_returns(view)``, from a :class:`~rltok_rl.objectives.time_last.View` of the rollout
    to returns [*B, T], or ``_advantages(returns, view)``, from those to advantages [*B, T]. The latter replaces the
    baseline; if it calls ``super()._advantages(returns, view)``, the class sets ``uses_baseline = True``.

    Args:
        gamma: discount in [0, 1].
        baseline: one of :data:`~rltok_rl.objectives.baseline.BASELINE_NAMES`; a function
            ``(returns, *, mask, process_group) -> advantages``, all [*B, T]; or a :class:`torch.nn.Module` of that
            signature, whose buffers are part of the estimator's state. A class is instantiated.
        value_network: a critic, for estimators that use one.
        mask_key: bool entry with the real steps; ``"auto"`` uses ``("collector", "mask")`` if present.
        process_group: let the baseline span the rows of all its processes.
        time_dim: dimension of time; None uses the one named "time", or the last.
        differentiable: let gradients reach the rewards.
        device: not used.
        **baseline_options: ``rows_per_mean``, so that the baseline takes its means over groups of consecutive rows; of
            a baseline given by name, ``group_size`` of ``group_mean``, ``num_steps`` of ``running_mean``.

    Example:
        >>> from tensordict import TensorDict
        >>> rollout = TensorDict({"next": {"reward": torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])}}, [2, 2])
        >>> ReturnEstimator(gamma=1.0, baseline="leave_one_out")(rollout)["advantage"].squeeze(-1)
        tensor([[-4., -2.],
                [ 4.,  2.]])
    """

    uses_baseline = False
    """Whether an overridden ``_advantages`` uses the baseline."""
    ran_trials = True
    """Whether the last batch had the trials that ``flops`` counts, of estimators with that method."""

    def __init__(
        self,
        *,
        gamma: float,
        baseline: str | Baseline | type[nn.Module] = "none",
        value_network: Any = None,
        mask_key: MaskKey = "auto",
        process_group: Group = None,
        time_dim: int | None = None,
        differentiable: bool = False,
        device: torch.device | None = None,
        **baseline_options: Any,
    ) -> None:
        super().__init__(value_network=value_network, differentiable=differentiable, device=device)
        self.gamma = gamma
        try:
            self.baseline = as_baseline(baseline, **baseline_options)
        except TypeError as error:  # a misspelt option of the estimator arrives as one of the baseline
            if hints := [hint for name in baseline_options if (hint := did_you_mean(name, self._option_names()))]:
                raise TypeError(f"{error}{hints[0]}") from None
            raise
        if self.baseline is not no_baseline and self._overrides_advantages and not self.uses_baseline:
            raise ValueError(
                f"baseline must be 'none' with {type(self).__name__}, whose own _advantages takes its place, "
                f"got {name_of(self.baseline)!r} (baseline=none on the command line; uses_baseline = True in the class "
                f"if it asks for one)"
            )
        self.mask_key, self.process_group, self.time_dim = mask_key, process_group, time_dim

    @classmethod
    def _option_names(cls) -> list[str]:
        made = [inspect.signature(kind.__init__) for kind in cls.__mro__ if issubclass(kind, ReturnEstimator)]
        return [option.name for one in made for option in one.parameters.values() if option.kind is option.KEYWORD_ONLY]

    @property
    def gamma(self) -> float:
        """The discount; can be changed, and is part of the state.

        It is no buffer: a loss cast to bfloat16 would turn 0.99 into 0.988, and reading a tensor stalls the device.
        """
        return self._gamma

    @gamma.setter
    def gamma(self, value: float) -> None:
        self._gamma = float(check_gamma(value))

    def get_extra_state(self) -> dict[str, float]:
        """Return the non-tensor state."""
        return {"gamma": self.gamma}

    def set_extra_state(self, state: dict[str, float]) -> None:
        """Load the non-tensor state."""
        for name, value in state.items():
            setattr(self, name, value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("total", "count"):  # a running mean was an estimator once
            if f"{prefix}{name}" in state_dict:
                state_dict[f"{prefix}baseline.{name}"] = state_dict.pop(f"{prefix}{name}")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards and ends."""
        return [under_next(self.tensor_keys.reward), under_next(self.tensor_keys.done)]

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

        ``params`` are those of a functional critic, ``target_params`` those for the value after each step (None:
        ``params``), and ``time_dim`` is the dimension of time for this call.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.differentiable):
            view = View(tensordict, self._get_time_dim(time_dim, tensordict), self.mask_key)
            relative, target = self._estimate(view, params, target_params)
            advantages = self._advantages(relative, view)
        if not isinstance(advantages, Tensor) or advantages.shape != relative.shape:
            kind, name = type(self).__name__, name_of(self.baseline)
            maker = f"{kind}._advantages" if self._overrides_advantages else f"baseline {name}"
            shown = [*advantages.shape] if isinstance(advantages, Tensor) else type(advantages).__name__
            raise ValueError(
                f"{maker} must return advantages with the shape of the returns, {[*relative.shape]}, got {shown}"
            )
        tensordict.set(self.tensor_keys.advantage, view.to_rollout(advantages))
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
        """Return the value target [*B, T, 1]; nothing is written."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.differentiable):
            view = View(tensordict, self._get_time_dim(time_dim, tensordict), self.mask_key)
            return view.to_rollout(self._estimate(view, None, target_params)[1])

    def _estimate(
        self, view: View, params: TensorDictBase | None, target_params: TensorDictBase | None
    ) -> tuple[Tensor, Tensor]:
        """What the baseline is applied to, and the value target, [*B, T] each."""
        returns, expected = self._returns(view), view.read(under_next(self.tensor_keys.reward)).shape
        if not isinstance(returns, Tensor) or returns.shape != expected:
            shown = [*returns.shape] if isinstance(returns, Tensor) else type(returns).__name__
            raise ValueError(
                f"{type(self).__name__}._returns must return the shape of the rewards, {[*expected]}, got {shown}"
            )
        return returns, returns

    def _returns(self, view: View) -> Tensor:
        keys = self.tensor_keys
        done = view.find(under_next(keys.done))
        return discounted_return(view.read(under_next(keys.reward)), self.gamma, done=done, mask=view.mask)

    @property
    def _overrides_advantages(self) -> bool:
        return type(self)._advantages is not ReturnEstimator._advantages

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        """[*B, T] to [*B, T]; overridden by custom estimators."""
        return self.baseline(returns, mask=view.mask, process_group=self.process_group)


@register_value_estimator("control_variate", default_kwargs={"gamma": 0.99})
class ControlVariateReturn(ReturnEstimator):
    """Returns minus a regression fitted on other rows, registered as ``"control_variate"``.

    Options are those of :class:`ReturnEstimator` and of
    :func:`~rltok_rl.functional.control_variate.control_variate`, and:

    Args:
        regressor_keys: entries [*B, T] or [*B, T, F] to regress on, independent of the decisions from t on. The early
            exit's outputs always are.
        hindsight: regress also on discounted sums of these entries over the steps to come. The future of the text may
            be used, because it does not depend on the decisions.
    """

    def __init__(
        self,
        *,
        gamma: float,
        regressor_keys: Sequence[NestedKey] = (("next", "early_log_prob"),),
        hindsight: bool = True,
        ridge: Annotated[float, "[0, inf)"] = 1e-3,
        folds: Annotated[int, "[2, inf)"] = 2,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, **options)
        keys = [tuple(key) if isinstance(key, list) else key for key in regressor_keys]
        if isinstance(regressor_keys, str) or not keys or not all(_is_key(key) for key in keys):
            raise ValueError(f"regressor_keys must be a list of keys, each a string or several, got {regressor_keys!r}")
        self.regressor_keys, self.hindsight = tuple(keys), hindsight
        self.ridge, self.folds = ridge, folds

    def fit_flops(self, width: int) -> float:
        """Return the FLOPs per byte of fit and prediction on encoder states of ``width``, for few folds and long texts.

        Without states it is 0: a few columns are not counted, as no elementwise work is.
        """
        if "encoder_state" not in self.regressor_keys:
            return 0.0
        size = sum(width if key == "encoder_state" else 1 for key in self.regressor_keys) * (1 + self.hindsight)
        return 2.0 * (size + 2) ** 2 + 2.0 * size  # products of (1, z, G) with themselves; z with slopes

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
        options: dict[str, Any] = {"ridge": self.ridge, "folds": self.folds, "process_group": self.process_group}
        return control_variate(returns, features, mask=view.mask, **options)


def _is_key(key: Any) -> bool:
    """Whether a value is a key of a tensordict: a string, or a tuple of them."""
    return bool(key) and all(isinstance(part, str) for part in (key if isinstance(key, tuple) else (key,)))


ESTIMATORS = (
    "discounted_return",
    "natural_gradient",
    "control_variate",
    "local_flips",
    "budgeted_flips",
    "token_gain",
    "disarm",
    "critic_advantage",
    "vtrace_return",
)
"""Names that this package registers in TorchRL; flips, token gains and DisARM need ``model``."""
OLD_ESTIMATORS: dict[str, dict[str, Any]] = {
    "batch_centred": {"baseline": "batch_mean"},
    "leave_one_out": {"baseline": "leave_one_out"},
    "z_normalised": {"baseline": "z_score"},
    "group_centred": {"baseline": "group_mean", "group_size": 2},
    "running_mean": {"baseline": "running_mean"},
}
"""Old names of ``discounted_return`` with a baseline, and its options; they work for one minor version."""
for _name, _options in OLD_ESTIMATORS.items():
    register_value_estimator(_name, default_kwargs={"gamma": 0.99, **_options})(ReturnEstimator)


def make_estimator(name: str, **options: Any) -> ReturnEstimator:
    """Build an estimator by its name, one of :data:`ESTIMATORS`, with the options of its class and its baseline.

    Example:
        >>> make_estimator("discounted_return", gamma=0.9, baseline="group_mean", group_size=4).gamma
        0.9
    """
    entry = get_value_estimator_entry(check_estimator(name, options))
    return entry.cls(**{**entry.default_kwargs, **options})


def check_estimator(name: str, options: Mapping[str, Any]) -> str:
    """Return the name under which an estimator is registered; warn if it is an old one."""
    if name in OLD_ESTIMATORS:
        baseline = OLD_ESTIMATORS[name]["baseline"]
        if options.get("baseline", baseline) != baseline:
            raise ValueError(
                f"{name!r} is a baseline itself, got baseline={options['baseline']!r}; 'discounted_return' takes any"
            )
        warn_caller(f"estimator {name!r} is now 'discounted_return' with baseline={baseline!r}")
        return name
    name = renamed_word("estimator", name)
    if name not in ESTIMATORS:
        hint = did_you_mean(str(name), ESTIMATORS)
        if name in BASELINE_NAMES:
            hint = f"; write 'discounted_return' with baseline={name!r}"
        raise ValueError(f"name must be one of {list(ESTIMATORS)}, got {name!r}{hint}")
    return name


_OLD_CLASSES = {"GroupCentred": "group_mean", "RunningMeanReturn": "running_mean"}


def __getattr__(name: str) -> Any:
    if name not in _OLD_CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    baseline = _OLD_CLASSES[name]
    warnings.warn(f"{name} is now ReturnEstimator(baseline={baseline!r})", DeprecationWarning, stacklevel=2)
    return partial(ReturnEstimator, baseline=baseline)
