"""Bits per byte of the corpus and of the mean document, by hand."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
import torch

from rltok_rl.evaluation import (
    corpus_standard_error,
    document_standard_error,
    loss_metrics,
    mean_and_error,
)

COUNTS = torch.tensor([10, 30, 20])
NATS = torch.tensor([20.0, 45.0, 50.0], dtype=torch.float64)


def test_two_means_and_their_errors():
    """115 nats for 60 bytes; documents of 2, 1.5 and 2.5 nats per byte."""
    deviations = [20 - 10 * 115 / 60, 45 - 30 * 115 / 60, 50 - 20 * 115 / 60]
    each = [2.0, 1.5, 2.5]
    expected = {
        "corpus_bits_per_byte": 115 / 60,
        "corpus_standard_error": math.sqrt(3 / 2 * sum(x**2 for x in deviations)) / 60,
        "document_bits_per_byte": fmean(each),
        "document_standard_error": stdev(each) / math.sqrt(3),
    }
    metrics = loss_metrics(COUNTS, NATS)
    assert metrics == {name: pytest.approx(nats / math.log(2)) for name, nats in expected.items()}
    assert loss_metrics(COUNTS, NATS, "early_") == {f"early_{name}": value for name, value in metrics.items()}


def test_one_document_has_no_error():
    assert corpus_standard_error(COUNTS[:1], NATS[:1]) is None and document_standard_error(COUNTS[:1], NATS[:1]) is None
    assert mean_and_error([3.0]) == (3.0, None)


def test_old_names_warn():
    import rltok_rl.evaluation as evaluation
    from rltok_rl.evaluation import tasks

    for module, old, new in (
        (evaluation, "loss_figures", "loss_metrics"),
        (evaluation, "boundary_figures", "boundary_metrics"),
        (tasks, "choice_figures", "choice_metrics"),
    ):
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            assert getattr(module, old) is getattr(module, new)
