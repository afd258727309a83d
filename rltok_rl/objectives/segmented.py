"""Terms of a joint loss: a segmenter's own losses, and the ratio loss of a routing second level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.functional.rate import check_target, load_balance
from rltok_rl.functional.reduction import Group, loss_mean, masked_mean
from rltok_rl.objectives.base import StepLoss, read, read_flags

SECOND_LEVEL_WEIGHT = 0.03
"""H-Net's coefficient of its ratio losses."""


def second_level_cost(
    boundaries: Tensor, probs: Tensor, tokens: Tensor, target: float, *, process_group: Group = None
) -> Tensor:
    """Compute the ratio loss of a second level, over tokens (https://arxiv.org/abs/2507.07955).

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha),        F = mean_s sg(b_s),  G = mean_s p_s

    ``boundaries`` b and ``probs`` p [*L] are those at the bytes that close ``tokens`` [*L] bool. The target alpha is
    tokens of tokens per token. The first token of a text has p = 1 and counts, as in H-Net's released code.

    Example:
        >>> drawn = torch.tensor([True, False, False, True])
        >>> tokens = torch.tensor([True, False, True, True])
        >>> second_level_cost(drawn, torch.tensor([1.0, 0.0, 0.4, 0.6]), tokens, 2 / 3)
        tensor(1.)
    """
    rate = masked_mean(boundaries.to(probs.dtype), tokens, process_group=process_group)
    return load_balance(rate, loss_mean(probs, tokens, process_group=process_group), target)


class SegmenterLoss(StepLoss):
    """A segmenter's own loss, from a rollout that carries gradients. Writes ``loss_<name>``.

    A rollout with a :class:`~rltok_rl.agents.segmenters.SegmenterActor` has it as ``segmenter_<name>``, with the same
    value at every step of texts that were read together. ``name`` is a key of ``segmenter.coefficients``.
    """

    @dataclass
    class _AcceptedKeys:
        segmenter_loss: NestedKey = "segmenter"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.out_keys = [f"loss_{name}"]
        self.set_keys(segmenter_loss=f"segmenter_{name}")

    def compute(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Compute the loss."""
        return {self.out_keys[0]: self.reduce(read(tensordict, *self.in_keys), self.steps(tensordict))}


class SecondLevelLoss(StepLoss):
    """Keep the rate of tokens of tokens at a target in (0, 1), for models whose second level routes.

    Writes ``loss_second_level`` and the metrics ``second_rate`` (tokens of tokens per token) and ``second_mean_prob``.
    Options are those of :class:`~rltok_rl.objectives.base.StepLoss`; ``reduction`` must be ``"mean"``.
    """

    @dataclass
    class _AcceptedKeys:
        action: NestedKey = "action"
        forced: NestedKey = "forced"
        second_boundary: NestedKey = "second_boundary"
        second_probability: NestedKey = "second_probability"

    keys_under_next = ("second_boundary", "second_probability")  # the second level decides once a token is closed
    out_keys = ["loss_second_level", "second_rate", "second_mean_prob"]

    def __init__(self, target: float, **options: Any) -> None:
        super().__init__(**options)
        self.require_mean()
        self.target_rate = check_target(target)

    def compute(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Compute the loss and its metrics."""
        action, forced, boundary, probability = self.in_keys
        remedy = " (a model with second_level='routing' writes it)"
        probs = read(tensordict, probability, remedy=remedy)
        drawn = read_flags(tensordict, boundary, remedy=remedy)
        tokens = read(tensordict, action).bool() | read_flags(tensordict, forced)
        real = self.steps(tensordict)
        tokens = tokens if real is None else tokens & real
        cost = second_level_cost(drawn, probs, tokens, self.target_rate, process_group=self.process_group)
        rate, mean_prob = self.metric(drawn.to(probs.dtype), tokens), self.metric(probs, tokens)
        return {"loss_second_level": cost, "second_rate": rate, "second_mean_prob": mean_prob}
