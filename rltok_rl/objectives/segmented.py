"""Language-model training with any segmenter in one forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import SegmentedOutput, Segmenter, read_window
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models.unet import UNet
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
    read, following = byte_ids[:, :-1], byte_ids[:, 1:]
    out = read_window(model, segmenter, read, uniforms=uniforms, generator=generator)
    language_model = -byte_log_prob(out.final_logits, following).mean()
    early = -byte_log_prob(out.early_logits, following).mean()
    losses = {"loss_language_model": language_model, "loss_early_exit": early_exit * early}
    for name, loss in segmenter.losses(out.segments, read, out.final_logits).items():
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
