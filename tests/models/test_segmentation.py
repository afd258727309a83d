"""Segments of long texts are those of one pass over the whole text."""

from __future__ import annotations

import pytest
import torch

import rltok_rl
from rltok_rl.models import segmentation
from rltok_rl.models.incremental import prefill
from rltok_rl.models.segmentation import encode_pieces, join_parts, segment, segment_parts

from ..each import each
from .conftest import seeded

OPTIONS = {
    **{f"{n} layers": {"num_encoder_layers": n, "window": 4} for n in (0, 1, 3)},
    "n-grams": {"num_encoder_layers": 2, "window": 3, "ngram_sizes": (3, 2, 7), "ngram_buckets": 50},
    "rates": {"num_encoder_layers": 2, "window": 3, "rate_embedding": True},
}


@each(name=OPTIONS, piece=[1, 7, 32, 100])
@torch.no_grad()
def test_pieces_are_one_pass(name, piece, build, text):
    model, byte_ids = build(**OPTIONS[name]).double(), text(1, 60)
    rate = 0.4 if name == "rates" else None
    if rate is not None:
        model.rate_embedding.weight.normal_(generator=seeded(3))
    whole = model.boundary_terms(model.encode(byte_ids, target_rate=rate), target_rate=rate)
    states = torch.cat([*encode_pieces(model, byte_ids[0], piece=piece, target_rate=rate)], 1)
    for one, two in zip(whole, model.boundary_terms(states, target_rate=rate), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)  # rotary angles are float32


@each(greedy=[False, True])
@torch.no_grad()
def test_boundaries_are_those_of_the_model(greedy, build, text):
    model, byte_ids = build(boundary_scale=2.0, target_rate=0.4), text(1, 400)
    how, content = {"greedy": greedy}, bytes(byte_ids[0].tolist())
    drawn = segment(model, content, generator=None if greedy else seeded(3), piece=33, **how)
    out = model(byte_ids, generator=None if greedy else seeded(3), **how)
    assert torch.equal(drawn.boundaries, out.boundaries[0]) and 10 < drawn.boundaries.sum() < 390
    torch.testing.assert_close(drawn.probabilities[1:], out.boundary_logits.sigmoid()[0, 1:])
    assert drawn.probabilities[0] == 1 and drawn.text == content
    read = prefill(model, model.new_cache(1), byte_ids, generator=None if greedy else seeded(3), **how)
    assert torch.equal(drawn.boundaries, read.boundaries[0])


@each(
    options=[{}, {"num_lags": 0}, {"begin_of_text": True, "num_special": 1}], greedy=[False, True], part=[1, 50, 1000]
)
def test_parts_are_the_whole(options, greedy, part, build, text):
    model, content = build(boundary_scale=2.0, target_rate=0.4, **options), bytes(text(1, 400)[0].tolist())
    whole, *parts = [
        list(segment_parts(model, content, piece=7, part=size, greedy=greedy, generator=None if greedy else seeded(3)))
        for size in (1000, part)
    ]
    assert len(whole) == 1 and len(parts[0]) == {1: 58, 50: 8, 1000: 1}[part]
    drawn = join_parts(parts[0])
    assert drawn.text == content and torch.equal(drawn.boundaries, whole[0].boundaries)
    torch.testing.assert_close(drawn.probabilities, whole[0].probabilities, rtol=0, atol=1e-6)


def test_parts_are_drawn_while_the_text_is_encoded(build, monkeypatch):
    """However long the text is: the terms of one part, of a piece and of the lags are in memory."""
    lengths, encoded, draw = [], [], segmentation.sample_boundaries
    counted = lambda base, *rest, **how: lengths.append(base.shape[1]) or draw(base, *rest, **how)  # noqa: E731
    monkeypatch.setattr(segmentation, "sample_boundaries", counted)
    for size in (500, 5_000):
        parts = segment_parts(
            build(), b"to be " * size, piece=90, part=300, progress=lambda *now: encoded.append(now[0])
        )
        assert [len(next(parts).text) for _ in range(3)] == [360, 360, 360] and encoded.pop() <= 3 * 360
        assert sum(len(part.text) for part in parts) == 6 * size - 3 * 360
    assert max(lengths) < 300 + 90 + 20


def test_tokens_are_the_text(build):
    calls, content = [], "to be or not to be, é " * 9
    drawn = segment(build(), content, generator=seeded(0), piece=90, progress=lambda *now: calls.append(now))
    assert calls == [(90, 207), (180, 207), (207, 207)]
    tokens = list(drawn.tokens())
    assert b"".join(token.content for token in tokens) == drawn.text
    assert [token.start for token in tokens[1:]] == [token.end for token in tokens[:-1]]
    assert [token.end - 1 for token in tokens if token.ended] == drawn.boundaries.nonzero().squeeze(1).tolist()
    assert all(token.ended for token in tokens[:-1])
    assert segment(build(), "a").boundaries.tolist() == [True]
    with pytest.raises(ValueError, match="text must be UTF-8, got surrogates not allowed at character 2"):
        segment(build(), "to\ud800")


@each(greedy=[False, True])
def test_a_list_of_texts_is_segmented_text_by_text(greedy, build):
    model, texts = build(boundary_scale=2.0, target_rate=0.4), ["to be or not to be, é", b"\xff\x00 bytes"]
    one, several = seeded(3), seeded(3)
    together = rltok_rl.segment(model, texts, greedy=greedy, generator=several)
    assert [found.text for found in together] == ["to be or not to be, é".encode(), b"\xff\x00 bytes"]
    for content, found in zip(texts, together, strict=True):
        alone = segment(model, content, greedy=greedy, generator=one)
        assert torch.equal(alone.boundaries, found.boundaries) and torch.equal(alone.probabilities, found.probabilities)
    assert segment(model, []) == []
