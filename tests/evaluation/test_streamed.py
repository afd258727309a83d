"""Batched, window by window and byte by byte: the same boundaries, the same costs."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter

from rltok_rl.evaluation import read_samples, read_streamed, read_text
from rltok_rl.evaluation import streamed as streaming
from rltok_rl.evaluation import windowed as reading
from rltok_rl.models import UNet, preset

TEXTS = [
    "It is a truth universally acknowledged, that",
    "must",
    "be in want of a wife. é",
    b"\xff\xfe\x00ab",
]


def build(name: str) -> tuple[UNet, torch.nn.Module | None]:
    torch.manual_seed(1)
    model = UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3, window=16)).eval()
    torch.nn.init.normal_(model.final_head.projection.weight, std=0.5)
    return model, None if name == "own policy" else make_segmenter(name, model).eval()


@pytest.mark.parametrize(
    "name", ["own policy", "learned", "spacebyte", "random", "hnet", "gumbel", "magnet", "grouped", "entropy-spike"]
)
def test_batched_unbatched_and_streamed_are_one_reading(name, monkeypatch):
    model, segmenter = build(name)

    def draws() -> torch.Generator:
        return torch.Generator().manual_seed(4)

    whole = {"segmenter": segmenter, "context": 100}
    batched = read_text(model, TEXTS, generator=draws(), **whole)
    assert 0.02 < batched.boundaries.double().mean() < 0.98
    with monkeypatch.context() as patch:
        patch.setattr(reading, "BATCH_BYTES", 1)  # a forward pass for each window
        unbatched = read_text(model, TEXTS, generator=draws(), **whole)
    streamed = read_streamed(model, TEXTS, segmenter=segmenter, generator=draws())
    with monkeypatch.context() as patch:
        patch.setattr(streaming, "ROW_BYTES", 1)  # a text at a time
        alone = read_streamed(model, TEXTS, segmenter=segmenter, generator=draws())
    for other in (unbatched, streamed, alone):
        for field in ("byte_ids", "at", "boundaries", "forced", "document", "window_sizes"):
            assert torch.equal(getattr(batched, field), getattr(other, field)), field
        for field in ("final_nats", "early_nats"):
            torch.testing.assert_close(getattr(batched, field), getattr(other, field), atol=1e-4, rtol=0)
        assert other.num_windows == batched.num_windows == 4


@pytest.mark.parametrize("name", ["own policy", "gumbel"])
def test_thresholded_and_sampled_readings_are_streamed_too(name):
    model, segmenter = build(name)
    options = {"segmenter": segmenter, "samples": 2}
    whole, streamed = (
        read_samples(model, TEXTS, read=read, generator=torch.Generator().manual_seed(4), **options, **how)
        for read, how in ((read_text, {"context": 100}), (read_streamed, {}))
    )
    torch.testing.assert_close(whole.nats, streamed.nats, atol=1e-3, rtol=0)
    torch.testing.assert_close(whole.thresholded, streamed.thresholded, atol=1e-3, rtol=0)
    assert whole.thresholded_rate == streamed.thresholded_rate


def test_a_target_rate_is_streamed():
    model = UNet(preset("tiny", rate_embedding=True, boundary_scale=1.0)).eval()
    torch.nn.init.normal_(model.rate_embedding.weight, std=0.5)
    whole, streamed = (
        read(model, TEXTS[0], target_rate=0.5, generator=torch.Generator().manual_seed(4), **how)
        for read, how in ((read_text, {"context": 100}), (read_streamed, {}))
    )
    assert torch.equal(whole.boundaries, streamed.boundaries)
    torch.testing.assert_close(whole.final_nats, streamed.final_nats, atol=1e-4, rtol=0)


def test_progress_ends_with_all_bytes():
    told: list[tuple[int, int, float]] = []
    read = read_streamed(build("own policy")[0], TEXTS, progress=lambda *figures: told.append(figures))
    assert told[-1][:2] == (len(read.at), len(read.at)) and told[0][0] == len(TEXTS)
    assert told[-1][2] == pytest.approx(float(read.final_nats.sum()))


def test_what_cannot_be_streamed_is_said_by_name():
    model, segmenter = build("spacebyte")
    with pytest.raises(ValueError, match="text must have at least 2 bytes .*, got 1"):
        read_streamed(model, "a")
    with pytest.raises(ValueError, match="target_rate belongs to the model's own policy, got it with SpaceByte"):
        read_streamed(model, "abc", segmenter=segmenter, target_rate=0.2)
    segmenter.looks_ahead = True
    with pytest.raises(ValueError, match="segmenter must not look ahead to be streamed, got SpaceByte"):
        read_streamed(model, "abc", segmenter=segmenter)
