"""Several losses as one: named terms with coefficients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.objectives import LossModule

from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.agents.segmenters.segmenter import second_rate
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.language import EarlyExitLoss, LanguageModelLoss
from rltok_rl.objectives.policy_loss import PolicyLoss
from rltok_rl.objectives.rate_loss import RateLoss
from rltok_rl.objectives.reinforce import BoundaryReinforceLoss
from rltok_rl.objectives.segmented import SECOND_LEVEL_WEIGHT, SecondLevelLoss, SegmenterLoss
from rltok_rl.ranges import check_number

WITH_BATCH_MEAN = ("discounted_return", "natural_gradient")
"""Estimators from which :meth:`JointLoss.paper` subtracts the batch mean, unless a baseline is given."""


def model_terms(
    model: UNet, segmenter: Segmenter | None, *, language_model: float, early_exit: float, process_group: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the terms of whatever draws the boundaries, and their coefficients: next bytes, a routing second level."""
    together = {"process_group": process_group}
    terms: dict[str, Any] = {"language_model": LanguageModelLoss(**together), "early_exit": EarlyExitLoss(**together)}
    coefficients = {"language_model": language_model, "early_exit": early_exit}
    if model.config.second_level == "routing":
        terms["second_level"] = SecondLevelLoss(second_rate(model, segmenter), **together)
        coefficients["second_level"] = SECOND_LEVEL_WEIGHT
    return terms, coefficients


