"""Read text in windows: costs of all bytes, and the boundaries drawn on the way.

A window of context T reads up to T bytes and predicts the byte after each. Windows begin S bytes (the stride) apart,
and each counts the bytes that no earlier window predicted: all of its predictions if S = T, its last S if S < T, so
that these see at least T - S + 1 bytes. Of a text of N bytes, N - 1 are predicted; nothing predicts the first.

A model with ``begin_of_text`` reads the mark before each window, so that it sees the bytes that other models see. What
the mark itself predicts, a byte that the window before predicts from more, is not counted.

Shapes: W windows, B rows of T bytes, n predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter, read_window
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet
from rltok_rl.text import text_to_bytes, text_to_ids
from rltok_rl.utils import check_count

BATCH_BYTES = 16_384
"""Bytes of a forward pass. Results do not depend on it beyond rounding."""

Progress = Callable[[int, int, float], None]
"""Called with bytes predicted, bytes to predict, and the nats that the whole model has paid so far."""


@dataclass(frozen=True)
class TextWindows:
    """Places of W windows in order; a window reads ``start`` to ``end - 2`` and counts ``first`` to ``end - 1``."""

    start: Tensor  # [W] int64
    first: Tensor  # [W] int64, the first byte that no earlier window predicts
    end: Tensor  # [W] int64

    @property
    def reads(self) -> Tensor:
        """[W] bytes that each window reads."""
        return self.end - self.start - 1

    @property
    def sizes(self) -> Tensor:
        """[W] predictions that each window counts."""
        return self.end - self.first

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Tensor | slice) -> TextWindows:
        """Select windows."""
        return TextWindows(self.start[rows], self.first[rows], self.end[rows])

    def spread(self, most: int | None) -> TextWindows:
        """Select at most ``most`` windows, evenly spread; None selects all."""
        if most is None or check_count("most", most) >= len(self):
            return self
        return self.take(torch.arange(most) * len(self) // most)

    def places(self) -> Tensor:
        """Return the places [n] of the bytes read just before each counted byte, in order."""
        sizes = self.sizes
        skipped = self.first - 1 - (sizes.cumsum(0) - sizes)  # from a prediction's number to its place
        return torch.arange(int(sizes.sum())) + skipped.repeat_interleave(sizes)

    def batches(self, num_bytes: int) -> Iterator[Tensor]:
        """Yield numbers of windows of one length that read at most ``num_bytes`` together, at least one each."""
        reads = self.reads
        for length in reads.unique().tolist():
            yield from (reads == length).nonzero().squeeze(1).split(max(1, num_bytes // length))


def lay_windows(spans: Sequence[tuple[int, int]], context: int, stride: int | None = None) -> TextWindows:
    """Lay windows over documents at ``spans``: they predict every byte of a document but its first once.

    Example:
        >>> windows = lay_windows([(0, 8)], 3, stride=2)
        >>> list(zip(windows.start.tolist(), windows.end.tolist()))
        [(0, 4), (2, 6), (4, 8)]
    """
    context = check_count("context", context)
    stride = context if stride is None else check_count("stride", stride)
    if stride > context:
        raise ValueError(f"stride must be at most the context, {context}, so that no byte is left out, got {stride}")
    each = []
    for begin, end in spans:
        start = torch.arange(begin, max(end - 1 - (context - stride), begin + 1), stride)
        ends = (start + context + 1).clamp(max=end)
        each.append((start, torch.cat((torch.tensor([begin + 1]), ends[:-1])), ends))
    return TextWindows(*(torch.cat(column) for column in zip(*each, strict=True)))


def join_documents(text: str | bytes | Sequence[str | bytes]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Join documents to [N] int64 with a byte 0 (in no word) between them; return also the span of each."""
    documents = [text_to_bytes(part) for part in ([text] if isinstance(text, (str, bytes)) else text)]
    if not documents:
        raise ValueError("text must hold at least one text, got none")
    spans, start = [], 0
    for number, document in enumerate(documents):
        if len(document) < 2:
            place = f" in text {number}" if len(documents) > 1 else ""
            raise ValueError(
                f"text must have at least 2 bytes (one to read, one to predict), got {len(document)}{place}"
            )
        spans.append((start, start + len(document)))
        start += len(document) + 1
    return text_to_ids(b"\0".join(documents)), spans


