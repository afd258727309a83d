"""Every byte but the first is predicted once, at the cost of a forward pass over the bytes that it may see."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter

from rltok_rl.evaluation import Reading, read_text, summarise, windowed
from rltok_rl.evaluation.continuations import continuation_log_likelihood
from rltok_rl.evaluation.windowed import lay_windows
from rltok_rl.text import text_to_ids

from .conftest import small_model

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. é" * 2
SHORT = "It is a truth universally acknowledged, é"


def assert_close(costs: torch.Tensor, expected, atol: float = 1e-4) -> None:
    torch.testing.assert_close(costs, torch.as_tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


def cut(num_bytes: int, context: int, stride: int | None = None) -> list[tuple[int, int]]:
    """The windows of one text, (start, end)."""
    windows = lay_windows([(0, num_bytes)], context, stride)
    return list(zip(windows.start.tolist(), windows.end.tolist(), strict=True))


def test_windows_predict_every_byte_but_the_first_once():
    for num_bytes in (2, 3, 4, 11, 12, 13, 60):
        for context in (1, 2, 3, 5, 10, 11, 100):
            for stride in range(1, context + 1):
                windows = cut(num_bytes, context, stride)
                predicted, seen = [], 1
                for number, (start, end) in enumerate(windows):
                    assert 2 <= end - start <= context + 1 and start == stride * number
                    assert seen < end  # a window that predicts nothing would be in vain
                    assert all(byte - start >= min(byte, context - stride + 1) for byte in range(seen, end))
                    predicted += range(seen, end)
                    seen = end
                assert predicted == list(range(1, num_bytes)), (num_bytes, context, stride)
                laid = lay_windows([(0, num_bytes)], context, stride)
                assert laid.places().tolist() == list(range(num_bytes - 1))
                assert laid.first.tolist() == [1, *(end for _, end in windows[:-1])]
            assert cut(num_bytes, context) == cut(num_bytes, context, context)


def test_windows_of_documents_and_a_selection(model):
    windows = lay_windows([(0, 9), (10, 14)], 4, 2)
    assert windows.start.tolist() == [0, 2, 4, 10] and windows.end.tolist() == [5, 7, 9, 14]
    assert windows.first.tolist() == [1, 5, 7, 11]
    assert windows.places().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12]
    assert windows.spread(2).start.tolist() == [0, 4]
    assert windows.spread(2).places().tolist() == [0, 1, 2, 3, 6, 7]  # the second one counts bytes 7 and 8
    for most, starts in (
        (3, [0, 30, 60]),
        (4, [0, 20, 50, 70]),
        (1, [0]),
        (10, [*range(0, 100, 10)]),
        (99, [*range(0, 100, 10)]),
    ):
        read = read_text(model, "a" * 101, context=10, most=most)
        assert read.at[read.forced].tolist() == starts and read.num_windows == len(starts)
        assert len(read.at) == 10 * len(starts)
    some = summarise(read_text(model, ["abc", "de", "fghi", "jk"], context=8, most=2))
    assert (some["documents"], some["bytes"]) == (2, 5)  # documents without a window do not count


@torch.no_grad()
def test_costs_and_random_numbers_are_those_of_the_windows_one_by_one(model, seeded):
    """With strides that read bytes again: one random number per byte read, window by window, counted or not."""
    byte_ids = text_to_ids(TEXT)
    for context, stride in ((16, 16), (10, 4)):
        read = read_text(model, TEXT, context=context, stride=stride, generator=seeded())
        draws, seen = seeded(), 0
        final, early, boundaries, forced = [], [], [], []
        for start, end in cut(len(byte_ids), context, stride):
            window, first = byte_ids[None, start:end], max(seen - start, 0)
            out = model(window[:, :-1], uniforms=torch.rand(1, end - start - 1, generator=draws))
            for logits, costs in ((out.final_logits, final), (out.early_logits, early)):
                costs += [-float(logits[0, t].log_softmax(-1)[window[0, t + 1]]) for t in range(first, end - start - 1)]
            boundaries += out.boundaries[0, first:].tolist()
            forced += [t == 0 for t in range(first, end - start - 1)]
            seen = end - 1
        assert read.at.tolist() == list(range(len(byte_ids) - 1))
        assert_close(read.final_nats, final)
        assert_close(read.early_nats, early)
        assert read.boundaries.tolist() == boundaries and read.forced.tolist() == forced


@torch.no_grad()
def test_each_byte_costs_a_forward_pass_over_its_context(model):
    byte_ids = text_to_ids(SHORT)
    for context, stride in ((8, 1), (8, 3), (7, 7), (6, 5), (100, 1)):
        read = read_text(model, SHORT, context=context, stride=stride, greedy=True)
        starts = [max(0, -(-(byte - context) // stride) * stride) for byte in range(1, len(byte_ids))]
        out = [model(byte_ids[None, start:byte], greedy=True) for byte, start in enumerate(starts, 1)]
        costs = [-one.final_logits[0, -1].log_softmax(-1)[byte_ids[byte]] for byte, one in enumerate(out, 1)]
        assert len(set(starts)) == read.num_windows
        assert_close(read.final_nats, costs)
        assert read.boundaries.tolist() == [bool(one.boundaries[0, -1]) for one in out], (context, stride)


def test_rules_are_greedy_already(model):
    rule = make_segmenter("spacebyte", model)
    one, other = (read_text(model, SHORT, context=16, segmenter=rule, greedy=greedy) for greedy in (False, True))
    assert torch.equal(one.boundaries, other.boundaries) and torch.equal(one.final_nats, other.final_nats)
    pair = ["The cat"], [" sat on"]
    scores = [continuation_log_likelihood(model, *pair, segmenter=rule, greedy=greedy) for greedy in (False, True)]
    assert torch.equal(scores[0].log_likelihood, scores[1].log_likelihood)


def test_batches_change_nothing_and_progress_counts_every_byte_once(model, seeded, monkeypatch):
    texts = [TEXT, "ab", TEXT[:45]]
    many = read_text(model, texts, context=16, stride=5, generator=seeded())
    monkeypatch.setattr(windowed, "BATCH_BYTES", 33)
    reports: list[tuple[int, int, float]] = []
    options = {"context": 16, "stride": 5, "progress": lambda *report: reports.append(report)}
    few = read_text(model, texts, generator=seeded(), **options)
    for name in ("boundaries", "at", "forced", "final_nats"):
        assert_close(getattr(many, name).double(), getattr(few, name))
    assert [done for done, *_ in reports] == sorted(done for done, *_ in reports) and len(reports) > 5
    assert {total for _, total, _ in reports} == {len(few.at)} == {reports[-1][0]}
    assert reports[-1][2] == pytest.approx(float(few.final_nats.sum()))


def test_metrics_by_hand(model):
    """Six predictions of "the cat" in windows of three, boundaries after t (forced), e, space (forced) and a."""
    bits = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    metrics = summarise(
        Reading(
            byte_ids=text_to_ids("the cat"),
            at=torch.arange(6),
            final_nats=bits * math.log(2),
            early_nats=2 * bits * math.log(2),
            boundaries=torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool),
            begins=torch.tensor([1, 0, 0, 1, 0, 0], dtype=torch.bool),
            document=torch.zeros(6, dtype=torch.int64),
            window_sizes=torch.tensor([3, 3]),
        )
    )
    assert metrics["corpus_bits_per_byte"] == pytest.approx(3.5) == metrics["document_bits_per_byte"]
    assert metrics["early_corpus_bits_per_byte"] == pytest.approx(7.0)
    assert metrics["corpus_standard_error"] is None and metrics["document_standard_error"] is None
    assert (metrics["tokens"], metrics["rate"], metrics["bytes_per_token"]) == (4, pytest.approx(2 / 3), 1.5)
    # Decisions after h, e, c, a; the last byte is never read. Boundaries after e (a last letter) and a (no edge).
    edges = metrics["word_edges"]
    assert edges["last_letter"] == {"share": 0.5, "chance": 0.25, "covered": 1.0, "lift": 2.0}
    assert edges["first_letter"]["chance"] == 0.25 and edges["first_letter"]["share"] == 0.0
    assert math.isnan(edges["space"]["covered"]) and edges["space"]["chance"] == 0.0  # its boundary was forced
    uniform = summarise(read_text(small_model(head=0.0), TEXT, context=16))
    assert uniform["corpus_bits_per_byte"] == pytest.approx(8.0) == uniform["document_bits_per_byte"]
    one_byte = summarise(read_text(model, "abc", context=1))  # windows without decisions
    assert one_byte["rate"] == 1.0 and one_byte["word_edges"] == {}


def test_documents_do_not_touch(model, seeded):
    """Each is read as it would be alone, with the random numbers that are left for it; words end with documents."""
    texts = ["the cat sat on the mat", TEXT, "ab", "é" * 20]
    together, draws = read_text(model, texts, context=16, generator=seeded()), seeded()
    alone = [read_text(model, text, context=16, generator=draws) for text in texts]
    offsets = [sum(len(t.encode()) + 1 for t in texts[:n]) for n in range(len(texts))]
    places = [place + offset for read, offset in zip(alone, offsets, strict=True) for place in read.at.tolist()]
    assert together.at.tolist() == places
    for name in ("boundaries", "forced", "final_nats", "early_nats"):
        assert_close(getattr(together, name).double(), torch.cat([getattr(read, name) for read in alone]))
    metrics, parts = summarise(together), [summarise(read) for read in alone]
    assert metrics["bytes"] == sum(len(t.encode()) - 1 for t in texts) == sum(part["bytes"] for part in parts)
    assert metrics["tokens"] == sum(part["tokens"] for part in parts)
    edges = summarise(read_text(model, ["abc", "def"], context=8, greedy=True))["word_edges"]
    for name in ("last_letter", "first_letter", "any"):  # decisions after b and e alone
        assert edges[name]["chance"] == 0.0
