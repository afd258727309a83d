"""Bits per byte of the corpus and of the mean document, by hand."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
import torch

from rltok_rl.evaluation import (
    Reading,
    corpus_standard_error,
    document_nats,
    document_standard_error,
    group_documents,
    loss_metrics,
    mean_and_error,
    read_text,
    summarise,
)
from rltok_rl.text import text_to_ids

from .conftest import small_model

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
    assert loss_metrics(COUNTS, NATS.float()) == metrics  # sums and ratios are of float64


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


def test_summaries_count_marks_windows_and_documents():
    """Two documents of four and two predictions, in windows of two after a mark: three marks, which are tokens."""
    reading = Reading(
        byte_ids=text_to_ids(b"abcde\0xyz"),
        at=torch.tensor([0, 1, 2, 3, 6, 7]),
        final_nats=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64),
        early_nats=torch.ones(6, dtype=torch.float64),
        boundaries=torch.tensor([1, 0, 0, 1, 0, 0], dtype=torch.bool),
        begins=torch.tensor([1, 0, 1, 0, 1, 0], dtype=torch.bool),
        document=torch.tensor([0, 0, 0, 0, 1, 1]),
        window_sizes=torch.tensor([2, 2, 2]),
        num_marks=1,
    )
    metrics = summarise(reading)
    assert (metrics["bytes"], metrics["windows"], metrics["documents"]) == (6, 3, 2)
    assert (metrics["tokens"], metrics["rate"], metrics["bytes_per_token"]) == (5, 5 / 6, 6 / 5)
    assert metrics["word_edges"]["any"]["chance"] == 2 / 6  # after a mark, first bytes are decisions, too


def test_documents_of_a_group_count_as_one():
    """Groups in any order and with any numbers, by the sums of their documents."""
    texts = ["abc", "defg", "hi", "jklmn", "opq"]
    reading = read_text(small_model(), texts, context=3, greedy=True)
    counts, nats = document_nats(reading)
    for groups in ([7, 3, 7, 3, 5], [1, 1, 1, 1, 0], [0, 1, 2, 3, 4, 9]):
        numbers = sorted({*groups[:5]})
        members = [[d for d in range(5) if groups[d] == number] for number in numbers]
        grouped = group_documents(reading, torch.tensor(groups))
        together = document_nats(grouped)
        assert together[0].tolist() == [sum(int(counts[d]) for d in each) for each in members]
        assert together[1].tolist() == pytest.approx([sum(float(nats[d]) for d in each) for each in members])
        assert summarise(grouped)["documents"] == len(numbers)