class Output(NamedTuple):
    """Predictions and boundaries of a window [B, T] or a step [B]."""

    final_logits: Tensor  # [.., 256]
    early_logits: Tensor  # [.., 256]
    boundaries: Tensor  # bool
    boundary_logits: Tensor | None = None  # None for rules
    scores: Tensor | None = None  # what a rule compares with its threshold

    def without_first(self, count: int) -> Output:
        """Leave out the first places of windows."""
        return Output._make(None if value is None else value[:, count:] for value in self)


@dataclass(frozen=True)
class SegmentedModel:
    """A model with what draws its boundaries: its own policy, or a segmenter."""

    model: UNet
    segmenter: Segmenter | None
    target_rate: float | None = None
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.target_rate is not None and self.segmenter is not None:
            raise ValueError(f"target_rate belongs to the model's own policy, got it with {self.name}")

    @property
    def name(self) -> str:
        """The segmenter's class."""
        return type(self.segmenter).__name__

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.model.embedding.weight.device

    @property
    def at_random(self) -> bool:
        """Whether boundaries are drawn at random unless they are greedy."""
        return self.segmenter is None or self.segmenter.draws_at_random

    def check_own_greedy(self) -> None:
        """Refuse greedy boundaries of a segmenter that draws at random."""
        if self.greedy and self.segmenter is not None and self.at_random:
            raise ValueError(f"greedy belongs to the model's own policy, got it with {self.name}")

    def check_probabilities(self, logits: Tensor | None) -> None:
        """Refuse greedy boundaries of a segmenter that draws without probabilities."""
        if self.greedy and self.at_random and logits is None:
            raise ValueError(f"greedy needs boundaries that have a probability each, got {self.name}")

    def uniforms(self, count: int, generator: torch.Generator | None) -> Tensor | None:
        """Return [count] random numbers; one half each for a greedy segmenter, None for the greedy policy."""
        if not self.greedy:
            return torch.rand(count, generator=generator)
        return None if self.segmenter is None else torch.full((count,), 0.5)

    def run(self, byte_ids: Tensor, uniforms: Tensor | None) -> Output:
        """Read bytes [B, T] with random numbers [B, T], after the mark if the model has one: [B, num_marks + T].

        The boundary at the mark is given, so it needs no random number.
        """
        byte_ids = self.model.mark(byte_ids.to(self.device))
        if uniforms is not None:
            uniforms = F.pad(uniforms.to(self.device), (self.model.config.num_marks, 0), value=0.5)
        if self.segmenter is None:
            out: Any = self.model(byte_ids, uniforms=uniforms, greedy=self.greedy, target_rate=self.target_rate)
            return Output(out.final_logits, out.early_logits, out.boundaries, out.boundary_logits)
        read = read_window(self.model, self.segmenter, byte_ids, uniforms=uniforms)
        segments = read.segments
        self.check_probabilities(segments.logits)
        return Output(read.final_logits, read.early_logits, segments.boundaries, segments.logits, segments.scores)