class JointLoss(LossModule):
    """A weighted sum of losses of one rollout; one backward pass trains them all.

    The output has every term's outputs: ``loss_*`` times the coefficient (default: 1), metrics unchanged.
    ``loss.total(out)`` sums the losses. A metric that several terms write keeps its name in the first and becomes
    ``<term>_<metric>`` in the others. Coefficients are buffers ``coeff_<name>`` and can be scheduled:
    ``loss.coeff_policy = 0.02``.

    Example:
        >>> from rltok_rl.objectives import JointLoss
        >>> joint = JointLoss.paper(target_rate=0.2)
        >>> {name: round(float(joint.coefficient(name)), 2) for name in joint.terms}
        {'language_model': 1.0, 'policy': 0.01, 'rate': 0.01, 'early_exit': 0.1}
    """

    def __init__(self, terms: Mapping[str, LossModule], coefficients: Mapping[str, float] | None = None) -> None:
        super().__init__()
        coefficients = dict(coefficients or {})
        unknown = sorted(set(coefficients) - set(terms))
        if unknown or not terms:
            raise ValueError(f"coefficients must name terms of the loss, {sorted(terms)}, got {unknown}")
        infinite = {name: value for name, value in coefficients.items() if not math.isfinite(value)}
        if infinite:
            raise ValueError(f"coefficients must be finite numbers, got {infinite}")
        if invalid := [name for name in terms if not name.isidentifier()]:
            raise ValueError(f"terms must have names that are identifiers, got {invalid}")
        self.terms: Mapping[str, LossModule] = nn.ModuleDict(terms)  # type: ignore[assignment]
        self._output_names: dict[str, dict[str, str]] = {}  # each term's outputs, and their names in the joint output
        used: set[str] = set()
        for name, term in terms.items():
            clashing = [key for key in term.out_keys if key in used and key.startswith("loss_")]
            if clashing:
                raise ValueError(f"two terms write {clashing[0]!r}; the second is {name!r}")
            names = self._output_names[name] = {k: f"{name}_{k}" if k in used else k for k in term.out_keys}
            used |= set(names.values())
            self.register_buffer(f"coeff_{name}", torch.tensor(float(coefficients.get(name, 1.0))))

    @classmethod
    def paper(
        cls,
        *,
        target_rate: float,
        estimator: Any = None,
        baseline: Any = None,
        process_group: Any = None,
        rate: Mapping[str, Any] | None = None,
        **estimator_options: Any,
    ) -> JointLoss:
        """Build the paper's loss: ``L_auto + 0.01 L_policy + 0.01 L_rate + 0.1 L_early``, gamma = 0.99 (Section 2.6).

        ``estimator`` is a value estimator, or a class or name with its ``baseline`` and further options; None is
        ``"discounted_return"``. For the names in :data:`WITH_BATCH_MEAN` the default ``baseline`` is the paper's
        ``"batch_mean"``, otherwise none; ``"none"`` subtracts nothing. A class has no default options. ``rate`` has
        options of :class:`RateLoss`.
        """
        if not isinstance(rate, (Mapping, type(None))):
            raise TypeError(f"rate must be a mapping with options of RateLoss, got {rate!r}")
        estimator = "discounted_return" if estimator is None else estimator
        if baseline is None and estimator in WITH_BATCH_MEAN:
            baseline = "batch_mean"
        if baseline is not None:
            estimator_options["baseline"] = baseline
        if isinstance(estimator, str):
            estimator_options = {"gamma": 0.99, **estimator_options}
        policy = {"estimator": estimator, **estimator_options}
        return cls._of(policy, {"target": target_rate, **(rate or {})}, process_group, language_model=1.0)

    @classmethod
    def released(
        cls,
        *,
        target_rate: float,
        gamma: float = 0.99,
        rows_per_mean: int = 8,
        process_group: Any = None,
    ) -> JointLoss:
        """Build the loss of the authors' released code, which differs from the paper's.

        The next-byte losses are mixed, ``0.9 L_auto + 0.1 L_early``; the batch mean spans the ``rows_per_mean`` rows of
        one device's micro-batch (8 in the 147M run); the policy's mean is over all positions, where both ends count 0;
        both ends count in the rate, whose mean probability spans these rows too. The last position is the byte that is
        read and predicts nothing.
        """
        policy = {"estimator": "discounted_return", "gamma": gamma, "average": "window"}
        policy |= {"baseline": "batch_mean", "rows_per_mean": rows_per_mean}
        rate = {"target": target_rate, "ends": "window", "rows_per_mean": rows_per_mean}
        return cls._of(policy, rate, process_group, language_model=0.9)

    @classmethod
    def of_segmenter(
        cls,
        segmenter: Segmenter,
        model: UNet,
        *,
        language_model: float = 1.0,
        early_exit: float = 0.1,
        process_group: Any = None,
    ) -> JointLoss:
        """Build the loss of rollouts by a :class:`~rltok_rl.agents.segmenters.SegmenterActor`.

            L = L_auto + 0.1 L_early + sum_k c_k L_k + 0.03 L_second

        The L_k are the segmenter's own losses, weighted by its ``coefficients``. L_second is there if the model's
        second level routes, and its target is the segmenter's ``second_rate``, or else the model's. If boundaries carry
        a gradient (``gumbel``, ``hnet``) the segmenter learns from L_auto too. The learned policy does not learn here.

        Example:
            >>> from rltok_rl.agents.segmenters import make_segmenter
            >>> from rltok_rl.models import preset
            >>> model = UNet(preset("tiny"))
            >>> [*JointLoss.of_segmenter(make_segmenter("hnet", model), model).terms]
            ['language_model', 'early_exit', 'ratio']
        """
        together = {"process_group": process_group}
        weights = {"language_model": language_model, "early_exit": early_exit}
        terms, coefficients = model_terms(model, segmenter, **weights, **together)
        terms |= {name: SegmenterLoss(name, **together) for name in segmenter.coefficients}
        return cls(terms, {**coefficients, **segmenter.coefficients})

    @classmethod
    def _of(
        cls, policy: Mapping[str, Any], rate: Mapping[str, Any], process_group: Any, *, language_model: float
    ) -> JointLoss:
        check_number("target_rate", rate["target"], "(0, 1)")  # of which the rate loss knows another name
        terms = {
            "language_model": LanguageModelLoss(process_group=process_group),
            "policy": BoundaryReinforceLoss(process_group=process_group, **policy),
            "rate": RateLoss(process_group=process_group, **rate),
            "early_exit": EarlyExitLoss(process_group=process_group),
        }
        return cls(terms, {"language_model": language_model, "policy": 0.01, "rate": 0.01, "early_exit": 0.1})

    @property
    def functional(self) -> bool:
        """False: parameters stay in their modules."""
        return False

    def set_keys(self, **names: NestedKey) -> None:
        """Rename entries in every term that reads them.

        A name that is another entry in each term, such as ``log_prob``, must be set in the term:
        ``joint.terms["early_exit"].set_keys(log_prob=...)``.
        """
        for name, key in names.items():
            readers = {n: term for n, term in self.terms.items() if name in type(term.tensor_keys).__dataclass_fields__}
            if not readers:
                raise ValueError(f"{name} is not an accepted tensordict key of any of the terms {list(self.terms)}")
            current = {n: getattr(term.tensor_keys, name) for n, term in readers.items()}
            if len(set(current.values())) > 1:
                raise ValueError(f"{name} must be set in the terms: it is another entry in each, {current}")
            for term in readers.values():
                term.set_keys(**{name: key})

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> JointLoss:
        """Replace the estimator of every term that has one."""
        terms: list[Any] = [term for term in self.terms.values() if isinstance(term, PolicyLoss)]
        if not terms:
            raise NotImplementedError(f"none of the terms {list(self.terms)} has an estimator, got {value_type}")
        for term in terms:
            term.make_value_estimator(value_type, **hyperparams)
        return self

    @property
    def policy_estimator(self) -> Any:
        """The value estimator of the term ``"policy"``; None without one."""
        return getattr(self.terms["policy"], "_value_estimator", None) if "policy" in self.terms else None

    @property
    def loss_mask_key(self) -> NestedKey | None:
        """Entry with the mask of real steps, for all terms; ``"auto"`` uses TorchRL's if present."""
        return self._loss_mask_key

    @loss_mask_key.setter
    def loss_mask_key(self, key: NestedKey | None) -> None:
        LossModule.loss_mask_key.fset(self, key)
        for term in self.terms.values():
            term.loss_mask_key = key

    @property
    def in_keys(self) -> list[NestedKey]:
        """Entries that any term reads."""
        return list(dict.fromkeys(key for term in self.terms.values() for key in term.in_keys))

    @property
    def out_keys(self) -> list[NestedKey]:
        """Entries that any term writes."""
        return [output for names in self._output_names.values() for output in names.values()]

    def coefficient(self, name: str) -> Tensor:
        """Return the weight of a term."""
        return getattr(self, f"coeff_{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set coefficients in place, so that ``joint.coeff_policy = 0.02`` stays a buffer."""
        buffers = self.__dict__.get("_buffers", {})
        if name.startswith("coeff_") and not isinstance(value, Tensor):
            if name not in buffers:
                raise AttributeError(f"{name} must be one of {sorted(b for b in buffers if b.startswith('coeff_'))}")
            buffers[name].fill_(check_number(name, value, "(-inf, inf)"))
            return
        super().__setattr__(name, value)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return weighted losses and metrics of all terms in a tensordict without batch dimension."""
        outputs: dict[str, Tensor] = {}
        for name in self.terms:
            outputs |= self.run_term(name, tensordict)
        return TensorDict(outputs)

    def run_term(self, name: str, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Return a term's weighted losses and its metrics, by their names in the joint output."""
        weight, names = self.coefficient(name), self._output_names[name]
        outputs = self.terms[name](tensordict)
        return {names[k]: weight * v if k.startswith("loss_") else v.detach() for k, v in outputs.items()}

    @staticmethod
    def total(losses: TensorDictBase) -> Tensor:
        """Return the sum of all ``loss_*`` entries."""
        return sum(value for key, value in losses.items() if key.startswith("loss_"))
