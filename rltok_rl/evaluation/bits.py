"""Bits per byte of documents, averaged over bytes (corpus) or over documents, with standard errors.

Shapes: D documents; ``counts`` [D] holds predicted bytes n_d and ``nats`` [D] their cost N_d, or the difference of the
costs of two systems on the same bytes. Standard errors are over documents, None for one document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rltok_rl.evaluation.windowed import Reading
from rltok_rl.evaluation.word_edges import word_edge_share
from rltok_rl.functional.likelihood import bits_per_byte


def mean_and_error(values: Sequence[float] | Tensor) -> tuple[float, float | None]:
    """Return the mean of n values and its standard error, None for one value.

        SE = s / sqrt(n),        s^2 = sum_i (v_i - mean)^2 / (n - 1)

    Example:
        >>> mean_and_error([1.0, 0.0, 1.0, 0.0, 1.0])
        (0.6, 0.24494897427831783)
    """
    numbers = [float(value) for value in values]
    if not numbers:
        raise ValueError("values must hold at least one, got none")
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) == 1:
        return mean, None
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return mean, math.sqrt(variance / len(numbers))


def corpus_bits_per_byte(counts: Tensor, nats: Tensor) -> float:
    """Divide all bits by all bytes, ``sum_d N_d / (ln 2 sum_d n_d)``: long documents weigh more than short ones.

    Example:
        >>> round(corpus_bits_per_byte(torch.tensor([10, 30]), torch.tensor([10.0, 60.0]) * math.log(2)), 4)
        1.75
    """
    return float(bits_per_byte(float(_checked(counts, nats).sum()), int(counts.sum())))


def corpus_standard_error(counts: Tensor, nats: Tensor) -> float | None:
    """Return the standard error of the corpus' bits per byte.

    To first order, a ratio of two means deviates as the mean of its residuals e_d does:

        SE = SE of mean_d e_d,        e_d = (N_d - R n_d) / (ln 2 mean_d n_d),        R = sum_d N_d / sum_d n_d
    """
    exact = _checked(counts, nats)
    residuals = exact - exact.sum() / counts.sum() * counts
    return mean_and_error(residuals / counts.double().mean() / math.log(2))[1]


def document_bits_per_byte(counts: Tensor, nats: Tensor) -> float:
    """Average the bits per byte of documents, ``b_d = N_d / (ln 2 n_d)``: all documents weigh the same."""
    return mean_and_error(_checked(counts, nats) / counts / math.log(2))[0]


def document_standard_error(counts: Tensor, nats: Tensor) -> float | None:
    """Return the standard error of :func:`document_bits_per_byte`."""
    return mean_and_error(_checked(counts, nats) / counts / math.log(2))[1]


def loss_metrics(counts: Tensor, nats: Tensor, prefix: str = "") -> dict[str, float | None]:
    """Return both means and their standard errors: ``corpus_bits_per_byte``, ``document_standard_error`` and so on."""
    return {
        f"{prefix}corpus_bits_per_byte": corpus_bits_per_byte(counts, nats),
        f"{prefix}corpus_standard_error": corpus_standard_error(counts, nats),
        f"{prefix}document_bits_per_byte": document_bits_per_byte(counts, nats),
        f"{prefix}document_standard_error": document_standard_error(counts, nats),
    }


def summarise(reading: Reading) -> dict[str, Any]:
    """Compute the metrics of a reading.

    Returns:
        ``bytes`` (predicted), ``windows``, ``documents``; :func:`loss_metrics` of the whole model, and with the prefix
        ``early_`` those of the early exit; ``tokens`` (boundaries, given ones included), ``rate`` (tokens per byte),
        ``bytes_per_token``; and ``word_edges``, for each kind ``share``, ``chance``, ``covered`` and ``lift`` of the
        boundaries that are decisions.
    """
    count, tokens = len(reading.at), reading.num_tokens
    counts, nats = document_nats(reading)
    _, early = document_nats(reading, reading.early_nats)
    boundaries, counted = torch.zeros(2, len(reading.byte_ids), dtype=torch.bool)
    boundaries[reading.at], counted[reading.at] = reading.boundaries, ~reading.forced
    edges = word_edge_share(reading.byte_ids, boundaries, counted) if bool(counted.any()) else {}
    return {
        "bytes": count,
        "windows": reading.num_windows,
        "documents": len(counts),
        **loss_metrics(counts, nats),
        **loss_metrics(counts, early, "early_"),
        "tokens": tokens,
        "rate": reading.rate,
        "bytes_per_token": count / tokens,
        "word_edges": {name: edge.plain() for name, edge in edges.items()},
    }


def group_documents(reading: Reading, groups: Tensor) -> Reading:
    """Count the documents of each group as one; ``groups`` holds an integer per document.

    Chapters of a book are no independent samples: a standard error over chapters is too small.
    """
    document = reading.document
    if len(groups) <= int(document.max()):
        raise ValueError(f"groups must have one entry per text, got {len(groups)} for {int(document.max()) + 1} texts")
    return replace(reading, document=groups.unique(return_inverse=True)[1][document])


def document_nats(reading: Reading, nats: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum predictions and their costs (None: of the whole model) by document: counts [D] and nats [D]."""
    counts = torch.ones_like(reading.document)
    return sum_documents(reading.document, counts, reading.final_nats if nats is None else nats)


def sum_documents(number: Tensor, counts: Tensor, nats: Tensor) -> tuple[Tensor, Tensor]:
    """Sum counts and float64 costs by the number of their document."""
    _, place = number.unique(return_inverse=True)
    zeros = torch.zeros(int(place.max()) + 1, dtype=torch.float64)
    return zeros.long().index_add(0, place, counts), zeros.index_add(0, place, nats)


def _checked(counts: Tensor, nats: Tensor) -> Tensor:
    """Require one cost per document and no empty document; return the costs in float64."""
    if counts.dim() != 1 or counts.shape != nats.shape or not len(counts) or int(counts.min()) < 1:
        raise ValueError(
            "counts and nats must be [D >= 1] of one length, with at least 1 byte in each document, got shapes "
            f"{[*counts.shape]} and {[*nats.shape]}, counts {counts[:10].tolist()}"
        )
    return nats.double()
