"""Estimators that remember: which ones do, and how to judge many batches by one and the same memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn
from torch.distributed import ProcessGroup

Estimate = Callable[[TensorDictBase], TensorDictBase]
"""Writes ``advantage`` into a rollout: a value estimator, or a function."""


def as_it_stands(estimator: Estimate, *shared: Any) -> Estimate:
    """The estimator with the memory that it has now, whatever it judges; itself it is left alone.

    Every rollout is judged by a fresh copy: buffers, and what is kept beside them, are those of this moment. Random
    numbers run on, and models that it only asks are not copied. What a function keeps on the side cannot be seen, and
    runs on too.

    Args:
        estimator: in the mode that it is to judge in; one that learns does so in training mode.
        *shared: what the copies have in common.

    Example:
        >>> from tensordict import TensorDict
        >>> from rltok_rl.objectives import make_estimator
        >>> going_on = make_estimator("running_mean", gamma=1.0, num_steps=1)
        >>> standing = as_it_stands(going_on)
        >>> rollout = TensorDict({"next": {"reward": torch.ones(1, 1, 1)}}, [1, 1])
        >>> [judge(rollout.clone())["advantage"].item() for judge in (standing, standing, going_on, going_on)]
        [1.0, 1.0, 1.0, 0.0]
    """
    kept = {id(one): one for one in (*shared, *_asked(estimator))}

    def judge(rollout: TensorDictBase) -> TensorDictBase:
        try:
            copied = copy.deepcopy(estimator, dict(kept))
        except (TypeError, RuntimeError) as error:
            raise TypeError(
                f"estimator must be one that can be copied, so that every batch is judged from the same memory, "
                f"got {type(estimator).__name__}: {error}"
            ) from error
        return copied(rollout)

    return judge


def remembers(estimator: Estimate) -> bool:
    """Whether an estimator may judge a batch by those before it: one with buffers, or a function, which does not tell.

    Args:
        estimator: of any kind.
    """
    if not isinstance(estimator, nn.Module):
        return True
    return any(module._buffers for module in estimator.modules())


def _asked(estimator: Estimate) -> Iterator[Any]:
    """What an estimator uses and does not own: generators, processes, models that are no part of its state."""
    for module in estimator.modules() if isinstance(estimator, nn.Module) else ():
        for value in vars(module).values():
            if isinstance(value, (torch.Generator, ProcessGroup, nn.Module)):
                yield value
