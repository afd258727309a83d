"""Filters keep what they should; draws follow the distribution."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.functional.decoding import filter_logits, sample_bytes
from rltok_rl.text import ids_to_bytes, text_to_ids

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 4),
        ({"top_k": 1}, 1),
        ({"top_k": 3}, 3),
        ({"top_k": 99}, 4),
        ({"top_p": 1e-9}, 1),
        ({"top_p": 0.49}, 1),
        ({"top_p": 0.51}, 2),
        ({"top_p": 0.81}, 3),
        ({"top_p": 1.0}, 4),
        ({"top_k": 2, "top_p": 0.7}, 2),  # after k = 2 the first holds 0.625 < 0.7
        ({"top_k": 2, "top_p": 0.6}, 1),
    ],
)
def test_filters_keep_the_likeliest(options, kept):
    shuffle = torch.tensor([2, 0, 3, 1])
    filtered = filter_logits(LOGITS[:, shuffle], **options)
    assert filtered.isfinite()[:, shuffle.argsort()].tolist() == [[i < kept for i in range(4)]]


def test_draws_follow_temperature():
    """20,000 draws: a standard error is at most 0.0036, so 0.02 is beyond five of them."""
    for temperature in (0.5, 1.0, 2.0):
        drawn = sample_bytes(
            LOGITS.expand(20_000, 4), temperature=temperature, generator=torch.Generator().manual_seed(0)
        )
        frequencies = torch.bincount(drawn, minlength=4) / 20_000
        torch.testing.assert_close(frequencies, (LOGITS[0] / temperature).softmax(-1), rtol=0, atol=0.02)


def test_temperature_zero_takes_the_likeliest():
    assert sample_bytes(LOGITS.flip(-1), temperature=0.0).tolist() == [3]


def test_not_a_number_is_refused():
    with pytest.raises(ValueError, match="temperature must be at least 0, got nan"):
        sample_bytes(LOGITS, temperature=float("nan"))


def test_text_survives_a_round_trip():
    for text in ("", "plain", "ünïcode 文字", "\x00\n"):
        assert ids_to_bytes(text_to_ids(text)).decode() == text
    with pytest.raises(TypeError, match="text must be str or bytes, got int"):
        text_to_ids(3)
    with pytest.raises(ValueError, match=r"byte_ids must lie in 0\.\.255.*got 256"):
        ids_to_bytes([65, 256])


@pytest.mark.parametrize("wrong", [[104.5], torch.tensor([104.0]), torch.tensor([[104, 105]]), torch.tensor(104)])
def test_what_are_no_ids_of_one_text_are_refused(wrong):
    with pytest.raises(TypeError, match="integer"):
        ids_to_bytes(wrong)
