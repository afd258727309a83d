"""Reading texts window by window, so that each byte is predicted exactly once, and what comes of it.

How windows lie, and what a stride is, says :mod:`rltok_rl.evaluation.windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter, read_window
from rltok_rl.evaluation.bits import loss_figures
from rltok_rl.evaluation.windows import join_texts, windows_of_texts
from rltok_rl.evaluation.words import word_edge_share
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet

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
