"""Whole texts with a segmenter: where their tokens end, and what a model writes on from them.

Shapes: T bytes, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from rltok_rl.agents.segmenters.base import Segmenter
from rltok_rl.agents.segmenters.reading import read_byte, start_reading
from torch import Tensor

from rltok_rl.functional.decoding import sample_bytes
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models.generation import GeneratedByte
from rltok_rl.models.segmentation import Progress, Segmentation, encode_pieces
from rltok_rl.models.unet import UNet
from rltok_rl.text import text_to_bytes, text_to_ids
from rltok_rl.utils import check_count


@torch.no_grad()
def segment_text(
    model: UNet,
    segmenter: Segmenter,
    text: str | bytes,
    *,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Segmentation:
    """Draw the boundaries of a text of any length; probabilities are 0 or 1 where the segmenter has none.

    Args:
        model: the U-Net.
        segmenter: who draws the boundaries.
        text: at least one byte.
        generator: source of the random numbers.
        progress: told how many bytes have been encoded, and of how many.
    """
    byte_ids = text_to_ids(text)
    if not len(byte_ids):
        raise ValueError("text must have at least 1 byte, got an empty text")
    states = torch.cat(list(encode_pieces(model, byte_ids, progress=progress)), 1)  # [1, T, D]
    segments = segmenter(states, byte_ids[None].to(states.device), generator=generator)
    known = segments.boundaries if segments.logits is None else segments.logits.sigmoid()
    probabilities = known[0].float().cpu()
    probabilities[0] = 1.0
    return Segmentation(text_to_bytes(text), segments.boundaries[0].cpu(), probabilities)


def write_on(
    model: UNet,
    segmenter: Segmenter,
    prompt: str | bytes,
    *,
    max_bytes: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[GeneratedByte]:
    """Read a prompt and continue it, byte by byte; ``new`` says which bytes are written.

    Args:
        model: the U-Net, in the mode it should run in.
        segmenter: who draws the boundaries; it must not look ahead.
        prompt: at least one byte.
        max_bytes: how many to write.
        temperature: 1 samples the model's distribution, 0 takes the likeliest byte.
        top_k: keep only the k likeliest bytes.
        top_p: keep only the likeliest bytes that together hold this much probability.
        generator: source of all random numbers.
    """
    if segmenter.looks_ahead:
        raise ValueError(f"segmenter must not look ahead to write, got {type(segmenter).__name__}")
    given = text_to_ids(prompt)
    if not len(given):
        raise ValueError("prompt must not be empty (a byte is needed to predict from)")
    draw = partial(sample_bytes, temperature=temperature, top_k=top_k, top_p=top_p)
    draw(torch.zeros(1, 256))  # refuse wrong options now, not at the first byte
    return _write_on(model, segmenter, given, check_count("max_bytes", max_bytes, minimum=0), draw, generator)


@torch.no_grad()
def _write_on(
    model: UNet,
    segmenter: Segmenter,
    given: Tensor,
    max_bytes: int,
    draw: Callable[..., Tensor],
    generator: torch.Generator | None,
) -> Iterator[GeneratedByte]:
    device = model.embedding.weight.device
    reader = start_reading(model, segmenter, 1)
    logits = torch.zeros(1, 256, device=device)  # nothing predicts the first byte
    for position in range(len(given) + max_bytes):
        new = position >= len(given)
        byte_ids = draw(logits, generator=generator) if new else given[position : position + 1].to(device)
        reading = read_byte(model, segmenter, reader, byte_ids, generator=generator)
        written = torch.tensor([new], device=device)
        yield GeneratedByte(byte_ids, reading.segments.boundaries, byte_log_prob(logits, byte_ids), written)
        logits = reading.prediction.final_logits
