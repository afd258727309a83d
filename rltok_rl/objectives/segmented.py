"""Losses of any segmenter: in one forward pass, or as terms of a joint loss; and of a routing second level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.agents.segmenters import SegmentedOutput, Segmenter, read_window
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.rate import check_target, load_balance
from rltok_rl.functional.reduction import loss_mean, masked_mean
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import StepLoss, read, read_flags, under_next

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

    If boundaries carry a gradient (``gumbel``, ``hnet``) the segmenter learns from L_auto too. The learned policy does
    not learn here; use :class:`~rltok_rl.objectives.JointLoss`.

    Args:
        model: the U-Net.
        segmenter: draws the boundaries.
        byte_ids: [B, T + 1]; the first T are read, the last T predicted.
        early_exit: coefficient of the early exit (Section 2.6).
        uniforms: [B, T] in [0, 1) to draw with.
        generator: source of the random numbers otherwise.

    Returns:
        ``loss_language_model``, ``loss_early_exit`` and the segmenter's ``loss_<name>``; metrics ``bits_per_byte``,
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
    boundaries: Tensor,
    probs: Tensor,
    tokens: Tensor,
    target: float,
    *,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Compute the ratio loss of a second level, over tokens.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha),        F = mean_s sg(b_s),  G = mean_s p_s

    The first token of a text has p = 1 and counts, as in H-Net's released code.

    Args:
        boundaries: [*L] bool, b at the bytes that close tokens.
        probs: [*L] p there.
        tokens: [*L] bool, the bytes that close tokens.
        target: alpha, tokens of tokens per token.
        process_group: processes that train together; F is that of all.

    Example:
        >>> drawn = torch.tensor([True, False, False, True])
        >>> tokens = torch.tensor([True, False, True, True])
        >>> second_level_cost(drawn, torch.tensor([1.0, 0.0, 0.4, 0.6]), tokens, 2 / 3)
        tensor(1.)

    Reference: https://arxiv.org/abs/2507.07955
    """
    rate = masked_mean(boundaries.to(probs.dtype), tokens, process_group=process_group)
    return load_balance(rate, loss_mean(probs, tokens, process_group=process_group), target)


class SegmenterLoss(StepLoss):
    """A segmenter's own loss, from a rollout that carries gradients. Writes ``loss_<name>``.

    A rollout with a :class:`~rltok_rl.agents.segmenters.SegmenterActor` has it as ``segmenter_<name>``, with the same
    value at every step of texts that were read together.

    Args:
        name: a key of ``segmenter.coefficients``.
        **options: of :class:`~rltok_rl.objectives.base.StepLoss`.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of the rollout."""

        segmenter_loss: NestedKey = "segmenter"

    default_keys = _AcceptedKeys
    tensor_keys: Any

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.out_keys = [f"loss_{name}"]
        self.set_keys(segmenter_loss=f"segmenter_{name}")

    @property
    def in_keys(self) -> list[NestedKey]:
        """The segmenter's entry."""
        return [self.tensor_keys.segmenter_loss]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the loss in a tensordict without batch dimension."""
        values = read(tensordict, self.tensor_keys.segmenter_loss)
        return TensorDict({self.out_keys[0]: self.reduce(values, self.steps(tensordict))})


class SecondLevelLoss(StepLoss):
    """Keep the rate of tokens of tokens at a target, for models whose second level routes.

    Writes ``loss_second_level`` and the metrics ``second_rate`` (tokens of tokens per token) and ``second_mean_prob``.

    Args:
        target: tokens of tokens per token, in (0, 1).
        **options: of :class:`~rltok_rl.objectives.base.StepLoss`; ``reduction`` must be ``"mean"``.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of the rollout; the second level's under ``next``, as it decides once a token is closed."""

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
        """The steps that closed a token, and the second level's boundaries."""
        keys = self.tensor_keys
        return [keys.action, keys.forced, under_next(keys.second_boundary), under_next(keys.second_probability)]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the loss and its metrics in a tensordict without batch dimension."""
        keys, remedy = self.tensor_keys, " (a model with second_level='routing' writes it)"
        probs = read(tensordict, under_next(keys.second_probability), remedy=remedy)
        drawn = read_flags(tensordict, under_next(keys.second_boundary), remedy=remedy)
        tokens = read(tensordict, keys.action).bool() | read_flags(tensordict, keys.forced)
        real = self.steps(tensordict)
        tokens = tokens if real is None else tokens & real
        cost = second_level_cost(drawn, probs, tokens, self.target_rate, process_group=self.process_group)
        metrics = {
            "second_rate": self.metric(drawn.to(probs.dtype), tokens),
            "second_mean_prob": self.metric(probs, tokens),
        }
        return TensorDict({"loss_second_level": cost, **metrics})
