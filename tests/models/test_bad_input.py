"""Every mistake that a caller of the model can make is answered by name, value and what is allowed."""

from __future__ import annotations

import re

import pytest
import torch

from rltok_rl.models.cache import UNetCache
from rltok_rl.models.incremental import decide, observe, prefill, step

from .conftest import mixed_boundaries


def test_bytes(build):
    model = build()
    good = torch.zeros(2, 5, dtype=torch.int64)
    cases = [
        (good.float(), TypeError, "byte_ids must be an integer tensor, got torch.float32"),
        (good.bool(), TypeError, "byte_ids must be an integer tensor, got torch.bool"),
        ([[1, 2]], TypeError, "byte_ids must be a tensor of shape [B, T], got list"),
        (good[0], ValueError, "byte_ids must have shape [B, T], got [5]"),
        (good[None], ValueError, "byte_ids must have shape [B, T], got [1, 2, 5]"),
    ]
    for value, error, message in cases:
        with pytest.raises(error, match=re.escape(message)):
            model(value)
    for wrong in (-1, 256):
        byte_ids = good.clone()
        byte_ids[1, 3] = wrong
        with pytest.raises(ValueError, match=rf"byte_ids must lie in 0\.\.255, got {wrong} at index \[1, 3\]"):
            model(byte_ids)


def test_special_ids_are_allowed_up_to_their_number(build):
    model = build(num_special=2)
    assert model(torch.tensor([[256, 257, 0]])).final_logits.shape[-1] == 256
    with pytest.raises(ValueError, match=r"byte_ids must lie in 0\.\.257 \(256 to 257 are the special ids\), got 258"):
        model(torch.tensor([[258]]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_bytes_and_any_boolean_boundaries_will_do(build, text, dtype):
    model, byte_ids, boundaries = build(), text(2, 9), mixed_boundaries(2, 9)
    expected = model(byte_ids, boundaries).final_logits
    assert torch.equal(model(byte_ids.to(dtype), boundaries.to(dtype)).final_logits, expected)


def test_boundaries(build):
    model, byte_ids = build(), torch.zeros(2, 5, dtype=torch.int64)
    good = torch.ones(2, 5, dtype=torch.int64)
    late, two = good.clone(), good.clone()
    late[1, 0], two[0, 2] = 0, 2
    cases = [
        (good[:, :4], ValueError, "boundaries must have the shape of byte_ids, [2, 5], got [2, 4]"),
        (good[0], ValueError, "boundaries must have the shape of byte_ids, [2, 5], got [5]"),
        (good.float(), TypeError, "boundaries must be bool or integer, got torch.float32"),
        (late, ValueError, "boundaries must be 1 at the first byte of every row"),
        (two, ValueError, "boundaries must be 0 or 1, got 2 at index [0, 2]"),
    ]
    for value, error, message in cases:
        with pytest.raises(error, match=re.escape(message)):
            model(byte_ids, value)


def test_layout(build):
    with pytest.raises(ValueError, match="layout must be one of"):
        build()(torch.zeros(1, 2, dtype=torch.int64), layout="sparse")


def test_steps_out_of_order(build):
    model = build()
    cache = UNetCache.empty(model.config, 2)
    byte_ids, ones = torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="call observe first"):
        decide(model, cache, ones)
    observe(model, cache, byte_ids)
    with pytest.raises(RuntimeError, match="observe was called twice for a row"):
        observe(model, cache, byte_ids)
    decide(model, cache, ones)
    observe(model, cache, byte_ids)
    cache.reset(torch.tensor([True, False]))
    with pytest.raises(RuntimeError, match="decide needs an observed byte in every row"):
        decide(model, cache, ones)


def test_a_refused_step_leaves_the_cache_as_it_was(build):
    model = build()
    cache = UNetCache.empty(model.config, 2)
    byte_ids, ones = torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
    for bytes_, boundaries, message in [
        (byte_ids, torch.tensor([True, False]), "boundaries must be 1 at the first byte"),
        (byte_ids, ones[:1], r"boundaries must have the shape of byte_ids, \[2\], got \[1\]"),
        (byte_ids[:1], ones, "byte_ids must hold one byte per row that reads, 2, got 1"),
        (byte_ids + 999, ones, r"byte_ids must lie in 0\.\.255, got 999 at index \[0\] and 1 more"),
        (byte_ids[None], ones, r"byte_ids must have shape \[B\], got \[1, 2\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            step(model, cache, bytes_, boundaries)
        assert cache.untouched
    step(model, cache, byte_ids, ones)


def test_cache(build):
    model = build()
    with pytest.raises(ValueError, match="num_rows must be at least 1, got 0"):
        UNetCache.empty(model.config, 0)
    cache = UNetCache.empty(model.config, 2)
    with pytest.raises(ValueError, match=r"rows must be bool of shape \[2\], got torch.int64 \[2\]"):
        cache.reset(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="times must be at least 1, got 0"):
        cache.repeat(0)
    byte_ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"byte_ids must hold one prompt .*\[2, T >= 1\], got \[1, 3\]"):
        prefill(model, cache, byte_ids[:1])
    with pytest.raises(ValueError, match=r"got \[2, 0\]"):
        prefill(model, cache, byte_ids[:, :0])
    with pytest.raises(ValueError, match="layout must be 'padded' where a cache is filled"):
        model(byte_ids, cache=cache, layout="packed")
    prefill(model, cache, byte_ids)
    with pytest.raises(ValueError, match="cache must be empty to be prefilled"):
        prefill(model, cache, byte_ids)
