"""Windows of text, laid so that every byte but the first is predicted exactly once.

A window of context T reads up to T bytes and predicts the byte after each. The next window begins S bytes (the stride)
further on and predicts the bytes that no window before it has: all of its own where S = T, the last S where S < T, so
that each of these has at least T - S + 1 bytes before it. Of a text of N bytes, N - 1 are predicted; nothing predicts
the first.

Shapes: W windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter, read_window
from rltok_rl.evaluation.bits import loss_figures
from rltok_rl.evaluation.words import word_edge_share
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet
from rltok_rl.text import text_to_bytes
from rltok_rl.utils import check_count


@dataclass(frozen=True)
class Windows:
    """Where windows lie in a text, in order; each reads ``start`` to ``end - 2``, predicts ``first`` to ``end - 1``."""

    start: Tensor  # [W] int64
    first: Tensor  # [W] int64, the first byte that no window before it has predicted
    end: Tensor  # [W] int64

    @property
    def reads(self) -> Tensor:
        """[W] bytes that each window reads."""
        return self.end - self.start - 1

    @property
    def sizes(self) -> Tensor:
        """[W] bytes that count as its own: those that it predicts first."""
        return self.end - self.first

    def __len__(self) -> int:
        """W."""
        return len(self.start)

    def take(self, rows: Tensor | slice) -> Windows:
        """Some of them."""
        return Windows(self.start[rows], self.first[rows], self.end[rows])

    def spread(self, most: int | None) -> Windows:
        """At most so many, evenly spread; None takes all."""
        if most is None or check_count("most", most) >= len(self):
            return self
        return self.take(torch.arange(most) * len(self) // most)

    def places(self) -> Tensor:
        """[n] where the bytes lie that are read just before each byte that is predicted, in order."""
        sizes = self.sizes
        skipped = self.first - 1 - (sizes.cumsum(0) - sizes)  # from a prediction's number to its place
        return torch.arange(int(sizes.sum())) + skipped.repeat_interleave(sizes)

    def chunks(self, num_bytes: int) -> Iterator[slice]:
        """Neighbours that together read about so many bytes, at least one window each."""
        ends = self.reads.cumsum(0)
        start = 0
        while start < len(self):
            before = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(torch.searchsorted(ends, before + num_bytes, right=True)))
            yield slice(start, end)
            start = end

    def of_one_length(self, num_bytes: int) -> Iterator[Tensor]:
        """Numbers of windows that read equally many bytes, together at most ``num_bytes`` where there are several."""
        reads = self.reads
        for length in reads.unique().tolist():
            yield from (reads == length).nonzero().squeeze(1).split(max(1, num_bytes // length))


def lay_windows(num_bytes: int, context: int, stride: int | None = None) -> Windows:
    """Lay windows over a text of ``num_bytes``; see :func:`cut_windows`."""
    num_bytes, context = check_count("num_bytes", num_bytes, minimum=2), check_count("context", context)
    stride = context if stride is None else check_count("stride", stride)
    if stride > context:
        raise ValueError(f"stride must be at most the context, {context}, so that no byte is left out, got {stride}")
    start = torch.arange(0, max(num_bytes - 1 - (context - stride), 1), stride)
    end = (start + context + 1).clamp(max=num_bytes)
    return Windows(start, torch.cat((torch.ones(1, dtype=torch.int64), end[:-1])), end)


def cut_windows(num_bytes: int, context: int, stride: int | None = None) -> list[tuple[int, int]]:
    """Cut a text into windows that predict every byte but the first once.

    Args:
        num_bytes: bytes of the text, at least 2.
        context: bytes that a window reads; the last window is as long as what is left.
        stride: bytes from the beginning of one window to that of the next, at most ``context``; None is ``context``.

    Returns:
        (start, end) of each window in the text, ``end`` exclusive; a window predicts what lies beyond the end of the
        one before it, the first ``end - 1`` bytes.

    Example:
        >>> cut_windows(8, 3)
        [(0, 4), (3, 7), (6, 8)]
        >>> cut_windows(8, 3, stride=2)
        [(0, 4), (2, 6), (4, 8)]
    """
    windows = lay_windows(num_bytes, context, stride)
    return list(zip(windows.start.tolist(), windows.end.tolist(), strict=True))


def windows_of_texts(
    starts: Sequence[tuple[int, int]], context: int, stride: int | None = None, most: int | None = None
) -> Windows:
    """Windows of several texts that stand one after the other; none reaches from one into the next.

    Args:
        starts: (start, end) of each text.
        context: bytes that a window reads.
        stride: bytes from one window to the next.
        most: windows at most, evenly spread over all texts.
    """
    each = [(start, lay_windows(end - start, context, stride)) for start, end in starts]
    whole = Windows(*(torch.cat([getattr(w, name) + at for at, w in each]) for name in ("start", "first", "end")))
    return whole.spread(most)


def join_texts(text: str | bytes | Sequence[str | bytes]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Texts as [N] int64 with a byte 0 between them, which belongs to no word, and where each begins and ends."""
    texts = [text] if isinstance(text, (str, bytes)) else text
    if not len(texts):
        raise ValueError("text must hold at least one text, got none")
    raw, places, start = [text_to_bytes(one) for one in texts], [], 0
    for number, one in enumerate(raw):
        if len(one) < 2:
            which = f" in text {number}" if len(raw) > 1 else ""
            raise ValueError(f"text must have at least 2 bytes (one to read, one to predict), got {len(one)}{which}")
        places.append((start, start + len(one)))
        start += len(one) + 1
    return torch.frombuffer(bytearray(b"\0".join(raw)), dtype=torch.uint8).long(), places