@dataclass(frozen=True)
class Reading:
    """Costs of n predictions, and the boundaries drawn on the way; on the CPU."""

    byte_ids: Tensor  # [N] int64, the documents with a byte 0 between them
    at: Tensor  # [n] int64, place of the byte x_t that was read; the prediction is of x_{t+1}
    final_nats: Tensor  # [n] float64, -log p(x_{t+1}) by the whole model
    early_nats: Tensor  # [n] float64, by the early exit
    boundaries: Tensor  # [n] bool, a_t
    begins: Tensor  # [n] bool, the first byte of a window
    document: Tensor  # [n] int64, number of the document
    window_sizes: Tensor  # [W] int64, predictions that each window counts
    num_marks: int = 0  # marks before each window, 0 or 1

    @property
    def num_windows(self) -> int:
        """W."""
        return len(self.window_sizes)

    @property
    def forced(self) -> Tensor:
        """[n] bool, boundaries that are given: those of windows' first bytes, unless a mark comes before."""
        return self.begins & (self.num_marks == 0)

    @property
    def num_tokens(self) -> int:
        """Boundaries, given ones and those of marks included."""
        return int(self.boundaries.sum()) + self.num_marks * int(self.begins.sum())

    @property
    def rate(self) -> float:
        """Tokens per predicted byte."""
        return self.num_tokens / len(self.at)

    @classmethod
    def empty(cls, byte_ids: Tensor, spans: list[tuple[int, int]], windows: TextWindows, model: UNet) -> Reading:
        """Return a reading of zeros, to be filled by :meth:`record`."""
        at = windows.places()
        final, early = torch.zeros(2, len(at), dtype=torch.float64)
        boundaries, begins = torch.zeros(2, len(at), dtype=torch.bool)
        document = torch.searchsorted(torch.tensor([start for start, _ in spans]), at, right=True) - 1
        marks = model.config.num_marks
        return cls(byte_ids, at, final, early, boundaries, begins, document, windows.sizes, marks)

    def record(self, number: Tensor, following: Tensor, out: Output, counted: Tensor) -> float:
        """Write the counted predictions of the bytes ``following``, at ``number``; return their cost in nats."""
        following = following.to(out.boundaries.device)
        for nats, logits in ((self.final_nats, out.final_logits), (self.early_nats, out.early_logits)):
            nats[number] = -byte_log_prob(logits, following).double().cpu()[counted]
        self.boundaries[number] = out.boundaries.cpu()[counted]
        return float(self.final_nats[number].sum())


@torch.no_grad()
def read_text(
    model: UNet,
    text: str | bytes | Sequence[str | bytes],
    *,
    context: int,
    stride: int | None = None,
    most: int | None = None,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    segmenter: Segmenter | None = None,
    target_rate: float | None = None,
    progress: Progress | None = None,
    observe: Callable[[Tensor, Output], None] | None = None,
) -> Reading:
    """Predict documents window by window, with boundaries drawn by the policy or a segmenter.

    Every window draws boundaries for all bytes that it reads, as :func:`~rltok_rl.models.generate` does for a prompt.

    Args:
        model: the U-Net, in the mode it should run in.
        text: one document or several, at least 2 bytes each.
        context: bytes that a window reads at most.
        stride: bytes from the start of one window to the next; None is ``context``. Smaller strides show at least
            ``context - stride + 1`` bytes to each prediction and cost ``context / stride`` times as much.
        most: reads at most this many windows, evenly spread; None reads all.
        greedy: draws a boundary where its probability exceeds one half, without random numbers.
        generator: on the CPU; draws one number per byte read, window by window in the order of the text.
        segmenter: draws the boundaries; None uses the model's own policy.
        target_rate: boundaries per byte, for a model with ``rate_embedding``; None uses the configured rate.
        progress: called after each forward pass.
        observe: called after each forward pass with the numbers [B, T] of its predictions and its output.

    Example:
        >>> from rltok_rl.models import preset
        >>> reading = read_text(UNet(preset("tiny")), "to be or not to be", context=8)
        >>> len(reading.at), reading.num_windows
        (17, 3)
    """
    segmented = SegmentedModel(model, segmenter, target_rate, greedy)
    byte_ids, spans = join_documents(text)
    windows = lay_windows(spans, context, stride).spread(most)
    reading = Reading.empty(byte_ids, spans, windows, model)
    reads, first = windows.reads, windows.first
    begins = windows.sizes.cumsum(0) - windows.sizes  # number of each window's first prediction
    before = reads.cumsum(0) - reads  # number of its first random number
    uniforms = segmented.uniforms(int(reads.sum()), generator)
    done, cost = 0, 0.0
    for rows in windows.batches(BATCH_BYTES):
        steps = torch.arange(int(reads[rows[0]]))
        place = windows.start[rows, None] + steps  # [B, T]
        drawn = None if uniforms is None else uniforms[before[rows, None] + steps]
        out = segmented.run(byte_ids[place], drawn).without_first(model.config.num_marks)
        numbers = (begins - first)[rows, None] + place + 1  # [B, T]
        counted = place + 1 >= first[rows, None]
        cost += reading.record(numbers[counted], byte_ids[place + 1], out, counted)
        reading.begins[numbers[counted]] = (steps == 0).expand_as(counted)[counted]
        done += int(counted.sum())
        if observe is not None:
            observe(numbers, out)
        if progress is not None:
            progress(done, len(reading.at), cost)
    return reading
