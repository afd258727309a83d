"""Losses of any segmenter: in one forward pass, or as terms of a joint loss; and of a routing second level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.agents.segmenters import SegmentedOutput, Segmenter, read_window
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.rate import check_target, load_balance
from rltok_rl.functional.reduction import Group, loss_mean, masked_mean
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import StepLoss, read, read_flags

SECOND_LEVEL_WEIGHT = 0.03
"""H-Net's coefficient of its ratio losses."""


@dataclass(frozen=True)
class SegmentedLosses:
    """Weighted losses of one batch by name, and metrics without gradient."""

    losses: dict[str, Tensor]
    figures: dict[str, Tensor]
    output: SegmentedOutput

    @property
    def total(self) -> Tensor:
        """The sum of the losses."""
        return torch.stack([loss.to(torch.float32) for loss in self.losses.values()]).sum()


def segmented_losses(
    model: UNet,
    segmenter: Segmenter,
    byte_ids: Tensor,
    *,
    early_exit: float = 0.1,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> SegmentedLosses:
    """Compute the next-byte losses of a U-Net with a segmenter's boundaries, and the segmenter's own losses.

        L = L_auto + lambda_early L_early + sum_k c_k L_k + 0.03 L_second

    Reads the first T of ``byte_ids`` [B, T + 1] and predicts the last T; draws with ``uniforms`` [B, T] or the
    generator. If boundaries carry a gradient (``gumbel``, ``hnet``) the segmenter learns from L_auto too. The learned
    policy does not learn here; use :class:`~rltok_rl.objectives.JointLoss`.

    Returns ``loss_language_model``, ``loss_early_exit`` and the segmenter's ``loss_<name>``; metrics ``bits_per_byte``,
    ``early_bits_per_byte`` and ``rate``. With a second level also ``second_rate``, and ``loss_second_level`` if it
    routes, at the segmenter's rate or else the model's.

    Example:
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> out = segmented_losses(model, make_segmenter("hnet", model), torch.randint(256, (2, 10)))
        >>> sorted(out.losses)
        ['loss_early_exit', 'loss_language_model', 'loss_ratio']
    """
    if byte_ids.dim() != 2 or byte_ids.shape[1] < 2:
        raise ValueError(f"byte_ids must have shape [B, T + 1 >= 2], got {[*byte_ids.shape]}")
    before, following = byte_ids[:, :-1], byte_ids[:, 1:]
    out = read_window(model, segmenter, before, uniforms=uniforms, generator=generator)
    language_model = -byte_log_prob(out.final_logits, following).mean()
    early = -byte_log_prob(out.early_logits, following).mean()
    losses = {"loss_language_model": language_model, "loss_early_exit": early_exit * early}
    for name, loss in segmenter.losses(out.segments, before, out.final_logits).items():
        losses[f"loss_{name}"] = segmenter.coefficients[name] * loss
    metrics = {
        "bits_per_byte": language_model.detach() / math.log(2),
        "early_bits_per_byte": early.detach() / math.log(2),
        "rate": out.segments.boundaries.float().mean(),
    }
    if out.second is not None:
        drawn, tokens = out.second.boundaries, out.segments.boundaries
        metrics["second_rate"] = drawn.sum() / tokens.sum()
        if out.second.probabilities is not None:
            target = segmenter.second_rate or model.config.second_rate
            cost = second_level_cost(drawn, out.second.probabilities, tokens, target)
            losses["loss_second_level"] = SECOND_LEVEL_WEIGHT * cost
    return SegmentedLosses(losses, metrics, out)


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
