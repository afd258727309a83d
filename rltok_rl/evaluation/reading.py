"""Reading a text window by window, so that each byte is predicted exactly once, and what comes of it.

A window of T + 1 bytes reads T of them and predicts the T that follow each. Windows share a byte: the last that one
predicts is the first that the next one reads. Of N bytes, N - 1 are predicted; nothing predicts the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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

    at: Tensor  # [n] int64, place in the text of the byte x_t that was read; the prediction is of the next
    final_nats: Tensor  # [n] float64, -log p(x_{t+1}) by the whole model
    early_nats: Tensor  # [n] float64, by the early exit
    boundaries: Tensor  # [n] bool, a_t
    forced: Tensor  # [n] bool, the first byte of a window, whose boundary is not a decision
    num_windows: int


def cut_windows(num_bytes: int, context: int, *, most: int | None = None) -> list[tuple[int, int]]:
    """Cut a text into windows that predict every byte but the first once.

    Args:
        num_bytes: bytes of the text, at least 2.
        context: bytes that a window reads; the last window is as long as what is left.
        most: take so many windows at most, evenly spread over the text; None takes all.

    Returns:
        (start, end) of each window in the text, ``end`` exclusive; a window predicts ``end - start - 1`` bytes.

    Example:
        >>> cut_windows(8, 3)
        [(0, 4), (3, 7), (6, 8)]
    """
    num_bytes, context = check_count("num_bytes", num_bytes, minimum=2), check_count("context", context)
    starts = range(0, num_bytes - 1, context)
    if most is not None and check_count("most", most) < len(starts):
        starts = [starts[number * len(starts) // most] for number in range(most)]  # type: ignore[assignment]
    return [(start, min(start + context + 1, num_bytes)) for start in starts]


@torch.no_grad()
def read_text(
    model: UNet,
    text: str | bytes,
    *,
    context: int,
    most: int | None = None,
    greedy: bool = False,
    generator: torch.Generator | None = None,
) -> Reading:
    """Predict a text with boundaries drawn from the policy.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes.
        context: bytes that a window reads, so that no byte is predicted from more than that.
        most: windows at most, see :func:`cut_windows`.
        greedy: draw a boundary where its probability exceeds one half.
        generator: on the CPU, source of the random numbers: one per byte read, in the order of the text.

    Example:
        >>> from rltok_rl.models import preset
        >>> reading = read_text(UNet(preset("tiny")), "to be or not to be", context=8)
        >>> len(reading.at), reading.num_windows
        (17, 3)
    """
    byte_ids = text_to_ids(text)
    if len(byte_ids) < 2:
        raise ValueError(f"text must have at least 2 bytes (one to read, one to predict), got {len(byte_ids)}")
    device = model.embedding.weight.device
    parts: list[tuple[Tensor, ...]] = []
    windows = cut_windows(len(byte_ids), context, most=most)
    for batch in _batches(windows, max(1, BATCH_BYTES // context)):
        at = torch.stack([torch.arange(start, end - 1) for start, end in batch])  # [B, T]
        read, following = byte_ids[at].to(device), byte_ids[at + 1].to(device)
        uniforms = None if greedy else torch.rand(at.shape, generator=generator).to(device)
        out = model(read, uniforms=uniforms, greedy=greedy)
        costs = [-byte_log_prob(logits, following).double().cpu() for logits in (out.final_logits, out.early_logits)]
        forced = torch.zeros_like(at, dtype=torch.bool)
        forced[:, 0] = True
        parts.append((at, *costs, out.boundaries.cpu(), forced))
    at, final, early, boundaries, forced = (
        torch.cat([part.flatten() for part in column]) for column in zip(*parts, strict=True)
    )
    return Reading(at, final, early, boundaries, forced, num_windows=len(windows))


def summarise(text: str | bytes, reading: Reading) -> dict[str, Any]:
    """The figures of a reading.

    Args:
        text: the text that was read.
        reading: what :func:`read_text` made of it.

    Returns:
        ``bytes`` (predicted), ``windows``, ``bits_per_byte``, ``early_bits_per_byte``, ``tokens`` (boundaries, those
        that begin windows included), ``rate`` (tokens per byte), ``bytes_per_token``, and ``word_edges``: for each kind
        ``share``, ``chance``, ``covered`` and ``lift``, of the boundaries that are decisions.
    """
    byte_ids = text_to_ids(text)
    count, tokens = len(reading.at), int(reading.boundaries.sum())
    boundaries, counted = (torch.zeros(len(byte_ids), dtype=torch.bool) for _ in range(2))
    boundaries[reading.at], counted[reading.at] = reading.boundaries, ~reading.forced
    edges = word_edge_share(byte_ids, boundaries, counted) if bool(counted.any()) else {}
    return {
        "bytes": count,
        "windows": reading.num_windows,
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


def _batches(windows: list[tuple[int, int]], rows: int) -> Iterator[list[tuple[int, int]]]:
    """Windows of one length together, in order; the last one of a text may be shorter."""
    whole = [window for window in windows if window[1] - window[0] == windows[0][1] - windows[0][0]]
    for first in range(0, len(whole), rows):
        yield whole[first : first + rows]
    if len(whole) < len(windows):
        yield windows[len(whole) :]
