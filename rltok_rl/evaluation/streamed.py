"""Read text byte by byte through a decoding cache: each byte after all that come before it, without windows.

Predictions equal those of one forward pass over the whole text. Memory grows with tokens only (their keys and values),
but every byte is a step, so windows are far faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Reader, Segmenter, read_byte, start_reading
from rltok_rl.evaluation.windowed import Output, Progress, Reading, SegmentedModel, TextWindows, join_documents
from rltok_rl.models import UNet
from rltok_rl.models.config import BEGIN_OF_TEXT
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

    Options are those of :func:`read_text`; a segmenter must not look ahead.
    """
    segmented = SegmentedModel(model, segmenter, target_rate, greedy)
    if segmenter is not None and segmenter.looks_ahead:
        raise ValueError(f"segmenter must not look ahead to be streamed, got {segmented.name}")
    byte_ids, spans = join_documents(text)
    start, end = torch.tensor(spans).unbind(1)
    reading = Reading.empty(byte_ids, spans, TextWindows(start, start + 1, end), model)
    sizes, total = end - start - 1, len(reading.at)
    begins = sizes.cumsum(0) - sizes
    reading.begins[begins] = True
    uniforms = segmented.uniforms(total, generator)
    done, cost = 0, 0.0
    for rows in _side_by_side(sizes):
        stepper = Stepper(segmented, len(rows))
        left = sizes[rows]
        for t in range(int(left.max())):
            active = t < left
            number = begins[rows] + left.sub(1).clamp(max=t)  # [B]; finished rows repeat their last byte
            place = reading.at[number]
            out = stepper.step(byte_ids[place], None if uniforms is None else uniforms[number])
            cost += reading.record(number[active], byte_ids[place + 1], out, active)
            done += int(active.sum())
            if progress is not None and (t % _REPORT_EVERY == 0 or done == total):
                progress(done, total, cost)
    return reading


class Stepper:
    """Reads B rows of text, a byte of each per step, and predicts the next; rows can branch.

    A model with a mark has read it before the first step.
    """

    def __init__(self, segmented: SegmentedModel, num_rows: int) -> None:
        self.segmented = segmented
        model, segmenter = segmented.model, segmented.segmenter
        if segmenter is None:
            self.reader = Reader(model.new_cache(num_rows, target_rate=segmented.target_rate), {})
        else:
            self.reader = start_reading(model, segmenter, num_rows)
        if model.config.begin_of_text:
            uniforms = None if segmented.greedy and segmenter is None else torch.full((num_rows,), 0.5)
            self.step(torch.full((num_rows,), BEGIN_OF_TEXT), uniforms)

    def step(self, byte_ids: Tensor, uniforms: Tensor | None) -> Output:
        """Read bytes [B] with random numbers [B]."""
        segmented, cache = self.segmented, self.reader.cache
        model, segmenter, device = segmented.model, segmented.segmenter, segmented.device
        byte_ids, uniforms = byte_ids.to(device), None if uniforms is None else uniforms.to(device)
        if segmenter is None:
            seen = observe(model, cache, byte_ids)
            drawn = draw_boundary(seen.boundary_logit, uniforms) | (cache.position == 0)
            return Output(decide(model, cache, drawn).final_logits, seen.early_logits, drawn)
        read = read_byte(model, segmenter, self.reader, byte_ids, uniforms=uniforms)
        segmented.check_probabilities(read.segments.logits)
        return Output(read.prediction.final_logits, read.observation.early_logits, read.segments.boundaries)

    def take(self, rows: Tensor) -> None:
        """Continue from rows [n] in this order; a row that occurs several times branches."""
        rows = rows.to(self.segmented.device)
        other = [name for name, value in self.reader.state.items() if not isinstance(value, Tensor)]
        if other:
            raise TypeError(f"segmenter must keep tensors to branch, got {self.segmented.name} with {other}")
        state = {name: value.index_select(0, rows) for name, value in self.reader.state.items()}
        self.reader = Reader(self.reader.cache.take(rows), state)


def _side_by_side(sizes: Tensor) -> Iterator[Tensor]:
    """Numbers of documents that form a batch, the longest first: those of a batch end at about the same time."""
    order = sizes.argsort(descending=True, stable=True)
    while len(order):
        rows = max(1, ROW_BYTES // int(sizes[order[0]]))
        yield order[:rows]
        order = order[rows:]
