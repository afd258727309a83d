"""The rate of tokens of tokens, where the second level routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.functional.rate import check_target, load_balance
from rltok_rl.functional.reduction import loss_mean, masked_mean
from rltok_rl.objectives.base import StepLoss, read, read_flags, under_next

SECOND_LEVEL_WEIGHT = 0.03
"""What H-Net multiplies its ratio losses with."""


def second_level_cost(
    boundaries: Tensor,
    probs: Tensor,
    tokens: Tensor,
    target: float,
    *,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """The ratio loss of a second level, over tokens.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha),        F = mean_s sg(b_s),  G = mean_s p_s

    The first token of a text has p = 1 and counts, as in H-Net's released code.

    Args:
        boundaries: [*L] bool, b at the bytes that close tokens.
        probs: [*L] p there.
        tokens: [*L] bool, the bytes that close tokens.
        target: alpha, tokens of tokens per token.
        process_group: processes that train together; F is that of all.

    Example:
        >>> import torch
        >>> drawn = torch.tensor([True, False, False, True])
        >>> tokens = torch.tensor([True, False, True, True])
        >>> second_level_cost(drawn, torch.tensor([1.0, 0.0, 0.4, 0.6]), tokens, 2 / 3)
        tensor(1.)

    Reference: https://arxiv.org/abs/2507.07955
    """
    rate = masked_mean(boundaries.to(probs.dtype), tokens, process_group=process_group)
    return load_balance(rate, loss_mean(probs, tokens, process_group=process_group), target)


class SecondLevelLoss(StepLoss):
    """Keep the rate of tokens of tokens at a target, where the model's second level routes.

    Writes ``loss_second_level``, and the figures ``second_rate`` (tokens of tokens per token) and ``second_mean_prob``.

    Args:
        target: tokens of tokens per token, in (0, 1).
        **options: of :class:`~rltok_rl.objectives.base.StepLoss`; ``reduction`` must be ``"mean"``.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of what is read; the second level's under ``next``, as it decides once a token is closed."""

        action: NestedKey = "action"
        forced: NestedKey = "forced"
        second_boundary: NestedKey = "second_boundary"
        second_probability: NestedKey = "second_probability"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    out_keys = ["loss_second_level", "second_rate", "second_mean_prob"]

    def __init__(self, target: float, **options: Any) -> None:
        super().__init__(**options)
        if self.reduction != "mean":
            raise ValueError(f"reduction must be 'mean': a rate belongs to a batch, got {self.reduction!r}")
        self.target_rate = check_target(target)

    @property
    def in_keys(self) -> list[NestedKey]:
        """Which steps closed a token, and what the second level made of it."""
        keys = self.tensor_keys
        return [keys.action, keys.forced, under_next(keys.second_boundary), under_next(keys.second_probability)]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A tensordict without batch dimension: the loss and its figures."""
        keys, remedy = self.tensor_keys, " (a model with second_level='routing' writes it)"
        probs = read(tensordict, under_next(keys.second_probability), remedy=remedy)
        drawn = read_flags(tensordict, under_next(keys.second_boundary), remedy=remedy)
        tokens = read(tensordict, keys.action).bool() | read_flags(tensordict, keys.forced)
        real = self.steps(tensordict)
        tokens = tokens if real is None else tokens & real
        cost = second_level_cost(drawn, probs, tokens, self.target_rate, process_group=self.process_group)
        figures = {
            "second_rate": self.figure(drawn.to(probs.dtype), tokens),
            "second_mean_prob": self.figure(probs, tokens),
        }
        return TensorDict({"loss_second_level": cost, **figures})
