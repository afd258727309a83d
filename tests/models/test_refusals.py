"""Wrong arguments of the model are refused by name and value, and leave the cache as it was."""

from __future__ import annotations

import re

import pytest
import torch

from rltok_rl.functional.decoding import sample_bytes
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.generation import generate
from rltok_rl.models.incremental import decide, observe, prefill, step

from .conftest import mixed_boundaries

ZEROS, ONES = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)


def refused(cases) -> None:
    """Every call raises its exception with its words; cases are (call, exception, words)."""
    for call, error, words in cases:
        with pytest.raises(error, match=re.escape(words)):
            call()


def changed(values: torch.Tensor, row: int, column: int, value: int) -> torch.Tensor:
    out = values.clone()
    out[row, column] = value
    return out


def test_windows(build):
    model = build()
    states = model.encode(ZEROS)
    given = "must be left out with boundaries"
    refused(
        [
            (lambda: model(ZEROS.float()), TypeError, "byte_ids must be an integer tensor, got torch.float32"),
            (lambda: model(ZEROS.bool()), TypeError, "byte_ids must be an integer tensor, got torch.bool"),
            (lambda: model([[1, 2]]), TypeError, "byte_ids must be a tensor of shape [B, T], got list"),
            (lambda: model(ZEROS[0]), ValueError, "byte_ids must have shape [B, T], got [5]"),
            (lambda: model(ZEROS - 1), ValueError, "byte_ids must lie in 0..255, got -1 at index [0, 0]"),
            (lambda: model(changed(ZEROS, 1, 3, 256)), ValueError, "lie in 0..255, got 256 at index [1, 3]"),
            (lambda: model(ZEROS, ONES[:, :4]), ValueError, "must have the shape of byte_ids, [2, 5], got [2, 4]"),
            (lambda: model(ZEROS, ONES.float()), TypeError, "boundaries must be bool or integer, got torch.float32"),
            (lambda: model(ZEROS, changed(ONES, 1, 0, 0)), ValueError, "must be 1 at the first byte of every row"),
            (lambda: model(ZEROS, changed(ONES, 0, 2, 2)), ValueError, "must be 0 or 1, got 2 at index [0, 2]"),
            (lambda: model.decode(states, changed(ONES, 1, 0, 0)), ValueError, "must be 1 at the first byte"),
            (lambda: model.decode(states, ONES[:, :4]), ValueError, "[2, 5], got [2, 4]"),
            (lambda: model(ZEROS, layout="sparse"), ValueError, "layout must be one of"),
            (lambda: model(ZEROS, ONES, greedy=True), ValueError, given),
            (lambda: model(ZEROS, ONES, uniforms=torch.rand(2, 5)), ValueError, given),
            (lambda: model(ZEROS, ONES, generator=torch.Generator()), ValueError, given),
        ]
    )
    special = build(num_special=2)
    assert special(torch.tensor([[256, 257, 0]])).final_logits.shape[-1] == 256
    words = "byte_ids must lie in 0..257 (256 to 257 are the special ids), got 258"
    refused([(lambda: special(torch.tensor([[258]])), ValueError, words)])
    assert model.decode(states, ONES).shape == states.shape  # integers are allowed


def test_any_integer_type_is_allowed(build, text):
    model, byte_ids, boundaries = build(), text(2, 9), mixed_boundaries(2, 9)
    expected = model(byte_ids, boundaries).final_logits
    for dtype in (torch.uint8, torch.int32, torch.int64):
        assert torch.equal(model(byte_ids.to(dtype), boundaries.to(dtype)).final_logits, expected)


