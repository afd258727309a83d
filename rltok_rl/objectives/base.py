"""Shared parts of the losses: masks, reductions, and checked reading of a rollout's entries."""

from __future__ import annotations

from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives import LossModule

from rltok_rl.functional.reduction import Group, Mask, loss_mean, masked_mean, zero_masked

Reduction = Literal["mean", "sum", "none"]
_REDUCTIONS = ("mean", "sum", "none")


class StepReductions:
    """Masks and means over the steps of a rollout ``[*B, T]``, for classes that are a ``LossModule`` too."""

    reduction: Reduction
    process_group: Group
    tensor_keys: Any
    _loss_mask_key: NestedKey | None

    @property
    def loss_mask_key(self) -> NestedKey | None:
        """Entry with the mask of real steps; ``"auto"`` uses TorchRL's if present. The estimator uses the same one."""
        return self._loss_mask_key

    @loss_mask_key.setter
    def loss_mask_key(self, key: NestedKey | None) -> None:
        LossModule.loss_mask_key.fset(self, key)
        estimator: Any = getattr(self, "_value_estimator", None)
        if hasattr(estimator, "mask_key"):
            estimator.mask_key = key

    def steps(self, tensordict: TensorDictBase) -> Mask:
        """[*B, T] bool, the real steps; None for all. A mask that was named must be in the rollout."""
        named = self.loss_mask_key != "auto"
        real = None
        for key in self._loss_mask_keys():  # type: ignore[attr-defined]
            if named or tensordict.get(key, None) is not None:
                mask = read_flags(tensordict, key, remedy=" (it is the loss's loss_mask_key)" if named else "")
                real = mask if real is None else real & mask
        return real

    def free_steps(self, tensordict: TensorDictBase) -> Mask:
        """[*B, T] bool, the real steps with a decision of the policy; None for all."""
        real = self.steps(tensordict)
        if tensordict.get(self.tensor_keys.forced, None) is None:
            return real
        free = ~read_flags(tensordict, self.tensor_keys.forced)
        return free if real is None else free & real

    def reduce(self, values: Tensor, mask: Mask) -> Tensor:
        """Reduce per-step losses [*B, T] to the loss."""
        if self.reduction == "mean":
            return loss_mean(values, mask, process_group=self.process_group)
        values = zero_masked(values, mask)
        return values.sum() if self.reduction == "sum" else values

    def metric(self, values: Tensor, mask: Mask) -> Tensor:
        """[] mean over unmasked steps of all processes, detached."""
        return masked_mean(values.detach(), mask, process_group=self.process_group)


class StepLoss(StepReductions, LossModule):
    """A loss that is an average over the steps of a rollout ``[*B, T]``; subclasses define ``compute``.

    Args:
        reduction: ``"mean"`` over unmasked steps, their ``"sum"``, or ``"none"``: [*B, T], 0 where masked.
        process_group: processes that train together. Gradients averaged over them are those of the mean over all steps.
    """

    keys_under_next: tuple[str, ...] = ()
    optional_keys: tuple[str, ...] = ()

    def __init__(self, *, reduction: Reduction = "mean", process_group: Group = None) -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction must be one of {list(_REDUCTIONS)}, got {reduction!r}")
        self.reduction, self.process_group = reduction, process_group

    def require_mean(self) -> None:
        """Require ``reduction="mean"``, for losses of a rate."""
        if self.reduction != "mean":
            raise ValueError(f"reduction must be 'mean': a rate belongs to a batch, got {self.reduction!r}")

    @property
    def functional(self) -> bool:
        """False: parameters stay in their modules, so that sharding, casting and tying are unaffected."""
        return False

    @property
    def default_keys(self) -> type:
        """Entries of the rollout that a loss reads, by the names that ``set_keys`` takes."""
        return self._AcceptedKeys

    @property
    def in_keys(self) -> list[NestedKey]:
        """Entries that the loss reads."""
        keys = {name: key for name, key in vars(self.tensor_keys).items() if name not in self.optional_keys}
        return [under_next(key) if name in self.keys_under_next else key for name, key in keys.items()]

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> LossModule:
        """Raise an error: this loss has no estimator."""
        raise NotImplementedError(f"{type(self).__name__} reads no advantages and has no estimator, got {value_type}")

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        """Do nothing: this loss has no estimator."""

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return losses and metrics in a tensordict without batch dimension; the rollout is unchanged."""
        return TensorDict(self.compute(tensordict))

    def compute(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Compute losses and metrics by name."""
        raise NotImplementedError


def with_last_byte(real: Mask, like: Tensor) -> Tensor:
    """[*B, T + 1] bool, the real steps and one more per row: a window's last byte, which is read and predicts nothing.

    Rows without a real step have none; ``like`` [*B, T] gives the shape.
    """
    if real is None:
        real = torch.ones_like(like, dtype=torch.bool)
    return torch.cat((real, real.any(-1, keepdim=True)), -1)


class MissingEntryError(KeyError):
    """An entry is missing in a tensordict; the message lists the entries that it has."""

    def __init__(self, tensordict: TensorDictBase, key: NestedKey, remedy: str = "") -> None:
        names = sorted(_dotted(k) for k in tensordict.keys(True, True))
        super().__init__(f"the tensordict must hold {_dotted(key)!r}{remedy}; it holds {names}")

    def __str__(self) -> str:
        """The message; a KeyError would print its repr."""
        return str(self.args[0])


def read(tensordict: TensorDictBase, key: NestedKey, *, remedy: str = "") -> Tensor:
    """Return an entry [*B, T] or [*B, T, 1] as [*B, T]; ``remedy`` ends the message if it is missing."""
    stored = tensordict.get(key, None)
    shape = tuple(tensordict.batch_size)
    if stored is None:
        raise MissingEntryError(tensordict, key, remedy)
    if stored.shape == (*shape, 1):
        return stored.squeeze(-1)
    if stored.shape != shape:
        raise ValueError(f"{_dotted(key)!r} must have shape {[*shape]} or {[*shape, 1]}, got {[*stored.shape]}")
    return stored


def read_flags(tensordict: TensorDictBase, key: NestedKey, *, remedy: str = "") -> Tensor:
    """Return a bool entry as :func:`read` does; the complement of integers would be no mask."""
    flags = read(tensordict, key, remedy=remedy)
    if flags.dtype != torch.bool:
        raise TypeError(f"{_dotted(key)!r} must be bool, got {flags.dtype}")
    return flags


def under_next(key: NestedKey) -> NestedKey:
    """Return the key of the same entry one step later."""
    return ("next", key) if isinstance(key, str) else ("next", *key)


def _dotted(key: NestedKey) -> str:
    return key if isinstance(key, str) else ".".join(key)
