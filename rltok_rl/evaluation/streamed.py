"""Read text byte by byte through a decoding cache: each byte after all that come before it, without windows.

Predictions equal those of one forward pass over the whole text. Memory grows with tokens only (their keys and values),
but every byte is a step, so windows are far faster.

Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Reader, Segmenter, read_byte, start_reading
from rltok_rl.evaluation.windowed import (
    Progress,
    Reading,
    TextWindows,
    check_probabilities,
    check_rate,
    draw_uniforms,
    empty_reading,
    join_documents,
)
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet
from rltok_rl.models.incremental import decide, observe
from rltok_rl.sampling import draw_boundary

ROW_BYTES = 1 << 18
"""Bytes of documents that are read side by side: rows of a batch times its longest document."""
_REPORT_EVERY = 256  # steps between two calls of ``progress``


@torch.no_grad()
def read_streamed(
    model: UNet,
    text: str | bytes | Sequence[str | bytes],
    *,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    segmenter: Segmenter | None = None,
    target_rate: float | None = None,
    progress: Progress | None = None,
) -> Reading:
    """Predict documents byte by byte, as :func:`read_text` does with one window for each document.

    Args:
        model: the U-Net, in the mode it should run in.
        text: one document or several, at least 2 bytes each.
        greedy: draws a boundary where its probability exceeds one half, without random numbers.
        generator: on the CPU; draws one number per byte read, in the order of the text.
        segmenter: draws the boundaries without looking ahead; None uses the model's own policy.
        target_rate: boundaries per byte, for a model with ``rate_embedding``; None uses the configured rate.
        progress: called every few steps.

    Example:
        >>> from rltok_rl.models import preset
        >>> reading = read_streamed(UNet(preset("tiny")), ["to be", "or not to be"])
        >>> len(reading.at), reading.num_windows
        (15, 2)
    """
    check_rate(segmenter, target_rate)
    if segmenter is not None and segmenter.looks_ahead:
        raise ValueError(f"segmenter must not look ahead to be streamed, got {type(segmenter).__name__}")
    byte_ids, spans = join_documents(text)
    start, end = torch.tensor(spans).unbind(1)
    windows = TextWindows(start, start + 1, end)
    reading, sizes = empty_reading(byte_ids, spans, windows), windows.sizes
    total, begins = len(reading.at), sizes.cumsum(0) - sizes
    reading.forced[begins] = True
    uniforms = draw_uniforms(total, greedy, segmenter, generator)
    device, done, cost = model.embedding.weight.device, 0, 0.0
    for rows in _side_by_side(sizes):
        stepper = Stepper(model, segmenter, len(rows), greedy=greedy, target_rate=target_rate)
        left = sizes[rows]
        for t in range(int(left.max())):
            active = t < left
            number = begins[rows] + torch.minimum(
                torch.tensor(t), left - 1
            )  # [B]; finished rows repeat their last byte
            drawn = None if uniforms is None else uniforms[number].to(device)
            place = reading.at[number]
            final_logits, early_logits, boundaries = stepper.step(byte_ids[place].to(device), drawn)
            following, number = byte_ids[place + 1].to(device), number[active]
            reading.final_nats[number] = -byte_log_prob(final_logits, following).double().cpu()[active]
            reading.early_nats[number] = -byte_log_prob(early_logits, following).double().cpu()[active]
            reading.boundaries[number] = boundaries.cpu()[active]
            done, cost = done + len(number), cost + float(reading.final_nats[number].sum())
            if progress is not None and (t % _REPORT_EVERY == 0 or done == total):
                progress(done, total, cost)
    return reading


class Stepper:
    """Reads B rows of text, a byte of each per step, and predicts the next; rows can branch."""

    def __init__(
        self,
        model: UNet,
        segmenter: Segmenter | None,
        num_rows: int,
        *,
        greedy: bool = False,
        target_rate: float | None = None,
    ) -> None:
        self.model, self.segmenter, self.greedy = model, segmenter, greedy
        if segmenter is None:
            self.reader = Reader(model.new_cache(num_rows, target_rate=target_rate), {})
        else:
            self.reader = start_reading(model, segmenter, num_rows)

    def step(self, byte_ids: Tensor, uniforms: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Turn bytes [B] and random numbers [B] into final and early logits [B, 256] and boundaries [B]."""
        model, cache = self.model, self.reader.cache
        if self.segmenter is None:
            observed = observe(model, cache, byte_ids)
            drawn = draw_boundary(observed.boundary_logit, uniforms) | (cache.position == 0)
            return decide(model, cache, drawn).final_logits, observed.early_logits, drawn
        read = read_byte(model, self.segmenter, self.reader, byte_ids, uniforms=uniforms)
        check_probabilities(self.segmenter, read.segments.logits, self.greedy)
        return read.prediction.final_logits, read.observation.early_logits, read.segments.boundaries

    def take(self, rows: Tensor) -> None:
        """Continue from rows [n] in this order; a row that occurs several times branches."""
        other = [name for name, value in self.reader.state.items() if not isinstance(value, Tensor)]
        if other:
            raise TypeError(f"segmenter must keep tensors to branch, got {type(self.segmenter).__name__} with {other}")
        state = {name: value.index_select(0, rows) for name, value in self.reader.state.items()}
        self.reader = Reader(self.reader.cache.take(rows), state)


def _side_by_side(sizes: Tensor) -> Iterator[Tensor]:
    """Numbers of documents that form a batch, the longest first: those of a batch end at about the same time."""
    order = sizes.argsort(descending=True, stable=True)
    start = 0
    while start < len(order):
        rows = max(1, ROW_BYTES // int(sizes[order[start]]))
        yield order[start : start + rows]
        start += rows
