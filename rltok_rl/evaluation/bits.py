"""Bits per byte of many documents, in two ways that are not the same figure: of the corpus, and per document.

Shapes: D documents, of which document d has n_d predicted bytes that cost N_d nats.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltok_rl.functional.likelihood import bits_per_byte


def corpus_bits_per_byte(counts: Tensor, nats: Tensor) -> float:
    """All bits over all bytes, so that a long document weighs more than a short one.

        B = sum_d N_d / (ln 2 sum_d n_d)

    Args:
        counts: [D] n_d, bytes.
        nats: [D] N_d; of a difference of two systems that read the same bytes, the differences.

    Example:
        >>> round(corpus_bits_per_byte(torch.tensor([10, 30]), torch.tensor([10.0, 60.0]) * math.log(2)), 4)
        1.75
    """
    _check(counts, nats)
    return float(bits_per_byte(float(nats.sum(dtype=torch.float64)), int(counts.sum())))


def corpus_standard_error(counts: Tensor, nats: Tensor) -> float | None:
    """Standard error of the corpus' bits per byte over documents; None for one document.

        R = sum_d N_d / sum_d n_d,        SE = sqrt(D / (D - 1) sum_d (N_d - R n_d)^2) / (ln 2 sum_d n_d)

    of a ratio of two sums over D documents, since long documents weigh more.

    Args:
        counts: [D] n_d, bytes.
        nats: [D] N_d; of a difference of two systems that read the same bytes, the differences.

    Example:
        >>> corpus_standard_error(torch.tensor([10, 10]), torch.tensor([10.0, 10.0], dtype=torch.float64))
        0.0
    """
    _check(counts, nats)
    if len(counts) < 2:
        return None
    nats = nats.double()
    mean = nats.sum() / counts.sum()
    spread = (nats - mean * counts).square().sum() * (len(counts) / (len(counts) - 1))
    return float(spread.sqrt() / counts.sum()) / math.log(2)


def document_bits_per_byte(counts: Tensor, nats: Tensor) -> float:
    """The mean of the documents' own bits per byte, so that all documents weigh the same.

        B = (1/D) sum_d b_d,        b_d = N_d / (ln 2 n_d)

    Args:
        counts: [D] n_d, bytes.
        nats: [D] N_d; of a difference of two systems that read the same bytes, the differences.

    Example:
        >>> round(document_bits_per_byte(torch.tensor([10, 30]), torch.tensor([10.0, 60.0]) * math.log(2)), 4)
        1.5
    """
    return float(_each(counts, nats).mean())


def document_standard_error(counts: Tensor, nats: Tensor) -> float | None:
    """Standard error of the mean over documents; None for one document.

        SE = sqrt(sum_d (b_d - B)^2 / (D (D - 1)))

    Args:
        counts: [D] n_d, bytes.
        nats: [D] N_d; of a difference of two systems that read the same bytes, the differences.

    Example:
        >>> document_standard_error(torch.tensor([10, 10]), torch.tensor([10.0, 10.0]))
        0.0
    """
    each = _each(counts, nats)
    return None if len(each) < 2 else float(each.std() / math.sqrt(len(each)))


def loss_figures(counts: Tensor, nats: Tensor, prefix: str = "") -> dict[str, float | None]:
    """Both figures and their standard errors, by name.

    Args:
        counts: [D] n_d, bytes.
        nats: [D] N_d.
        prefix: what the names begin with.

    Example:
        >>> figures = loss_figures(torch.tensor([4]), torch.tensor([8 * math.log(2)]), "early_")
        >>> round(figures["early_corpus_bits_per_byte"], 4), figures["early_corpus_standard_error"]
        (2.0, None)
    """
    return {
        f"{prefix}corpus_bits_per_byte": corpus_bits_per_byte(counts, nats),
        f"{prefix}corpus_standard_error": corpus_standard_error(counts, nats),
        f"{prefix}document_bits_per_byte": document_bits_per_byte(counts, nats),
        f"{prefix}document_standard_error": document_standard_error(counts, nats),
    }


def _each(counts: Tensor, nats: Tensor) -> Tensor:
    """[D] bits per byte of each document."""
    _check(counts, nats)
    return nats.double() / counts / math.log(2)


def _check(counts: Tensor, nats: Tensor) -> None:
    if counts.dim() != 1 or counts.shape != nats.shape or not len(counts) or int(counts.min()) < 1:
        raise ValueError(
            "counts and nats must be [D >= 1] of one length, with at least 1 byte in each document, got "
            f"{[*counts.shape]} and {[*nats.shape]}" + (f", least {int(counts.min())}" if counts.numel() else "")
        )