BATCH_BYTES = 16_384
"""Bytes of a forward pass; results do not depend on it beyond rounding."""
CHUNK_BYTES = 1 << 20
"""Bytes whose windows are sorted by length at a time, and whose random numbers are in memory; results do not change."""

Progress = Callable[[int, int, float], None]
"""Told now and then how many bytes have been predicted, of how many, and what they cost by the whole model in nats."""


@dataclass(frozen=True)
class Reading:
    """What each byte cost, and the boundaries that were drawn on the way; n predictions, on the CPU."""

    byte_ids: Tensor  # [N] int64, the texts one after the other, a byte 0 between them
    at: Tensor  # [n] int64, place in ``byte_ids`` of the byte x_t that was read; the prediction is of the next
    final_nats: Tensor  # [n] float64, -log p(x_{t+1}) by the whole model
    early_nats: Tensor  # [n] float64, by the early exit
    boundaries: Tensor  # [n] bool, a_t
    forced: Tensor  # [n] bool, the first byte of a window, whose boundary is not a decision
    num_windows: int
    document: Tensor | None = None  # [n] int64, number of the text that the byte is in; None where there is one text
    window_sizes: Tensor | None = None  # [num_windows] int64, predictions of each window, in order


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
) -> Reading:
    """Predict one text or several with boundaries drawn from the policy, or by a segmenter.

    Every window draws its boundaries itself, those of bytes that windows before it have read included: such bytes are
    to it what a prompt is to :func:`~rltok_rl.models.generate`.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes, each.
        context: bytes that a window reads, so that no byte is predicted from more than that.
        stride: bytes from the beginning of one window to that of the next, at most ``context``; None is ``context``.
            A smaller one leaves at least ``context - stride + 1`` bytes before each byte that has so many, and costs
            ``context / stride`` times as much.
        most: windows at most, evenly spread over all texts; None takes all.
        greedy: draw a boundary where its probability exceeds one half, and use no random numbers.
        generator: on the CPU, source of the random numbers: one per byte read, window by window in the order of the
            text.
        segmenter: draws the boundaries, and says how tokens are made; None is the model's own policy.
        target_rate: boundaries per byte that the policy aims at, where the model has ``rate_embedding``; None is the
            configured rate.
        progress: told how far it is.

    Example:
        >>> from rltok_rl.models import preset
        >>> reading = read_text(UNet(preset("tiny")), "to be or not to be", context=8)
        >>> len(reading.at), reading.num_windows
        (17, 3)
    """
    check_rate(segmenter, target_rate)
    byte_ids, starts = join_texts(text)
    windows = windows_of_texts(starts, context, stride, most)
    at, sizes = windows.places(), windows.sizes
    begins = sizes.cumsum(0) - sizes  # number of the first prediction of each window
    final, early = (torch.zeros(len(at), dtype=torch.float64) for _ in range(2))
    boundaries, forced = (torch.zeros(len(at), dtype=torch.bool) for _ in range(2))
    done, cost = 0, 0.0
    for part in windows.chunks(CHUNK_BYTES):
        chunk, into = windows.take(part), begins[part]
        before = chunk.reads.cumsum(0) - chunk.reads
        uniforms = draw_uniforms(int(chunk.reads.sum()), greedy, segmenter, generator)
        for rows in chunk.of_one_length(BATCH_BYTES):
            steps = torch.arange(int(chunk.reads[rows[0]]))
            place = chunk.start[rows, None] + steps  # [B, T] of the bytes that are read
            drawn = None if uniforms is None else uniforms[before[rows, None] + steps]
            costs, early_costs, found = _predict(model, segmenter, byte_ids, place, drawn, greedy, target_rate)
            own = place + 1 >= chunk.first[rows, None]
            number = ((into - chunk.first)[rows, None] + place + 1)[own]
            final[number], early[number], boundaries[number] = costs[own], early_costs[own], found[own]
            forced[number] = (steps == 0).expand_as(own)[own]
            done, cost = done + len(number), cost + float(costs[own].sum())
            if progress is not None:
                progress(done, len(at), cost)
    document = torch.searchsorted(torch.tensor([start for start, _ in starts]), at, right=True) - 1
    return Reading(byte_ids, at, final, early, boundaries, forced, len(windows), document, sizes)


