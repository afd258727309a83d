"""Reading whole texts byte by byte through a cache: no windows, each byte after all that come before it.

The same predictions as a forward pass over the whole text, in memory that grows with its tokens alone (their keys and
values), where a forward pass holds the states of all bytes. Every byte is a step of its own, so that this takes far
longer than windows do.

Shapes: B rows, T bytes of the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Reader, Segmenter, read_byte, start_reading
from rltok_rl.evaluation.reading import (
    Progress,
    Reading,
    Windows,
    check_probabilities,
    check_rate,
    draw_uniforms,
    join_texts,
)
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet
from rltok_rl.models.incremental import decide, observe
from rltok_rl.sampling import draw_boundary

ROW_BYTES = 1 << 18
"""Bytes of texts that are read side by side, as many rows as the longest leaves room for."""
_TELL = 256  # steps between two words on how far it is


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
    """Predict one text or several as :func:`read_text` with windows as long as the texts does, byte by byte.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes, each.
        greedy: draw a boundary where its probability exceeds one half, and use no random numbers.
        generator: on the CPU, source of the random numbers: one per byte read, in the order of the text.
        segmenter: draws the boundaries, and must not look ahead; None is the model's own policy.
        target_rate: boundaries per byte that the policy aims at, where the model has ``rate_embedding``; None is the
            configured rate.
        progress: told how far it is.

    Returns:
        A reading with one window for each text.

    Example:
        >>> from rltok_rl.models import preset
        >>> reading = read_streamed(UNet(preset("tiny")), ["to be", "or not to be"])
        >>> len(reading.at), reading.num_windows
        (15, 2)
    """
    check_rate(segmenter, target_rate)
    if segmenter is not None and segmenter.looks_ahead:
        raise ValueError(f"segmenter must not look ahead to be streamed, got {type(segmenter).__name__}")
    byte_ids, starts = join_texts(text)
    start, end = torch.tensor(starts).unbind(1)
    whole = Windows(start, start + 1, end)
    at, sizes = whole.places(), whole.sizes  # [n], [texts]
    into = sizes.cumsum(0) - sizes
    uniforms = draw_uniforms(len(at), greedy, segmenter, generator)
    final, early = (torch.zeros(len(at), dtype=torch.float64) for _ in range(2))
    boundaries, forced = (torch.zeros(len(at), dtype=torch.bool) for _ in range(2))
    forced[into] = True
    device, done, cost = model.embedding.weight.device, 0, 0.0
    for rows in _side_by_side(sizes):
        stepper = Stepper(model, segmenter, len(rows), greedy=greedy, target_rate=target_rate)
        left = sizes[rows]
        for t in range(int(left.max())):
            here = t < left
            number = into[rows] + torch.minimum(torch.tensor(t), left - 1)  # [B]; a text at its end reads on in place
            drawn = None if uniforms is None else uniforms[number].to(device)
            place = at[number]
            final_logits, early_logits, found = stepper.step(byte_ids[place].to(device), drawn)
            following, number = byte_ids[place + 1].to(device), number[here]
            final[number] = -byte_log_prob(final_logits, following).double().cpu()[here]
            early[number] = -byte_log_prob(early_logits, following).double().cpu()[here]
            boundaries[number] = found.cpu()[here]
            done, cost = done + len(number), cost + float(final[number].sum())
            if progress is not None and (t % _TELL == 0 or done == len(at)):
                progress(done, len(at), cost)
    document = torch.arange(len(sizes)).repeat_interleave(sizes)
    return Reading(byte_ids, at, final, early, boundaries, forced, len(sizes), document, sizes)


class Stepper:
    """Reads texts side by side, a byte of each at a time, and predicts the next; rows can branch.

    Args:
        model: the U-Net.
        segmenter: draws the boundaries; None is the model's own policy.
        num_rows: B.
        greedy: draw a boundary where its probability exceeds one half.
        target_rate: that of the policy.
    """

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
        """Bytes [B] and random numbers [B] to final and early logits [B, 256] and boundaries [B]."""
        model, cache = self.model, self.reader.cache
        if self.segmenter is None:
            observed = observe(model, cache, byte_ids)
            drawn = draw_boundary(observed.boundary_logit, uniforms) | (cache.position == 0)
            return decide(model, cache, drawn).final_logits, observed.early_logits, drawn
        read = read_byte(model, self.segmenter, self.reader, byte_ids, uniforms=uniforms)
        check_probabilities(self.segmenter, read.segments.logits, self.greedy)
        return read.prediction.final_logits, read.observation.early_logits, read.segments.boundaries

    def take(self, rows: Tensor) -> None:
        """Go on from some rows [n], in the order given; a row that is named several times branches."""
        strange = [name for name, kept in self.reader.state.items() if not isinstance(kept, Tensor)]
        if strange:
            raise TypeError(
                f"segmenter must keep tensors to branch, got {type(self.segmenter).__name__} with {strange}"
            )
        state = {name: kept.index_select(0, rows) for name, kept in self.reader.state.items()}
        self.reader = Reader(self.reader.cache.take(rows), state)


def _side_by_side(sizes: Tensor) -> Iterator[Tensor]:
    """Numbers of texts that are read together: long ones first, so that the texts of a batch end at about one time."""
    order = sizes.argsort(descending=True, stable=True)
    start = 0
    while start < len(order):
        rows = max(1, ROW_BYTES // int(sizes[order[start]]))
        yield order[start : start + rows]
        start += rows
