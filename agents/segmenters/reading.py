"""A U-Net and a segmenter together: whole windows in one forward pass, and the same byte by byte.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments, State
from torch import Tensor

from rltok_rl.models.cache import UNetCache
from rltok_rl.models.checks import check_byte_ids
from rltok_rl.models.incremental import Observation, Prediction, decide, observe
from rltok_rl.models.level import SecondDecisions
from rltok_rl.models.mixing import Mixing, policy_smoothing
from rltok_rl.models.tokens import Layout
from rltok_rl.models.unet import UNet


@dataclass(frozen=True)
class SegmentedOutput:
    """What one forward pass says about a window."""

    segments: Segments
    encoder_states: Tensor  # [B, T, D]
    early_logits: Tensor  # [B, T, 256]
    final_logits: Tensor  # [B, T, 256]
    second: SecondDecisions | None = None  # [B, T], where the model has a second level


def read_window(
    model: UNet,
    segmenter: Segmenter,
    byte_ids: Tensor,
    *,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    layout: Layout = "padded",
) -> SegmentedOutput:
    """Encode, draw boundaries, decode; with gradients on, the segmenter learns from the predictions where it can.

    Args:
        model: the U-Net.
        segmenter: who draws the boundaries.
        byte_ids: [B, T] the bytes, each row from the first byte of its text on.
        uniforms: [B, T] in [0, 1) to draw with.
        generator: source of the random numbers otherwise.
        layout: ``"padded"`` or ``"packed"`` tokens, or a :class:`~rltok_rl.models.tokens.Packing`.

    Example:
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> read_window(model, make_segmenter("hnet", model), torch.randint(256, (2, 10))).final_logits.shape
        torch.Size([2, 10, 256])
    """
    check_byte_ids(byte_ids, model.config.num_ids)
    states = model.encode(byte_ids)
    segments = segmenter(states, byte_ids, uniforms=uniforms, generator=generator)
    forced = torch.arange(byte_ids.shape[1], device=byte_ids.device) == 0
    mixing = segments_mixing(model, segments, forced)
    decoded = model.decode_levels(states, segments.boundaries, layout=layout, mixing=mixing)
    early_logits, final_logits = model.early_logits(states), model.final_logits(decoded.states)
    return SegmentedOutput(segments, states, early_logits, final_logits, decoded.second)


@dataclass
class Reader:
    """The memory of a model and its segmenter between two bytes."""

    cache: UNetCache
    state: State


@dataclass(frozen=True)
class ByteReading:
    """What one more byte gave."""

    observation: Observation
    segments: Segments
    prediction: Prediction


def start_reading(model: UNet, segmenter: Segmenter, num_rows: int) -> Reader:
    """Nothing read yet in ``num_rows`` texts.

    Args:
        model: the U-Net.
        segmenter: who draws the boundaries.
        num_rows: B.
    """
    return Reader(model.new_cache(num_rows), segmenter.start(num_rows, device=model.embedding.weight.device))


@torch.no_grad()
def read_byte(
    model: UNet,
    segmenter: Segmenter,
    reader: Reader,
    byte_ids: Tensor,
    *,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> ByteReading:
    """Read a byte in every row, draw its boundary, predict the next byte.

    Args:
        model: the U-Net.
        segmenter: who draws the boundaries; it must not look ahead.
        reader: their memory; changed in place.
        byte_ids: [B] the bytes.
        uniforms: [B] in [0, 1) to draw with.
        generator: source of the random numbers otherwise.
    """
    if segmenter.looks_ahead:
        raise ValueError(f"segmenter must not look ahead to be streamed, got {type(segmenter).__name__}")
    observed = observe(model, reader.cache, byte_ids)
    segments, reader.state = segmenter.step(
        observed.encoder_state, byte_ids, reader.state, uniforms=uniforms, generator=generator
    )
    mixing = segments_mixing(model, segments, reader.cache.position == 0)
    return ByteReading(observed, segments, decide(model, reader.cache, segments.boundaries, mixing=mixing))


def segments_mixing(model: UNet, segments: Segments, forced: Tensor) -> Mixing:
    """The segmenter's way; where the model smooths, by the segmenter's probabilities and not by its own policy's.

    Args:
        model: the U-Net.
        segments: what was drawn, [B, T] of windows or [B] of a step.
        forced: bool of that shape or one that broadcasts to it, boundaries that nobody decided.
    """
    return policy_smoothing(
        model.config.smoothing, segments.logits, segments.boundaries, forced, mixing=segments.mixing
    )