def test_steps(build):
    """Halves out of order, and wrong arguments that leave the cache untouched."""
    model = build()
    cache, byte_ids, ones = model.new_cache(2), ZEROS[:, 0], torch.ones(2, dtype=torch.bool)
    refused(
        [
            (lambda: step(model, cache, byte_ids, torch.tensor([True, False])), ValueError, "1 at the first byte"),
            (lambda: step(model, cache, byte_ids, ones[:1]), ValueError, "the shape of byte_ids, [2], got [1]"),
            (lambda: step(model, cache, byte_ids[:1], ones), ValueError, "one byte per row that reads, 2, got 1"),
            (lambda: step(model, cache, byte_ids + 999, ones), ValueError, "got 999 at index [0] and 1 more"),
            (lambda: step(model, cache, byte_ids[None], ones), ValueError, "must have shape [B], got [1, 2]"),
            (lambda: observe(model, cache, byte_ids, rows=torch.tensor([1, 1])), ValueError, "in increasing order"),
            (lambda: decide(model, cache, ones), RuntimeError, "call observe first"),
        ]
    )
    assert cache.untouched
    observe(model, cache, byte_ids)
    refused([(lambda: observe(model, cache, byte_ids), RuntimeError, "observe was called twice for a row")])
    decide(model, cache, ones)
    observe(model, cache, byte_ids)
    cache.reset(torch.tensor([True, False]))
    refused([(lambda: decide(model, cache, ones), RuntimeError, "decide needs an observed byte in every row")])


def test_caches(build):
    model = build()
    cache, byte_ids = model.new_cache(2), ZEROS[:, :3]
    wide = UNetCache.empty(model.config, 2, dtype=torch.float64)
    other = "cache must be made for this model"
    cases = [
        (lambda: UNetCache.empty(model.config, 0), ValueError, "num_rows must be at least 1, got 0"),
        (lambda: cache.reset(torch.tensor([0, 1])), ValueError, "rows must be bool of shape [2], got torch.int64 [2]"),
        (lambda: cache.repeat(0), ValueError, "times must be at least 1, got 0"),
        (lambda: prefill(model, cache, byte_ids[:1]), ValueError, "[2, T >= 1], got [1, 3]"),
        (lambda: prefill(model, cache, byte_ids[:, :0]), ValueError, "[2, T >= 1], got [2, 0]"),
        (lambda: model(byte_ids, cache=cache, layout="packed"), ValueError, "layout must be 'padded' where a cache"),
        (lambda: observe(model, wide, byte_ids[:, 0]), ValueError, "cache must have the model's dtype and device"),
    ]
    for options in ({"window": 8}, {"num_lags": 3}, {"num_token_layers": 2}, {"ngram_sizes": (3,)}):
        cache_of_other = build(**options).new_cache(2)
        cases.append((lambda c=cache_of_other: observe(model, c, byte_ids[:, 0]), ValueError, other))
    refused(cases)
    cache = model.new_cache(2)
    prefill(model, cache, byte_ids)
    refused([(lambda: prefill(model, cache, byte_ids), ValueError, "cache must be empty to be prefilled")])


def test_numbers_outside_the_model():
    nan = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])
    model = UNet(preset("tiny"))
    with torch.no_grad():
        model.boundary_head.projection.weight.fill_(float("nan"))
    cases = [
        (lambda: sample_bytes(nan), ValueError, "logits must be numbers, got nan in row 1"),
        (lambda: generate(model, "abc", max_bytes=2), ValueError, "must be finite, got nan"),
        (
            lambda: next_byte_log_prob(torch.zeros(1, 2, 256), torch.tensor([[0, 256]])),
            ValueError,
            "got values from 256 to 256",  # special ids are never predicted
        ),
    ]
    for name in ("final_cap", "attention_cap", "boundary_cap", "rope_base", "boundary_scale"):
        infinite = lambda n=name: preset("tiny", **{n: float("inf")})  # noqa: E731
        cases.append((infinite, ValueError, f"{name} must be positive and finite"))
        cases.append((lambda n=name: preset("tiny", **{n: "1"}), TypeError, f"{name} must be a number, got '1'"))
    refused(cases)
    logits = torch.randn(50, 256)
    for options in ({"temperature": 1e-40}, {"top_p": 1e-300}):
        assert torch.equal(sample_bytes(logits, **options), logits.argmax(-1))
