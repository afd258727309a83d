"""Wrong arguments of the model are refused by name and value, and leave the cache as it was."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.functional.decoding import sample_bytes
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, preset, segment
from rltok_rl.models.attention import PackedRows, packed_attention, sliding_window_attention
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.generation import generate
from rltok_rl.models.incremental import decide, observe, prefill, step
from rltok_rl.models.tokens import Packing, token_layout

from .conftest import mixed_boundaries, refused

ZEROS, ONES = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)


def changed(values: torch.Tensor, row: int, column: int, value: int) -> torch.Tensor:
    out = values.clone()
    out[row, column] = value
    return out


def test_configurations():
    level = {"second_level": "routing"}
    wide = {**level, "num_second_layers": 0}
    strictly = "must lie strictly between 0 and 1"
    cases = [
        ({"num_heads": 3}, "width must be a multiple of 2 * num_heads (rotary positions turn pairs of channels), got"),
        ({"window": 0}, "window must be an integer of at least 1, got 0"),
        ({"window": 2.5}, "window must be an integer of at least 1, got 2.5"),
        ({"width": True}, "width must be an integer"),
        ({"num_lags": -1}, "num_lags must be an integer of at least 0 and at most 10_000, got -1"),
        ({"target_rate": 1.0}, f"target_rate {strictly}, got 1.0"),
        ({"final_cap": 0.0}, "final_cap must lie in [1e-3, 1e6], or None"),
        ({"boundary_scale": float("nan")}, "boundary_scale must lie in (0, 1e4]"),
        ({"pooling": "max"}, "pooling must be one of ['select', 'mean', 'attention'], got 'max'"),
        ({"upsampling": "concat"}, "upsampling must be one of ['add', 'deviation', 'attention'], got 'concat'"),
        ({"smoothing": "policy"}, "smoothing must be one of ['none', 'detached', "),
        ({"ngram_scale": "max"}, "ngram_scale must be one of ['mean', 'sum'], got 'max'"),
        ({"ngram_sizes": (3, 1)}, "ngram_sizes must be an integer of at least 2 and at most 1000, got 1"),
        ({"ngram_sizes": (3, 3)}, "ngram_sizes must name each size once, got [3, 3]"),
        ({"ngram_sizes": "34"}, "ngram_sizes must be a list of integers of at least 2, got '34'"),
        ({"ngram_sizes": 3}, "ngram_sizes must be a list of integers of at least 2, got 3"),
        ({"rate_embedding": 1}, "rate_embedding must be True or False, got 1"),
        ({"boundary_bias": "yes"}, "boundary_bias must be True or False, got 'yes'"),
        ({"begin_of_text": True}, "num_special must be at least 1 with begin_of_text, whose mark is id 256, got 0"),
        ({"head_bias": 1}, "head_bias must be True or False, got 1"),
        ({"byte_scope": "word"}, "byte_scope must be one of ['window', 'token'], got 'word'"),
        ({"byte_scope": "token", "ngram_sizes": (3,)}, "ngram_sizes must be empty with byte_scope='token', whose enc"),
        ({"second_level": "words"}, "second_level must be one of [None, 'stride', 'routing'], got 'words'"),
        ({"second_rate": 0.2}, "second_rate must be left out if second_level is None, got 0.2"),
        ({"token_width": 32}, "token_width must be at least the width of the level below, 64, got 32"),
        (
            {**level, "token_width": 68, "second_width": 64},
            "second_width must be at least the width of the level below, 68",
        ),
        ({"token_width": 70, "token_heads": 3}, "token_width must be a multiple of 2 * token_heads"),
        ({"token_heads": 4}, "token_heads must be left out if token_width is None, got 4"),
        ({"second_width": 96}, "second_width must be left out if second_level is None, got 96"),
        ({**level, "second_heads": 4}, "second_heads must be left out if second_width is None, got 4"),
        ({"num_lower_layers": 1}, "num_lower_layers must be left out if second_level is None, got 1"),
        ({"second_level": "stride", "second_rate": 0.3}, "second_rate must be 1, 1/2, 1/3, ... for 'stride', got 0.3"),
        ({"second_level": "routing", "second_rate": 1.0}, f"second_rate {strictly}"),
        ({"second_level": "stride", "second_rate": "1/3"}, "second_rate must be a number, got '1/3'"),
        ({"second_level": "stride", "second_residual": "projection"}, "second_residual must be 'identity' for"),
        (wide, "num_second_layers must be an integer of at least 1"),
        ({"second_level": "routing", "num_lower_layers": 2}, "num_lower_layers must be at most num_token_layers, 1"),
        ({"widht": 3}, "unknown keys ['widht']"),
    ]
    for name in ("final_cap", "attention_cap", "boundary_cap", "rope_base", "boundary_scale"):
        cases.append(({name: float("inf")}, f"{name} must lie in "))
        cases.append(({name: "1"}, f"{name} must be a number, got '1'"))
    refused((lambda o=options: preset("tiny", **o), (ValueError, TypeError), words) for options, words in cases)
    refused([(lambda: preset("paper-147"), ValueError, "did you mean 'paper-147m'")])


def test_windows(build, text):
    model, special = build(), build(num_special=2)
    states, given = model.encode(ZEROS), "must be left out with boundaries"
    scoped, before = build(byte_scope="token"), "boundaries must be given with byte_scope='token' before bytes are enc"
    ids = "byte_ids must lie in 0..257 (256 to 257 are the special ids), got 258"
    heads = torch.zeros(3, 4, 2, 8)
    refused(
        [
            (lambda: model(ZEROS.float()), TypeError, "byte_ids must be an integer tensor, got torch.float32"),
            (lambda: model(ZEROS.bool()), TypeError, "byte_ids must be an integer tensor, got torch.bool"),
            (lambda: model([[1, 2]]), TypeError, "byte_ids must be a tensor of shape [B, T], got list"),
            (lambda: model(ZEROS[0]), ValueError, "byte_ids must have shape [B, T], got [5]"),
            (lambda: model(ZEROS - 1), ValueError, "byte_ids must lie in 0..255, got -1 at index [0, 0]"),
            (lambda: model(changed(ZEROS, 1, 3, 256)), ValueError, "lie in 0..255, got 256 at index [1, 3]"),
            (lambda: special(torch.tensor([[258]])), ValueError, ids),
            (lambda: model(ZEROS, ONES[:, :4]), ValueError, "must have the shape of byte_ids, [2, 5], got [2, 4]"),
            (lambda: model(ZEROS, ONES.float()), TypeError, "boundaries must be bool or integer, got torch.float32"),
            (lambda: model(ZEROS, changed(ONES, 1, 0, 0)), ValueError, "must be 1 at the first byte of every row"),
            (lambda: model(ZEROS, changed(ONES, 0, 2, 2)), ValueError, "must be 0 or 1, got 2 at index [0, 2]"),
            (lambda: model.decode(states, changed(ONES, 1, 0, 0)), ValueError, "must be 1 at the first byte"),
            (lambda: model.decode(states, ONES[:, :4]), ValueError, "[2, 5], got [2, 4]"),
            (lambda: model(ZEROS, layout="sparse"), ValueError, "layout must be one of ['padded', 'packed'] or a Pack"),
            (lambda: model(ZEROS, ONES, greedy=True), ValueError, given),
            (lambda: model(ZEROS, ONES, uniforms=torch.rand(2, 5)), ValueError, given),
            (lambda: model(ZEROS, ONES, generator=torch.Generator()), ValueError, given),
            (lambda: scoped(ZEROS), ValueError, before),
            (lambda: scoped.encode(ZEROS), ValueError, before),
            (lambda: scoped.encode(ZEROS, ONES[:, :4]), ValueError, "[2, 5], got [2, 4]"),
            (lambda: segment(scoped, "text"), ValueError, before),
            (lambda: generate(scoped, "text", max_bytes=2), ValueError, before),
            (lambda: sliding_window_attention(*[heads] * 3, window=0), ValueError, "window must be at least 1"),
            (lambda: UNet(preset("tiny", window=10**11)), ValueError, "width x window, tokens_read or 1"),
        ]
    )
    assert special(torch.tensor([[256, 257, 0]])).final_logits.shape[-1] == 256
    assert model.decode(states, ONES).shape == states.shape  # integers are allowed
    byte_ids, boundaries = text(2, 9), mixed_boundaries(2, 9)
    expected = model(byte_ids, boundaries).final_logits
    for dtype in (torch.uint8, torch.int32, torch.int64):
        assert torch.equal(model(byte_ids.to(dtype), boundaries.to(dtype)).final_logits, expected)


def test_packings():
    boundaries, rows = torch.ones(4, 50, dtype=torch.bool), PackedRows(torch.tensor([3, 1]), 4, most=3)
    model = UNet(preset("tiny", second_level="stride", second_rate=1.0, num_token_layers=2))
    roomy, narrow = Packing(tokens=1.0, second=0.1), "(compute.token_room, Packing.tokens): 200 of 200 places closed"
    refused(
        [
            (lambda: token_layout(boundaries, Packing(tokens=0.25)), ValueError, f"{narrow} one, room for 64"),
            (lambda: model(boundaries.long(), boundaries, layout=roomy), ValueError, "200 of 208 places closed one"),
            (lambda: Packing(tokens=0), ValueError, "tokens must be positive and finite, or None, got 0"),
            (lambda: Packing(tokens="0.3"), TypeError, "tokens must be a number, got '0.3'"),
            (lambda: Packing(bucketed="no"), TypeError, "bucketed must be True or False, got 'no'"),
            (lambda: Packing(attention="flx"), ValueError, "one of ['auto', 'flex', 'padded', 'rows'], got 'flx'"),
            (lambda: Packing(second=0.3), ValueError, "second must be None if tokens is None"),
            (lambda: packed_attention(rows, cap=None, head_size=16, method="dense"), ValueError, "'auto' or one of"),
        ]
    )
    assert token_layout(boundaries, Packing(tokens=1.0)).shape == (208,)
    with pytest.warns(DeprecationWarning, match="attention='varlen' was removed; 'auto' is used") as warned:
        assert Packing(attention="varlen").attention == "auto"
    assert warned[0].filename == __file__


def test_steps(build):
    """Halves out of order, and wrong arguments that leave the cache untouched."""
    model = build()
    cache, byte_ids, ones = model.new_cache(2), ZEROS[:, 0], torch.ones(2, dtype=torch.bool)
    unordered = "rows must be int64 of shape [n], in increasing order"
    refused(
        [
            (lambda: step(model, cache, byte_ids, torch.tensor([True, False])), ValueError, "1 at the first byte"),
            (lambda: step(model, cache, byte_ids, ones[:1]), ValueError, "the shape of byte_ids, [2], got [1]"),
            (lambda: step(model, cache, byte_ids[:1], ones), ValueError, "one byte per row that reads, 2, got 1"),
            (lambda: step(model, cache, byte_ids + 999, ones), ValueError, "got 999 at index [0] and 1 more"),
            (lambda: step(model, cache, byte_ids[None], ones), ValueError, "must have shape [B], got [1, 2]"),
            (lambda: observe(model, cache, byte_ids, rows=torch.tensor([1, 1])), ValueError, unordered),
            (lambda: observe(model, cache, byte_ids, rows=torch.tensor([1, 0])), ValueError, unordered),
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
    cases = [
        (lambda: UNetCache.empty(model.config, 0), ValueError, "num_rows must be at least 1, got 0"),
        (lambda: cache.reset(torch.tensor([0, 1])), ValueError, "rows must be bool of shape [2], got torch.int64 [2]"),
        (lambda: cache.repeat(0), ValueError, "times must be at least 1, got 0"),
        (lambda: cache.take(torch.tensor([2])), ValueError, "rows must lie in 0..1, got 2..2"),
        (lambda: cache.take(torch.tensor([0.0])), ValueError, "rows must be int64 of shape [n >= 1]"),
        (lambda: cache.take(torch.tensor([], dtype=torch.int64)), ValueError, "rows must be int64 of shape [n >= 1]"),
        (lambda: prefill(model, cache, byte_ids[:1]), ValueError, "[2, T >= 1], got [1, 3]"),
        (lambda: prefill(model, cache, byte_ids[:, :0]), ValueError, "[2, T >= 1], got [2, 0]"),
        (lambda: model(byte_ids, cache=cache, layout="packed"), ValueError, "layout must be 'padded' where a cache"),
        (lambda: observe(model, wide, byte_ids[:, 0]), ValueError, "cache must have the model's dtype and device"),
    ]
    for options in ({"window": 8}, {"num_lags": 3}, {"num_token_layers": 2}, {"ngram_sizes": (3,)}):
        other = build(**options).new_cache(2)
        cases.append((lambda c=other: observe(model, c, byte_ids[:, 0]), ValueError, "cache must be made for this mod"))
    two, deeper = build(second_level="stride"), build(second_level="stride", num_second_layers=2)
    for mine, other in ((model, two), (two, model), (two, deeper)):
        call = lambda m=mine, o=other: observe(m, o.new_cache(2), byte_ids[:, 0])  # noqa: E731
        cases.append((call, ValueError, "cache must be made for this model"))
    refused(cases)
    cache = model.new_cache(2)
    prefill(model, cache, byte_ids)
    refused([(lambda: prefill(model, cache, byte_ids), ValueError, "cache must be empty to be prefilled")])


def test_texts(build):
    model, kinds = build(), "must be str or bytes, or a list of them, got int"
    cases = [
        (lambda: segment(model, "a", piece=0), ValueError, "piece must be an integer of at least 1, got 0"),
        (lambda: generate(model, [], max_bytes=3), ValueError, "prompts must hold at least one text"),
    ]
    for texts, error, words in (
        ("", ValueError, "must have at least 1 byte, got an empty text"),
        (["a", b""], ValueError, "must have at least 1 byte, got an empty text at 1"),
        (["a", 3], TypeError, f"{kinds} at 1"),
        (3, TypeError, kinds),
    ):
        cases.append((lambda t=texts: segment(model, t), error, f"text {words}"))
        cases.append((lambda t=texts: generate(model, t, max_bytes=3), error, f"prompts {words}"))
    for options, words in (
        ({"max_bytes": -1}, "max_bytes must be an integer of at least 0, got -1"),
        ({"temperature": -0.5}, "temperature must be at least 0, got -0.5"),
        ({"top_k": 0}, "top_k must be an integer of at least 1, or None, got 0"),
        ({"top_p": 1.5}, "top_p must lie in (0, 1], or None, got 1.5"),
        ({"boundaries": "always"}, "boundaries must be one of ['sample', 'greedy'], got 'always'"),
        ({"stop": ""}, "stop must be a non-empty bytes object or None, got ''"),
    ):
        cases.append((lambda o=options: generate(model, "a", **{"max_bytes": 3, **o}), ValueError, words))
    refused(cases)


def test_numbers_outside_the_model():
    nan, logits, model = torch.zeros(3, 2), torch.randn(50, 256), UNet(preset("tiny"))
    nan[1, 1] = nan[2, 0] = float("nan")
    with torch.no_grad():
        model.boundary_head.projection.weight.fill_(float("nan"))
    special = torch.tensor([[0, 256]])  # is never predicted
    refused(
        [
            (lambda: sample_bytes(nan), ValueError, "logits must be numbers with a finite maximum, got nan in row 1"),
            (lambda: generate(model, "abc", max_bytes=2), ValueError, "must be finite, got nan"),
            (lambda: next_byte_log_prob(torch.zeros(1, 2, 256), special), ValueError, "got values from 256 to 256"),
        ]
    )
    for options in ({"temperature": 1e-40}, {"top_p": 1e-300}):
        assert torch.equal(sample_bytes(logits, **options), logits.argmax(-1))
