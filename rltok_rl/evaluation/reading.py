"""Reading texts window by window, so that each byte is predicted exactly once, and what comes of it.

A window of T + 1 bytes reads T of them and predicts the T that follow each. Windows share a byte: the last that one
predicts is the first that the next one reads. Of a text of N bytes, N - 1 are predicted; nothing predicts the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter, read_window
from rltok_rl.evaluation.words import word_edge_share
from rltok_rl.functional.likelihood import bits_per_byte, byte_log_prob
from rltok_rl.functional.numbers import check_count
from rltok_rl.functional.text import text_to_ids
from rltok_rl.models import UNet

BATCH_BYTES = 16_384
"""Bytes of a forward pass; results do not depend on it beyond rounding."""


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


def cut_windows(num_bytes: int, context: int) -> list[tuple[int, int]]:
    """Cut a text into windows that predict every byte but the first once.

    Args:
        num_bytes: bytes of the text, at least 2.
        context: bytes that a window reads; the last window is as long as what is left.

    Returns:
        (start, end) of each window in the text, ``end`` exclusive; a window predicts ``end - start - 1`` bytes.

    Example:
        >>> cut_windows(8, 3)
        [(0, 4), (3, 7), (6, 8)]
    """
    num_bytes, context = check_count("num_bytes", num_bytes, minimum=2), check_count("context", context)
    return [(start, min(start + context + 1, num_bytes)) for start in range(0, num_bytes - 1, context)]


@torch.no_grad()
def read_text(
    model: UNet,
    text: str | bytes | Sequence[str | bytes],
    *,
    context: int,
    most: int | None = None,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    segmenter: Segmenter | None = None,
    target_rate: float | None = None,
) -> Reading:
    """Predict one text or several with boundaries drawn from the policy, or by a segmenter.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes, each.
        context: bytes that a window reads, so that no byte is predicted from more than that.
        most: windows at most, evenly spread over all texts; None takes all.
        greedy: draw a boundary where its probability exceeds one half.
        generator: on the CPU, source of the random numbers: one per byte read, in the order of the text.
        segmenter: draws the boundaries, and says how tokens are made; None is the model's own policy.
        target_rate: boundaries per byte that the policy aims at, where the model has ``rate_embedding``; None is the
            configured rate.

    Example:
        >>> from rltok_rl.models import preset
        >>> reading = read_text(UNet(preset("tiny")), "to be or not to be", context=8)
        >>> len(reading.at), reading.num_windows
        (17, 3)
    """
    if greedy and segmenter is not None and segmenter.draws_at_random:
        raise ValueError(f"greedy belongs to the model's own policy, got it with {type(segmenter).__name__}")
    if target_rate is not None and segmenter is not None:
        raise ValueError(f"target_rate belongs to the model's own policy, got it with {type(segmenter).__name__}")
    byte_ids, starts = _join([text] if isinstance(text, (str, bytes)) else text)
    windows = [
        (start + first, start + last) for start, end in starts for first, last in cut_windows(end - start, context)
    ]
    if most is not None and check_count("most", most) < len(windows):
        windows = [windows[number * len(windows) // most] for number in range(most)]
    at = torch.cat([torch.arange(start, end - 1) for start, end in windows])  # [n]
    uniforms = None if greedy else torch.rand(len(at), generator=generator)
    final, early = (torch.zeros(len(at), dtype=torch.float64) for _ in range(2))
    boundaries, forced = (torch.zeros(len(at), dtype=torch.bool) for _ in range(2))
    begins = torch.tensor([start for start, _ in starts])
    device = model.embedding.weight.device
    for place in _batches(windows):  # [B, T] in 0..n - 1
        read, drawn = byte_ids[at[place]].to(device), None if uniforms is None else uniforms[place].to(device)
        if segmenter is None:
            out: Any = model(read, uniforms=drawn, greedy=greedy, target_rate=target_rate)
            found = out.boundaries
        else:
            out = read_window(model, segmenter, read, uniforms=drawn)
            found = out.segments.boundaries
        following = byte_ids[at[place] + 1].to(device)
        final[place] = -byte_log_prob(out.final_logits, following).double().cpu()
        early[place] = -byte_log_prob(out.early_logits, following).double().cpu()
        boundaries[place] = found.cpu()
        forced[place[:, 0]] = True
    document = torch.searchsorted(begins, at, right=True) - 1
    return Reading(byte_ids, at, final, early, boundaries, forced, len(windows), document)


def summarise(reading: Reading) -> dict[str, Any]:
    """The figures of a reading.

    Args:
        reading: what :func:`read_text` gave.

    Returns:
        ``bytes`` (predicted), ``windows``, ``documents``, ``bits_per_byte`` and its ``standard_error`` over documents
        (None for one), ``early_bits_per_byte``, ``tokens`` (boundaries, those that begin windows included), ``rate``
        (tokens per byte), ``bytes_per_token``, and ``word_edges``: for each kind
        ``share``, ``chance``, ``covered`` and ``lift``, of the boundaries that are decisions.
    """
    count, tokens = len(reading.at), int(reading.boundaries.sum())
    per_document = document_nats(reading)
    boundaries, counted = (torch.zeros(len(reading.byte_ids), dtype=torch.bool) for _ in range(2))
    boundaries[reading.at], counted[reading.at] = reading.boundaries, ~reading.forced
    edges = word_edge_share(reading.byte_ids, boundaries, counted) if bool(counted.any()) else {}
    return {
        "bytes": count,
        "windows": reading.num_windows,
        "documents": len(per_document[0]),
        "standard_error": standard_error(*per_document),
        "bits_per_byte": bits_per_byte(float(reading.final_nats.sum()), count),
        "early_bits_per_byte": bits_per_byte(float(reading.early_nats.sum()), count),
        "tokens": tokens,
        "rate": tokens / count,
        "bytes_per_token": count / tokens,
        "word_edges": {
            name: {"share": edge.share, "chance": edge.chance, "covered": edge.covered, "lift": edge.lift}
            for name, edge in edges.items()
        },
    }


def document_nats(reading: Reading) -> tuple[Tensor, Tensor]:
    """Bytes predicted and what they cost by the whole model, of each document that was read: [documents] both.

    Args:
        reading: what :func:`read_text` gave.
    """
    number = torch.zeros_like(reading.at) if reading.document is None else reading.document
    _, place = number.unique(return_inverse=True)
    counts = place.bincount()
    return counts, torch.zeros(len(counts), dtype=torch.float64).index_add(0, place, reading.final_nats)


def standard_error(counts: Tensor, nats: Tensor) -> float | None:
    """Standard error of bits per byte over documents; None for one document.

        B = sum_d N_d / sum_d n_d,        SE = sqrt(D / (D - 1) sum_d (N_d - B n_d)^2) / sum_d n_d

    of a ratio of two sums over D documents, since long documents weigh more.

    Args:
        counts: [documents] n_d, bytes.
        nats: [documents] N_d; of a difference of two systems that read the same bytes, the differences.

    Example:
        >>> standard_error(torch.tensor([10, 10]), torch.tensor([10.0, 10.0], dtype=torch.float64))
        0.0
    """
    if len(counts) < 2:
        return None
    mean = nats.sum() / counts.sum()
    spread = (nats - mean * counts).square().sum() * (len(counts) / (len(counts) - 1))
    return float(spread.sqrt() / counts.sum()) / math.log(2)


def _join(texts: Sequence[str | bytes]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Texts with a byte 0 between them, which belongs to no word, and where each begins and ends."""
    if not len(texts):
        raise ValueError("text must hold at least one text, got none")
    ids, places, start = [], [], 0
    for number, text in enumerate(texts):
        one = text_to_ids(text)
        if len(one) < 2:
            which = f" in text {number}" if len(texts) > 1 else ""
            raise ValueError(f"text must have at least 2 bytes (one to read, one to predict), got {len(one)}{which}")
        ids += [one, torch.zeros(1, dtype=torch.int64)]
        places.append((start, start + len(one)))
        start += len(one) + 1
    return torch.cat(ids[:-1]), places


def _batches(windows: list[tuple[int, int]]) -> Iterator[Tensor]:
    """Windows of one length together, [B, T] places among all predictions."""
    lengths = torch.tensor([end - start - 1 for start, end in windows])
    firsts = lengths.cumsum(0) - lengths
    for length in lengths.unique().tolist():
        for rows in firsts[lengths == length].split(max(1, BATCH_BYTES // length)):
            yield rows[:, None] + torch.arange(length)