def _predict(
    model: UNet,
    segmenter: Segmenter | None,
    byte_ids: Tensor,
    place: Tensor,
    uniforms: Tensor | None,
    greedy: bool,
    target_rate: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Windows that are read at ``place`` [B, T]: costs of the bytes after, by both heads, and boundaries; [B, T]."""
    device = model.embedding.weight.device
    read, following = byte_ids[place].to(device), byte_ids[place + 1].to(device)
    drawn = None if uniforms is None else uniforms.to(device)
    if segmenter is None:
        out: Any = model(read, uniforms=drawn, greedy=greedy, target_rate=target_rate)
        boundaries = out.boundaries
    else:
        out = read_window(model, segmenter, read, uniforms=drawn)
        boundaries = out.segments.boundaries
        check_probabilities(segmenter, out.segments.logits, greedy)
    final, early = (-byte_log_prob(given, following).double().cpu() for given in (out.final_logits, out.early_logits))
    return final, early, boundaries.cpu()


def check_rate(segmenter: Segmenter | None, target_rate: float | None) -> None:
    """Refuse a rate that nobody would follow."""
    if target_rate is not None and segmenter is not None:
        raise ValueError(f"target_rate belongs to the model's own policy, got it with {type(segmenter).__name__}")


def check_probabilities(segmenter: Segmenter, logits: Tensor | None, greedy: bool) -> None:
    """Refuse to draw where probabilities exceed one half if boundaries are drawn without any."""
    if greedy and logits is None and segmenter.draws_at_random:
        raise ValueError(f"greedy needs boundaries that have a probability each, got {type(segmenter).__name__}")


def draw_uniforms(
    count: int, greedy: bool, segmenter: Segmenter | None, generator: torch.Generator | None
) -> Tensor | None:
    """[count] random numbers; for a greedy segmenter one half each, which a probability beyond that exceeds."""
    if not greedy:
        return torch.rand(count, generator=generator)
    return None if segmenter is None else torch.full((count,), 0.5)


def summarise(reading: Reading) -> dict[str, Any]:
    """The figures of a reading.

    Args:
        reading: what :func:`read_text` gave.

    Returns:
        ``bytes`` (predicted), ``windows``, ``documents``; ``corpus_bits_per_byte`` (all bits over all bytes) and
        ``document_bits_per_byte`` (the mean of the documents' own), with ``corpus_standard_error`` and
        ``document_standard_error`` over documents (None for one); the same four with ``early_`` in front, of the early
        exit; ``tokens`` (boundaries, those that begin windows included), ``rate`` (tokens per byte),
        ``bytes_per_token``, and ``word_edges``: for each kind ``share``, ``chance``, ``covered`` and ``lift``, of the
        boundaries that are decisions.
    """
    count, tokens = len(reading.at), int(reading.boundaries.sum())
    counts, nats = document_nats(reading)
    _, early = document_nats(reading, reading.early_nats)
    boundaries, counted = (torch.zeros(len(reading.byte_ids), dtype=torch.bool) for _ in range(2))
    boundaries[reading.at], counted[reading.at] = reading.boundaries, ~reading.forced
    edges = word_edge_share(reading.byte_ids, boundaries, counted) if bool(counted.any()) else {}
    return {
        "bytes": count,
        "windows": reading.num_windows,
        "documents": len(counts),
        **loss_figures(counts, nats),
        **loss_figures(counts, early, "early_"),
        "tokens": tokens,
        "rate": tokens / count,
        "bytes_per_token": count / tokens,
        "word_edges": {
            name: {"share": edge.share, "chance": edge.chance, "covered": edge.covered, "lift": edge.lift}
            for name, edge in edges.items()
        },
    }


def group_documents(reading: Reading, groups: Tensor) -> Reading:
    """Count the documents of a group as one, so that per-document figures and standard errors are over groups.

    Chapters of one book are no independent samples: an error over chapters is too small.

    Args:
        reading: of several texts.
        groups: [texts] group of each text, any integers.

    Example:
        >>> from rltok_rl.models import preset
        >>> reading = read_text(UNet(preset("tiny")), ["to be", "or not", "to be"], context=8)
        >>> summarise(group_documents(reading, torch.tensor([0, 0, 1])))["documents"]
        2
    """
    document = torch.zeros_like(reading.at) if reading.document is None else reading.document
    if len(groups) <= int(document.max()):
        raise ValueError(f"groups must have one entry per text, got {len(groups)} for {int(document.max()) + 1} texts")
    return replace(reading, document=groups.unique(return_inverse=True)[1][document])


def document_nats(reading: Reading, nats: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Bytes predicted and what they cost, of each document that was read: [documents] both.

    Args:
        reading: what :func:`read_text` gave.
        nats: [n] what each byte cost; None is by the whole model.
    """
    number = torch.zeros_like(reading.at) if reading.document is None else reading.document
    _, place = number.unique(return_inverse=True)
    counts = place.bincount()
    given = reading.final_nats if nats is None else nats
    return counts, torch.zeros(len(counts), dtype=torch.float64).index_add(0, place, given)
