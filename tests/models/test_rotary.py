"""Rotary angles of windows, which are kept between calls."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rltok_rl.models import UNet, layers, preset
from rltok_rl.models.layers import rotary, window_rotary

from ..each import each

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept():
    layers.window_rotary.cache_clear()


@each(length=[0, 1, 300], head_size=[2, 16], base=[1e4, 500.0])
def test_a_window_has_the_angles_of_its_positions(length, head_size, base):
    angles = window_rotary(length, head_size, base, CPU)
    for ours, theirs in zip(angles, rotary(torch.arange(length), head_size, base), strict=True):
        assert torch.equal(ours, theirs)
    if length:
        some = torch.randint(length, (3, 5))
        for ours, theirs in zip(angles.at(some), rotary(some, head_size, base), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)  # cosines of other numbers side by side


def test_windows_are_calculated_once_and_not_while_operations_are_traced():
    first = window_rotary(64, 8, 1e4, CPU)
    assert window_rotary(64, 8, 1e4, CPU)[0] is first[0]
    assert window_rotary(65, 8, 1e4, CPU)[0] is not first[0]
    with FlopCounterMode(display=False):
        assert window_rotary(64, 8, 1e4, CPU)[0] is not first[0]
    for n in range(20):
        window_rotary(n, 8, 1e4, CPU)
    assert layers.window_rotary.cache_info().currsize <= 8


def test_angles_kept_by_inference_serve_training():
    model = UNet(preset("tiny"))
    ids, boundaries = torch.randint(256, (2, 40)), torch.rand(2, 40) < 0.3
    boundaries[:, 0] = True
    with torch.inference_mode():
        before = model(ids, boundaries).final_logits
    logits = model(ids, boundaries).final_logits
    logits.sum().backward()
    assert torch.equal(before, logits)
    assert all(weight.grad.isfinite().all() for weight in model.token_layers.parameters())
