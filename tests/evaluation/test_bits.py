"""Bits per byte of the corpus and of the mean document, by hand."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
import torch

from rltok_rl.evaluation import (
    corpus_bits_per_byte,
    corpus_standard_error,
    document_bits_per_byte,
    document_standard_error,
    loss_figures,
)

COUNTS = torch.tensor([10, 30, 20])
NATS = torch.tensor([20.0, 45.0, 50.0], dtype=torch.float64)


def test_the_two_means_are_told_apart():
    """115 nats for 60 bytes; documents of 2, 1.5 and 2.5 nats per byte."""
    assert corpus_bits_per_byte(COUNTS, NATS) == pytest.approx(115 / 60 / math.log(2))
    assert document_bits_per_byte(COUNTS, NATS) == pytest.approx(2.0 / math.log(2))
    off = [20 - 10 * 115 / 60, 45 - 30 * 115 / 60, 50 - 20 * 115 / 60]
    error = math.sqrt(3 / 2 * sum(x**2 for x in off)) / 60 / math.log(2)
    assert corpus_standard_error(COUNTS, NATS) == pytest.approx(error)
    each = [2.0, 1.5, 2.5]
    assert document_standard_error(COUNTS, NATS) == pytest.approx(stdev(each) / math.sqrt(3) / math.log(2))
    assert document_bits_per_byte(COUNTS, NATS) == pytest.approx(fmean(each) / math.log(2))
    figures = loss_figures(COUNTS, NATS, "early_")
    assert figures == {
        "early_corpus_bits_per_byte": corpus_bits_per_byte(COUNTS, NATS),
        "early_corpus_standard_error": corpus_standard_error(COUNTS, NATS),
        "early_document_bits_per_byte": document_bits_per_byte(COUNTS, NATS),
        "early_document_standard_error": document_standard_error(COUNTS, NATS),
    }


def test_documents_of_one_length_have_one_mean():
    counts = torch.tensor([7, 7, 7, 7])
    nats = torch.tensor([3.0, 9.0, 4.0, 5.0])
    assert corpus_bits_per_byte(counts, nats) == pytest.approx(document_bits_per_byte(counts, nats))
    assert corpus_standard_error(counts, nats) == pytest.approx(document_standard_error(counts, nats))


def test_one_document_has_no_standard_error():
    assert corpus_standard_error(COUNTS[:1], NATS[:1]) is None and document_standard_error(COUNTS[:1], NATS[:1]) is None


@pytest.mark.parametrize(
    ("counts", "nats"), [([], []), ([3, 0], [1.0, 0.0]), ([3], [1.0, 2.0])], ids=["none", "empty document", "unequal"]
)
def test_what_has_no_mean_is_refused(counts, nats):
    for of in (corpus_bits_per_byte, corpus_standard_error, document_bits_per_byte, document_standard_error):
        with pytest.raises(ValueError, match="counts and nats must be"):
            of(torch.tensor(counts, dtype=torch.int64), torch.tensor(nats))
