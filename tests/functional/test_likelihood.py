"""Likelihoods of bytes against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rltok_rl.functional.likelihood import bits_per_byte, byte_log_prob, next_byte_log_prob


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_byte_log_prob_is_cross_entropy(dtype):
    logits, targets = 5 * torch.randn(3, 7, 256, dtype=dtype), torch.randint(256, (3, 7))
    wide = logits.to(torch.promote_types(dtype, torch.float32))
    expected = -F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none").view(3, 7)
    torch.testing.assert_close(byte_log_prob(logits, targets), expected)


def test_next_byte_is_the_byte_after():
    byte_ids = torch.tensor([[5, 6, 7]])
    logits = torch.zeros(1, 3, 256)
    logits[0, 0, 6] = logits[0, 1, 7] = 100.0  # positions 0 and 1 know what comes next
    torch.testing.assert_close(next_byte_log_prob(logits, byte_ids), torch.zeros(1, 2))


@pytest.mark.parametrize("length", [0, 1])
def test_nothing_follows_a_short_text(length):
    assert next_byte_log_prob(torch.zeros(2, length, 256), torch.zeros(2, length).long()).shape == (2, 0)


def test_uniform_prediction_costs_eight_bits():
    nats = -byte_log_prob(torch.zeros(10, 256), torch.arange(10)).sum()
    assert bits_per_byte(nats, 10).item() == pytest.approx(8.0)


def test_errors():
    with pytest.raises(ValueError, match=r"must agree, got \[2, 256\] and \[3\]"):
        byte_log_prob(torch.zeros(2, 256), torch.zeros(3).long())
    with pytest.raises(ValueError, match="num_bytes must be at least 1, got 0"):
        bits_per_byte(1.0, 0)
