"""A U-Net run with a segmenter: whole windows, byte by byte, whole documents, and generation.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from rltok_rl.agents.segmenters.segmenter import Segmenter, Segments, State, encode_and_draw
from torch import Tensor

from rltok_rl.functional.decoding import sample_bytes
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.checks import check_byte_ids
from rltok_rl.models.generation import GeneratedByte
from rltok_rl.models.incremental import Observation, Prediction, decide, observe
from rltok_rl.models.level import SecondDecisions
from rltok_rl.models.mixing import Mixing, policy_smoothing
from rltok_rl.models.segmentation import PIECE, Progress, Segmentation, encode_pieces, join_parts
from rltok_rl.models.tokens import Layout
from rltok_rl.models.unet import UNet
from rltok_rl.text import text_to_bytes, text_to_ids
from rltok_rl.utils import check_count


@dataclass(frozen=True)
class SegmentedOutput:
    """Output of one forward pass over a window."""

    segments: Segments
    encoder_states: Tensor  # [B, T, D]
    early_logits: Tensor  # [B, T, 256]
    final_logits: Tensor  # [B, T, 256]
    second: SecondDecisions | None = None  # [B, T], of models with a second level


def read_window(
    model: UNet,
    segmenter: Segmenter,
    byte_ids: Tensor,
    *,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    layout: Layout = "padded",
) -> SegmentedOutput:
    """Encode windows [B, T] of whole texts, draw their boundaries and decode.

    Differentiable boundaries carry the predictions' gradient. The layout of tokens is ``"padded"``, ``"packed"``, or a
    :class:`~rltok_rl.models.tokens.Packing`.

    Example:
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> read_window(model, make_segmenter("hnet", model), torch.randint(256, (2, 10))).final_logits.shape
        torch.Size([2, 10, 256])
    """
    check_byte_ids(byte_ids, model.config.num_ids)
    states, segments = encode_and_draw(model, segmenter, byte_ids, uniforms=uniforms, generator=generator)
    forced = torch.arange(byte_ids.shape[1], device=byte_ids.device) == 0
    mixing = segments_mixing(model, segments, forced)
    decoded = model.decode_levels(states, segments.boundaries, layout=layout, mixing=mixing)
    early_logits, final_logits = model.early_logits(states), model.final_logits(decoded.states)
    return SegmentedOutput(segments, states, early_logits, final_logits, decoded.second)


@dataclass
class Reader:
    """Memory of a model and its segmenter between two bytes."""

    cache: UNetCache
    state: State


@dataclass(frozen=True)
class ByteReading:
    """Output of one step."""

    observation: Observation
    segments: Segments
    prediction: Prediction


def start_reading(model: UNet, segmenter: Segmenter, num_rows: int) -> Reader:
    """Return the memory before the first byte of ``num_rows`` texts."""
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
    """Read a byte in every row, draw its boundary and predict the next byte; changes ``reader`` in place."""
    if segmenter.looks_ahead:
        raise ValueError(f"segmenter must not look ahead to be streamed, got {type(segmenter).__name__}")
    observed = observe(model, reader.cache, byte_ids)
    segments, reader.state = segmenter.step(
        observed.encoder_state, byte_ids, reader.state, uniforms=uniforms, generator=generator
    )
    mixing = segments_mixing(model, segments, reader.cache.position == 0)
    return ByteReading(observed, segments, decide(model, reader.cache, segments.boundaries, mixing=mixing))


def segments_mixing(model: UNet, segments: Segments, forced: Tensor) -> Mixing:
    """Return the segmenter's mixing; if the model smooths tokens, it does so by the segmenter's probabilities.

    ``forced`` marks boundaries that are no decisions; its shape is that of the segments, or broadcasts to it.
    """
    smoothing = model.config.smoothing
    return policy_smoothing(smoothing, segments.logits, segments.boundaries, forced, mixing=segments.mixing)


def segment_text(
    model: UNet,
    segmenter: Segmenter,
    text: str | bytes,
    *,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Segmentation:
    """Draw the boundaries of a text of any length; probabilities are 0 or 1 if the segmenter has none.

    ``progress`` is called with the number of bytes encoded so far and the total.
    """
    return join_parts(list(segment_text_parts(model, segmenter, text, generator=generator, progress=progress)))


@torch.no_grad()
def segment_text_parts(
    model: UNet,
    segmenter: Segmenter,
    text: str | bytes,
    *,
    generator: torch.Generator | None = None,
    piece: int = PIECE,
    progress: Progress | None = None,
) -> Iterator[Segmentation]:
    """Yield the result of :func:`segment_text` in parts of ``piece`` bytes, as soon as each is drawn.

    In memory are the text, 12 bytes per byte of it (ids and random numbers), and the encoder's states of one part. A
    segmenter without ``draws_parts`` reads the whole text first: tokenizers, whose tokens depend on later bytes, a
    learned policy as a segmenter, whose lags an actor keeps within windows, and custom ones that define no ``_part``.
    """
    marks, device = model.config.num_marks, model.embedding.weight.device
    content, byte_ids = text_to_bytes(text), model.mark(text_to_ids(text))
    if not content:
        raise ValueError("text must have at least 1 byte, got an empty text")
    drawing = segmenter.draws_at_random
    uniforms = torch.rand(1, len(byte_ids), generator=generator, device=device) if drawing else None
    if segmenter.reads_states:
        pieces = encode_pieces(model, byte_ids, piece=piece, progress=progress)
    else:
        pieces = _without_states(byte_ids, check_count("piece", piece), device, progress)
    if not segmenter.draws_parts:
        pieces = iter([torch.cat(list(pieces), 1)])  # [1, T, D]
    state, start = segmenter.start(1, device=device), 0
    for states in pieces:
        stop = start + states.shape[1]
        read = byte_ids[None, start:stop].to(device)
        numbers = None if uniforms is None else uniforms[:, start:stop]
        if segmenter.draws_parts:
            segments, state = segmenter.draw_part(states, read, state, uniforms=numbers)
        else:
            segments = segmenter(states, read, uniforms=numbers)
        probabilities = (segments.boundaries if segments.logits is None else segments.logits.sigmoid())[0].float().cpu()
        if start == 0:
            probabilities[0] = 1.0
        if stop > marks:
            new = slice(max(marks - start, 0), None)
            drawn = segments.boundaries[0, new].cpu(), probabilities[new]
            yield Segmentation(content[max(start - marks, 0) : stop - marks], *drawn)
        start = stop


def _without_states(byte_ids: Tensor, piece: int, device: torch.device, progress: Progress | None) -> Iterator[Tensor]:
    """Yield [1, <= piece, 1] zeros in place of encoder states, for segmenters that read none."""
    for start in range(0, len(byte_ids), piece):
        stop = min(start + piece, len(byte_ids))
        yield torch.zeros(1, stop - start, 1, device=device)
        if progress is not None:
            progress(stop, len(byte_ids))


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
    """Read a prompt and continue it byte by byte; ``new`` marks the ``max_bytes`` bytes of the continuation.

    ``temperature`` 1 samples the model's distribution, 0 takes the likeliest byte. ``top_k`` keeps only the k likeliest
    bytes, ``top_p`` only the likeliest that together have this probability.
    """
    if segmenter.looks_ahead:
        raise ValueError(f"segmenter must not look ahead to write, got {type(segmenter).__name__}")
    marks = model.config.num_marks
    prompt_ids = model.mark(text_to_ids(prompt))
    if len(prompt_ids) == marks:
        raise ValueError("prompt must not be empty (a byte is needed to predict from)")
    draw = partial(sample_bytes, temperature=temperature, top_k=top_k, top_p=top_p)
    # Raise for wrong options now, not at the first byte, and leave the user's random numbers alone.
    draw(torch.zeros(1, 256), generator=torch.Generator())
    num_bytes = len(prompt_ids) + check_count("max_bytes", max_bytes, minimum=0)
    device = model.embedding.weight.device

    @torch.no_grad()
    def read() -> Iterator[GeneratedByte]:
        reader = start_reading(model, segmenter, 1)
        logits = torch.zeros(1, 256, device=device)  # the first id is not predicted
        for position in range(num_bytes):
            new = position >= len(prompt_ids)
            byte_ids = draw(logits, generator=generator) if new else prompt_ids[position : position + 1].to(device)
            reading = read_byte(model, segmenter, reader, byte_ids, generator=generator)
            if position >= marks:
                new_row = torch.tensor([new], device=device)
                yield GeneratedByte(byte_ids, reading.segments.boundaries, byte_log_prob(logits, byte_ids), new_row)
            logits = reading.prediction.final_logits

    return read()
