"""Batched, window by window and byte by byte: the same boundaries, the same costs."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter

from rltok_rl.evaluation import read_samples, read_streamed, read_text, streamed, windowed
from rltok_rl.evaluation.streamed import Stepper
from rltok_rl.evaluation.windowed import SegmentedModel
from rltok_rl.models import UNet

from ..each import each
from .conftest import small_model

TEXTS = ["It is a truth universally acknowledged,", "must", "be in want. é", b"\xff\xfe\x00ab"]


@pytest.fixture(scope="module")
def short_window_model() -> UNet:
    return small_model(head=0.5, seed=1, window=16)


SEGMENTERS = (None, "learned", "spacebyte", "random", "hnet", "gumbel", "magnet", "grouped", "entropy-spike")


@pytest.mark.parametrize("name", SEGMENTERS)
def test_batched_unbatched_and_streamed_are_one_reading(name, short_window_model, seeded, monkeypatch):
    """Texts are longer than attention's window of 16."""
    model = short_window_model
    segmenter = None if name is None else make_segmenter(name, model).eval()
    options = {"segmenter": segmenter, "context": 100}
    batched = read_text(model, TEXTS, generator=seeded(), **options)
    assert 0.02 < batched.boundaries.double().mean() < 0.98
    reports: list[tuple[int, int, float]] = []
    progress = {"progress": lambda *report: reports.append(report)}
    others = [read_streamed(model, TEXTS, segmenter=segmenter, generator=seeded(), **progress)]
    assert reports[-1][:2] == (len(batched.at), len(batched.at)) and reports[0][0] == len(TEXTS)
    assert reports[-1][2] == pytest.approx(float(others[0].final_nats.sum()))
    monkeypatch.setattr(windowed, "BATCH_BYTES", 1)  # a forward pass for each window
    monkeypatch.setattr(streamed, "ROW_BYTES", 1)  # a text at a time
    others.append(read_text(model, TEXTS, generator=seeded(), **options))
    if name in (None, "gumbel"):
        others.append(read_streamed(model, TEXTS, segmenter=segmenter, generator=seeded()))
    for other in others:
        for field in ("byte_ids", "at", "boundaries", "forced", "document", "window_sizes"):
            assert torch.equal(getattr(batched, field), getattr(other, field)), field
        for field in ("final_nats", "early_nats"):
            torch.testing.assert_close(getattr(batched, field), getattr(other, field), atol=1e-4, rtol=0)
        assert other.num_windows == batched.num_windows == 4


def test_samples_are_streamed_too(short_window_model, seeded):
    for segmenter in (None, make_segmenter("gumbel", short_window_model).eval()):
        options = {"segmenter": segmenter, "samples": 2}
        whole = read_samples(short_window_model, TEXTS, generator=seeded(), context=100, **options)
        stream = read_samples(short_window_model, TEXTS, generator=seeded(), read=read_streamed, **options)
        torch.testing.assert_close(whole.nats, stream.nats, atol=1e-3, rtol=0)
        torch.testing.assert_close(whole.thresholded, stream.thresholded, atol=1e-3, rtol=0)
        assert whole.thresholded_rate == stream.thresholded_rate


def test_a_target_rate_is_streamed(seeded, monkeypatch):
    model = small_model(rate_embedding=True)
    torch.nn.init.normal_(model.rate_embedding.weight, std=0.5)
    whole = read_text(model, TEXTS[0], target_rate=0.5, generator=seeded(), context=100)
    monkeypatch.setattr(streamed, "_REPORT_EVERY", 16)
    options = {"target_rate": 0.5, "progress": lambda done, *_: done_so_far.append(done)}
    done_so_far: list[int] = []
    stream = read_streamed(model, TEXTS[0], generator=seeded(), **options)
    assert done_so_far == [1, 17, 33, 38]  # now and then, and at the end
    assert torch.equal(whole.boundaries, stream.boundaries)
    torch.testing.assert_close(whole.final_nats, stream.final_nats, atol=1e-4, rtol=0)


@each(name=SEGMENTERS)
@torch.no_grad()
def test_rows_that_branch_go_on_as_if_they_had_been_read_alone(name, short_window_model):
    """Rows in another order, one of them twice, with what a segmenter remembers of each."""
    model, rows = short_window_model, torch.tensor([2, 0, 0, 1])
    segmented = SegmentedModel(model, None if name is None else make_segmenter(name, model).eval())
    byte_ids, uniforms = torch.randint(97, 123, (14, 3)), torch.rand(14, 3)
    branched, whole = Stepper(segmented, 3), Stepper(segmented, 4)
    for t in range(14):
        if t < 10:
            branched.step(byte_ids[t], uniforms[t])
            whole.step(byte_ids[t, rows], uniforms[t, rows])
            continue
        if t == 10:
            branched.take(rows)
        following, drawn = torch.randint(97, 123, (4,)), torch.rand(4)
        one, other = (stepper.step(following, drawn) for stepper in (branched, whole))
        assert torch.equal(one.boundaries, other.boundaries)
        torch.testing.assert_close(one.final_logits, other.final_logits, atol=1e-4, rtol=0)


def test_documents_are_read_side_by_side_within_the_memory(monkeypatch):
    monkeypatch.setattr(streamed, "ROW_BYTES", 20)
    sizes = torch.tensor([3, 9, 1, 30, 10, 2, 9, 1])
    batches = [rows.tolist() for rows in streamed._side_by_side(sizes)]
    assert sorted(sum(batches, [])) == list(range(len(sizes)))
    assert all(len(rows) == 1 or len(rows) * max(int(sizes[row]) for row in rows) <= 20 for rows in batches)
    assert len(batches) == 4
