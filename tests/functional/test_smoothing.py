"""Smoothing over tokens: the scan is the loop, and both are the sum written out."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.functional.routing import smooth


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 100])
def test_scan_and_loop_and_sum_agree(length):
    values = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(2, length, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(2, length, 3, dtype=torch.float64)
    for j in range(length):
        for i in range(j + 1):
            kept = (1 - weights[:, i + 1 : j + 1]).prod(1)
            expected[:, j] += (kept * weights[:, i])[:, None] * values[:, i]
    slopes = []
    for method in ("scan", "loop"):
        out = smooth(values, weights, method=method)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        slopes.append(torch.autograd.grad((out * torch.arange(1.0, 4.0)).sum(), (values, weights)))
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_by_hand():
    """Tokens 8, 4, 0 with P = 1, 1/2, 1/4 give 8, (4 + 8)/2 = 6, 0 + 6 * 3/4 = 4.5."""
    values = torch.tensor([[8.0], [4.0], [0.0]])
    assert smooth(values, torch.tensor([1.0, 0.5, 0.25])).flatten().tolist() == [8.0, 6.0, 4.5]


@pytest.mark.parametrize("method", ["scan", "loop"])
def test_a_fresh_token_takes_nothing_from_the_row_before(method):
    values, weights = torch.randn(9, 4, dtype=torch.float64), torch.rand(9, dtype=torch.float64)
    fresh = torch.tensor([1, 0, 0, 0, 1, 0, 1, 0, 0]).bool()
    joined = smooth(values, weights, fresh=fresh, method=method)
    apart = [smooth(values[a:b], weights[a:b], method=method) for a, b in ((0, 4), (4, 6), (6, 9))]
    torch.testing.assert_close(joined, torch.cat(apart), rtol=0, atol=1e-12)


def test_gradients_are_right():
    values = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(smooth, (values, weights))


def test_narrow_types_are_smoothed_in_float32():
    values, weights = torch.randn(1, 300, 2), torch.full((1, 300), 0.02)
    narrow = smooth(values.bfloat16(), weights)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), smooth(values.bfloat16().float(), weights), rtol=0.01, atol=0.01)


def test_misuse_is_said_by_name():
    with pytest.raises(ValueError, match=r"method must be one of \['scan', 'loop'\], got 'fast'"):
        smooth(torch.zeros(1, 1), torch.zeros(1), method="fast")
    with pytest.raises(ValueError, match="values .* and weights .* must agree"):
        smooth(torch.zeros(2, 1), torch.zeros(3))
