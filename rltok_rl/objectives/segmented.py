"""Language-model training with any segmenter: in one forward pass, or as terms of a joint loss over rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.agents.segmenters import SegmentedOutput, Segmenter, read_window
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import StepLoss, read
from rltok_rl.objectives.second_level import SECOND_LEVEL_WEIGHT, second_level_cost


@dataclass(frozen=True)
class SegmentedLosses:
    """Losses of one batch by name, times their coefficients, and figures without gradient."""

    losses: dict[str, Tensor]
    figures: dict[str, Tensor]
    output: SegmentedOutput

    @property
    def total(self) -> Tensor:
        """What to differentiate."""
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
    """Next-byte losses of a U-Net whose boundaries a segmenter draws, and the segmenter's own.

        L = L_auto + lambda_early L_early + sum_k c_k L_k + 0.03 L_second

    L_second is the ratio loss of a second level that routes, at the rate that the segmenter or else the model says.

    Where boundaries carry a gradient (``gumbel``, ``hnet``) the segmenter learns from L_auto too. The learned policy
    does not learn here: its gradient is that of :class:`~rltok_rl.objectives.JointLoss`.

    Args:
        model: the U-Net.
        segmenter: who draws the boundaries.
        byte_ids: [B, T + 1] of which T are read and the T after the first predicted.
        early_exit: coefficient of the early exit.  # Section 2.6
        uniforms: [B, T] in [0, 1) to draw with.
        generator: source of the random numbers otherwise.

    Returns:
        ``loss_language_model``, ``loss_early_exit`` and ``loss_<name>`` of the segmenter; figures ``bits_per_byte``,
        ``early_bits_per_byte`` and ``rate``. With a second level ``second_rate``, and ``loss_second_level`` where it
        routes.

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
    figures = {
        "bits_per_byte": language_model.detach() / math.log(2),
        "early_bits_per_byte": early.detach() / math.log(2),
        "rate": out.segments.boundaries.float().mean(),
    }
    if out.second is not None:
        drawn, tokens = out.second.boundaries, out.segments.boundaries
        figures["second_rate"] = drawn.sum() / tokens.sum()
        if out.second.probabilities is not None:
            target = segmenter.second_rate or model.config.second_rate
            cost = second_level_cost(drawn, out.second.probabilities, tokens, target)
            losses["loss_second_level"] = SECOND_LEVEL_WEIGHT * cost
    return SegmentedLosses(losses, figures, out)


class SegmenterLoss(StepLoss):
    """A loss that a segmenter has of its own, read from a rollout that carries gradients.

    An environment that is rolled out by a :class:`~rltok_rl.agents.segmenters.SegmenterActor` writes it as
    ``segmenter_<name>``, at every step the value of the texts that were read together. Writes ``loss_<name>``.

    Args:
        name: a key of ``segmenter.coefficients``.
        **options: of :class:`~rltok_rl.objectives.base.StepLoss`.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys."""

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
        """A tensordict without batch dimension: the loss."""
        values = read(tensordict, self.tensor_keys.segmenter_loss)
        return TensorDict({self.out_keys[0]: self.reduce(values, self.steps(tensordict))})
