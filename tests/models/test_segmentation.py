"""Segments of long texts are those of one pass over the whole text."""

from __future__ import annotations

import pytest
import torch

import rltok_rl
from rltok_rl.models.incremental import prefill
from rltok_rl.models.segmentation import policy_terms, segment


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("piece", [1, 7, 32, 100])
def test_pieces_are_one_pass(build, text, layers, piece):
    model, byte_ids = build(num_encoder_layers=layers, window=4), text(1, 60)
    whole = model.boundary_terms(model.encode(byte_ids))
    for one, two in zip(whole, policy_terms(model, byte_ids[0], piece=piece), strict=True):
        torch.testing.assert_close(one, two)


@torch.no_grad()
def test_context_before_a_piece_is_needed(build, text):
    """Planted: with one byte less to look back to, terms differ, so that the test above can see it."""
    model, byte_ids = build(num_encoder_layers=2, window=4), text(1, 40)
    whole = model.boundary_terms(model.encode(byte_ids)).base[0, 20]
    enough, less = (model.boundary_terms(model.encode(byte_ids[:, 20 - n : 21])).base[0, -1] for n in (6, 5))
    torch.testing.assert_close(whole, enough)
    assert abs(float(whole - less)) > 1e-5


@pytest.mark.parametrize("greedy", [False, True])
def test_boundaries_are_those_of_the_model(build, text, greedy):
    model, byte_ids = build(boundary_scale=2.0, target_rate=0.4), text(1, 400)
    generator = (lambda: None) if greedy else (lambda: torch.Generator().manual_seed(3))
    content = bytes(byte_ids[0].tolist())
    drawn = segment(model, content, greedy=greedy, generator=generator(), piece=33)
    out = model(byte_ids, greedy=greedy, generator=generator())
    assert torch.equal(drawn.boundaries, out.boundaries[0])
    assert 10 < drawn.boundaries.sum() < 390
    torch.testing.assert_close(drawn.probabilities[1:], out.boundary_logits.sigmoid()[0, 1:].detach())
    assert drawn.probabilities[0] == 1 and drawn.text == content
    read = prefill(model, model.new_cache(1), byte_ids, greedy=greedy, generator=generator())
    assert torch.equal(drawn.boundaries, read.boundaries[0])


def test_tokens_are_the_text(build):
    drawn = segment(build(), "to be or not to be, é " * 9, generator=torch.Generator().manual_seed(0))
    tokens = list(drawn.tokens())
    assert b"".join(token.content for token in tokens) == drawn.text
    assert [token.start for token in tokens[1:]] == [token.end for token in tokens[:-1]]
    assert [token.end - 1 for token in tokens if token.ended] == drawn.boundaries.nonzero().squeeze(1).tolist()
    assert all(token.ended for token in tokens[:-1])


def test_nothing_cannot_be_segmented(build):
    with pytest.raises(ValueError, match="text must have at least 1 byte, got an empty text"):
        segment(build(), "")
    with pytest.raises(ValueError, match="piece must be an integer of at least 1, got 0"):
        segment(build(), "a", piece=0)
    assert segment(build(), "a").boundaries.tolist() == [True]


def test_progress_is_called_after_every_piece(build):
    calls = []
    segment(build(), "to be or not to be", piece=5, progress=lambda *now: calls.append(now))
    assert calls == [(5, 18), (10, 18), (15, 18), (18, 18)]


@pytest.mark.parametrize("greedy", [False, True])
def test_a_list_of_texts_is_segmented_text_by_text(build, greedy):
    model, texts = build(boundary_scale=2.0, target_rate=0.4).eval(), ["to be or not to be, é", b"\xff\x00 bytes"]
    one, several = (torch.Generator().manual_seed(3) for _ in range(2))
    each = [rltok_rl.segment(model, text, greedy=greedy, generator=one) for text in texts]
    together = rltok_rl.segment(model, texts, greedy=greedy, generator=several)
    assert [found.text for found in together] == ["to be or not to be, é".encode(), b"\xff\x00 bytes"]
    for alone, found in zip(each, together, strict=True):
        assert torch.equal(alone.boundaries, found.boundaries) and torch.equal(alone.probabilities, found.probabilities)
    assert rltok_rl.segment(model, []) == [] and rltok_rl.segment is segment


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("", ValueError, "text must have at least 1 byte, got an empty text"),
        (["a", b""], ValueError, "text must have at least 1 byte, got an empty text at 1"),
        (["a", 3], TypeError, "text must be str or bytes, or a list of them, got int at 1"),
        (3, TypeError, "text must be str or bytes, or a list of them, got int"),
    ],
)
def test_texts_that_cannot_be_segmented_are_named(build, texts, error, message):
    with pytest.raises(error, match=message):
        rltok_rl.segment(build(), texts)
