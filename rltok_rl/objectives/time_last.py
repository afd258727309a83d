"""A rollout's entries as [*B, T] with time last, for the functions of :mod:`rltok_rl.functional`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal, TypeAlias

from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.objectives.base import MissingEntryError, read
from rltok_rl.utils import joined

MaskKey: TypeAlias = NestedKey | Literal["auto"] | None


def split_rows(rollout: TensorDictBase, rows_per_pass: int | None, time_dim: int) -> Sequence[TensorDictBase]:
    """Split a rollout into parts of ``rows_per_pass`` rows; it stays whole with None, or if time comes first."""
    if rows_per_pass is None or time_dim == 0 or rows_per_pass >= len(rollout):
        return [rollout]
    return rollout.split(rows_per_pass)


class View:
    """Entries of a rollout as [*B, T] with time last, and back.

    Args:
        rollout: [*B, T] in any order of dimensions.
        time_dim: the dimension of time.
        mask_key: bool entry with the real steps; ``"auto"`` uses ``("collector", "mask")`` if present.
    """

    def __init__(self, rollout: TensorDictBase, time_dim: int, mask_key: MaskKey) -> None:
        self.rollout, self.time_dim = rollout, time_dim
        if mask_key == "auto":
            self.mask = self.find(("collector", "mask"))
        else:
            self.mask = None if mask_key is None else self.read(mask_key)

    def read(self, key: NestedKey) -> Tensor:
        """Read an entry [*B, T] or [*B, T, 1] as [*B, T]."""
        return read(self.rollout, key).movedim(self.time_dim, -1)

    def find(self, key: NestedKey) -> Tensor | None:
        """Read an entry; None if it is missing."""
        return None if self.rollout.get(key, None) is None else self.read(key)

    def read_features(self, key: NestedKey) -> Tensor:
        """Read an entry [*B, T] or [*B, T, F] as [*B, T, F]."""
        stored = self.rollout.get(key, None)
        if stored is None:
            raise MissingEntryError(self.rollout, key)
        if not isinstance(stored, Tensor):
            raise ValueError(f"entry {key!r} must be a tensor to be read, got a group of entries")
        if stored.dim() == self.rollout.batch_dims:
            stored = stored.unsqueeze(-1)
        return stored.movedim(self.time_dim, -2)

    def read_value(
        self, key: NestedKey, critic: Any, params: TensorDictBase | None, *, rows_per_pass: int | None = None
    ) -> Tensor:
        """Read values [*B, T], or compute them with a critic, ``rows_per_pass`` at a time (None: all)."""
        if self.rollout.get(key, None) is not None:
            return self.read(key)
        if critic is None:
            raise MissingEntryError(self.rollout, key, ", or the estimator a value_network that makes it")
        inputs = self.rollout.select(*critic.in_keys, strict=False)
        # A functional loss passes the parameters of its own critic, which a critic without parameters cannot use.
        usable = params is not None and any(True for _ in critic.parameters())
        with params.to_module(critic, preserve_module_state=False) if usable else nullcontext():  # type: ignore
            parts = split_rows(inputs, rows_per_pass, self.time_dim)
            return joined([View(critic(rows), self.time_dim, None).read(key) for rows in parts])

    def next(self) -> View:
        """Return the view of the entries after each step, without a mask."""
        return View(self.rollout.get("next"), self.time_dim, None)

    def to_rollout(self, values: Tensor) -> Tensor:
        """[*B, T] to [*B, T, 1], with time where the rollout has it."""
        return values.movedim(-1, self.time_dim).unsqueeze(-1)
