"""Rollouts as the functions of :mod:`rltok_rl.functional` want them: [*B, T], time last."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal, TypeAlias

from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.objectives.base import MissingEntryError, read

MaskKey: TypeAlias = NestedKey | Literal["auto"] | None


class View:
    """Entries of a rollout as [*B, T] with time last, and back.

    Args:
        rollout: [*B, T] in any order of dimensions.
        time_dim: which of them is time.
        mask_key: bool entry that tells which steps are real; ``"auto"`` takes ``("collector", "mask")`` if it is there.
    """

    def __init__(self, rollout: TensorDictBase, time_dim: int, mask_key: MaskKey) -> None:
        self.rollout, self.time_dim = rollout, time_dim
        if mask_key == "auto":
            self.mask = self.find(("collector", "mask"))
        else:
            self.mask = None if mask_key is None else self.read(mask_key)

    def read(self, key: NestedKey) -> Tensor:
        """[*B, T] or [*B, T, 1] as stored, to [*B, T]."""
        return read(self.rollout, key).movedim(self.time_dim, -1)

    def find(self, key: NestedKey) -> Tensor | None:
        """As :meth:`read`; None where there is no such entry."""
        return None if self.rollout.get(key, None) is None else self.read(key)

    def read_features(self, key: NestedKey) -> Tensor:
        """[*B, T] or [*B, T, F] as stored, to [*B, T, F]."""
        stored = self.rollout.get(key)
        if stored.dim() == self.rollout.batch_dims:
            stored = stored.unsqueeze(-1)
        return stored.movedim(self.time_dim, -2)

    def read_value(self, key: NestedKey, critic: Any, params: TensorDictBase | None) -> Tensor:
        """Values [*B, T], stored or asked for."""
        if self.rollout.get(key, None) is None:
            if critic is None:
                raise MissingEntryError(self.rollout, key, ", or the estimator a value_network that makes it")
            asked = self.rollout.select(*critic.in_keys, strict=False)
            # A functional loss hands over the parameters of its own critic; one without any has no use for them.
            own = params is not None and any(True for _ in critic.parameters())
            with params.to_module(critic, preserve_module_state=False) if own else nullcontext():  # type: ignore
                return View(critic(asked), self.time_dim, None).read(key)
        return self.read(key)

    def to_rollout(self, values: Tensor) -> Tensor:
        """[*B, T] to [*B, T, 1] with time where it was."""
        return values.movedim(-1, self.time_dim).unsqueeze(-1)
