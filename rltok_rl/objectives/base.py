"""What all losses of this package share: which steps count, and how they are averaged."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torch.distributed import ProcessGroup
from torchrl.objectives import LossModule

from rltok_rl.functional.reduction import loss_mean, masked_mean, zero_masked

Reduction = Literal["mean", "sum", "none"]
_REDUCTIONS = ("mean", "sum", "none")


class StepLoss(LossModule):
    """A loss that is an average over the steps of a rollout ``[*B, T]``.

    Args:
        reduction: ``"mean"`` over the steps that count, their ``"sum"``, or ``"none"``: [*B, T], 0 elsewhere.
        process_group: processes that train together, each on rows of its own. Means are then such that the average of
            the gradients over processes is the gradient of the mean over all steps.
    """

    def __init__(self, *, reduction: Reduction = "mean", process_group: ProcessGroup | None = None) -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction must be one of {list(_REDUCTIONS)}, got {reduction!r}")
        self.reduction, self.process_group = reduction, process_group

    @property
    def functional(self) -> bool:
        """Networks are used as they are: sharding, casting and tying stay what they were."""
        return False

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        """Nothing to forward: only losses with an estimator have one."""

    @property
    def loss_mask_key(self) -> NestedKey | None:
        """Entry that tells which steps are real; ``"auto"`` takes TorchRL's where they are there.

        A loss and its estimator agree on it: a baseline over steps that the loss leaves out would be another one.
        """
        return self._loss_mask_key

    @loss_mask_key.setter
    def loss_mask_key(self, key: NestedKey | None) -> None:
        LossModule.loss_mask_key.fset(self, key)
        estimator: Any = getattr(self, "_value_estimator", None)
        if hasattr(estimator, "mask_key"):
            estimator.mask_key = key

    def steps(self, tensordict: TensorDictBase) -> Tensor | None:
        """[*B, T] bool, the steps that are real; None where all are."""
        return real_steps(self, tensordict)

    def free_steps(self, tensordict: TensorDictBase, forced: NestedKey) -> Tensor | None:
        """[*B, T] bool, the real steps whose decision was the policy's; None where all are."""
        return free_steps(self, tensordict, forced)

    def reduce(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """[*B, T] losses of steps to the loss."""
        if self.reduction == "none":
            return zero_masked(values, mask)
        if self.reduction == "sum":
            return zero_masked(values, mask).sum()
        return loss_mean(values, mask, process_group=self.process_group)

    def figure(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """[] mean over the steps that count, of all processes, without gradient: something to log."""
        return masked_mean(values.detach(), mask, process_group=self.process_group)


def real_steps(loss: LossModule, tensordict: TensorDictBase) -> Tensor | None:
    """[*B, T] bool, the steps that are real to a loss; None where all are.

    An entry that was asked for by name has to be there: training on padding because of a typing error is worse than a
    message.
    """
    named = loss.loss_mask_key != "auto"
    found = None
    for key in loss._loss_mask_keys():
        if named or tensordict.get(key, None) is not None:
            mask = read_flags(tensordict, key, remedy=" (it is the loss's loss_mask_key)" if named else "")
            found = mask if found is None else found & mask
    return found


def free_steps(loss: LossModule, tensordict: TensorDictBase, forced: NestedKey) -> Tensor | None:
    """[*B, T] bool, the real steps whose decision was the policy's; None where all are."""
    real = real_steps(loss, tensordict)
    if tensordict.get(forced, None) is None:
        return real
    free = ~read_flags(tensordict, forced)
    return free if real is None else free & real


def last_steps(real: Tensor | None, like: Tensor) -> Tensor:
    """[*B, T] bool, the last real step of each row.

    Args:
        real: [*B, T] bool, the steps that are real; None for all.
        like: [*B, T].
    """
    if real is None:
        real = torch.ones_like(like, dtype=torch.bool)
    return real & ~F.pad(real[..., 1:], (0, 1))


class MissingEntryError(KeyError):
    """An entry that a tensordict should hold; says what it holds instead."""

    def __init__(self, tensordict: TensorDictBase, key: NestedKey, remedy: str = "") -> None:
        held = sorted(_spelled(k) for k in tensordict.keys(True, True))
        super().__init__(f"the tensordict must hold {_spelled(key)!r}{remedy}; it holds {held}")

    def __str__(self) -> str:
        """The message itself; a KeyError would show its repr."""
        return str(self.args[0])


def read(tensordict: TensorDictBase, key: NestedKey, *, remedy: str = "") -> Tensor:
    """An entry [*B, T] or [*B, T, 1] as [*B, T].

    Args:
        tensordict: [*B, T].
        key: where the entry is.
        remedy: what else would help, for the message where it is missing.
    """
    stored = tensordict.get(key, None)
    shape = tuple(tensordict.batch_size)
    if stored is None:
        raise MissingEntryError(tensordict, key, remedy)
    if stored.shape == (*shape, 1):
        return stored.squeeze(-1)
    if stored.shape != shape:
        raise ValueError(f"{_spelled(key)!r} must have shape {[*shape]} or {[*shape, 1]}, got {[*stored.shape]}")
    return stored


def read_flags(tensordict: TensorDictBase, key: NestedKey, *, remedy: str = "") -> Tensor:
    """As :func:`read`, of bool entries: the complement of an integer is no mask."""
    flags = read(tensordict, key, remedy=remedy)
    if flags.dtype != torch.bool:
        raise TypeError(f"{_spelled(key)!r} must be bool, got {flags.dtype}")
    return flags


def under_next(key: NestedKey) -> NestedKey:
    """The key of the same entry one step later."""
    return ("next", key) if isinstance(key, str) else ("next", *key)


def _spelled(key: NestedKey) -> str:
    return key if isinstance(key, str) else ".".join(key)
