"""Likelihoods, draws, n-grams and smoothing against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rltok_rl.functional.decoding import filter_logits, sample_bytes
from rltok_rl.functional.likelihood import (
    bits_per_byte,
    byte_log_prob,
    byte_log_prob_in_parts,
    log_mean_exp,
    next_byte_log_prob,
)
from rltok_rl.functional.ngrams import PRIME, ngram_hash, signed
from rltok_rl.functional.routing import smooth
from rltok_rl.text import ids_to_bytes, text_to_ids

from ..each import each, refused

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


@each(dtype=[torch.float32, torch.float64, torch.bfloat16])
def test_byte_log_prob_is_cross_entropy(dtype):
    logits, targets = 5 * torch.randn(3, 7, 256, dtype=dtype), torch.randint(256, (3, 7))
    wide = logits.to(torch.promote_types(dtype, torch.float32))
    expected = -F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none").view(3, 7)
    torch.testing.assert_close(byte_log_prob(logits, targets), expected)
    assert bits_per_byte(-byte_log_prob(0 * logits, targets).sum(), 21).item() == pytest.approx(8.0)


def test_parts_are_computed_again_in_the_backward_pass_alone():
    """So that only one part's predictions exist at a time; without gradients there is nothing to keep."""
    states, sizes = torch.randn(2, 5, 3, requires_grad=True), []

    def head(part):
        sizes.append(len(part))
        return part

    loss = byte_log_prob_in_parts(head, states, torch.ones(2, 5).long(), 4)
    assert sizes == [4, 4, 2] and loss.shape == (2, 5)
    loss.sum().backward()
    assert sorted(sizes) == [2, 2, 4, 4, 4, 4] and states.grad.any()
    sizes.clear()
    with torch.no_grad():
        byte_log_prob_in_parts(head, states, torch.ones(2, 5).long(), 10)
    assert sizes == [10]


def test_next_byte_is_the_byte_after():
    logits = torch.zeros(1, 3, 256)
    logits[0, 0, 6] = logits[0, 1, 7] = 100.0  # positions 0 and 1 know the next byte
    torch.testing.assert_close(next_byte_log_prob(logits, torch.tensor([[5, 6, 7]])), torch.zeros(1, 2))
    for length in (0, 1):
        assert next_byte_log_prob(torch.zeros(2, length, 256), torch.zeros(2, length).long()).shape == (2, 0)


def test_log_mean_exp_is_the_logarithm_of_a_mean_over_any_dimension():
    values = torch.randn(2, 3, 5)
    for dim in range(-3, 3):
        torch.testing.assert_close(log_mean_exp(values, dim), values.exp().mean(dim).log())


def test_filters_keep_ties():
    equal = torch.tensor([0.0, 2.0, 1.0, 1.0])
    assert filter_logits(equal, top_k=2).isfinite().tolist() == [False, True, True, True]  # ties with the second stay
    for kept in (1, 2, 3, 4):  # bytes that hold p exactly are enough
        assert filter_logits(torch.zeros(4), top_p=kept / 4).isfinite().sum() == kept


@each(temperature=[0.5, 1.0, 2.0], options=[{}, {"top_p": 0.75}])
def test_draws_follow_temperature_and_then_filters(temperature, options):
    """20,000 draws: a standard error is at most 0.0036, so 0.02 is beyond five of them."""
    generator = torch.Generator().manual_seed(0)
    drawn = sample_bytes(LOGITS.expand(20_000, 4), temperature=temperature, generator=generator, **options)
    frequencies = torch.bincount(drawn, minlength=4) / 20_000
    expected = filter_logits(LOGITS[0] / temperature, **options).softmax(-1)
    torch.testing.assert_close(frequencies, expected, rtol=0, atol=0.02)
    assert sample_bytes(LOGITS.flip(-1), temperature=0.0).tolist() == [3]


def test_draws_at_the_ends_of_the_scales():
    """The likeliest byte however cold and large, the first of equals at 0, no byte beyond the k-th however hot."""
    rows = torch.tensor([[1e9, -math.inf, 2e9, 3.0]]).expand(50, 4)
    for temperature in (0.0, 1e-50, 1e-3):
        assert (sample_bytes(rows, temperature=temperature) == 2).all()
    assert (sample_bytes(torch.zeros(50, 4), temperature=0.0) == 0).all()
    assert set(sample_bytes(LOGITS.expand(200, 4), temperature=1e50, top_k=3).tolist()) == {0, 1, 2}
    for wrong, shown in ((math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")):
        logits = torch.zeros(4, 3)
        logits[2:] = wrong
        for temperature in (0.0, 1.0):
            with pytest.raises(ValueError, match=f"a finite maximum, got {shown} in row 2"):
                sample_bytes(logits, temperature=temperature)


def test_draws_are_those_of_their_generator_alone():
    """Equal seeds draw equal bytes, a generator advances, and the global one stays where it is."""
    logits = torch.zeros(50, 256)
    before, generators = torch.get_rng_state(), [torch.Generator().manual_seed(1) for _ in range(2)]
    first, same = (sample_bytes(logits, generator=generator) for generator in generators)
    assert torch.equal(first, same) and not torch.equal(first, sample_bytes(logits, generator=generators[0]))
    assert torch.equal(torch.get_rng_state(), before)
    ruled_out = logits.masked_fill(torch.arange(256) % 2 == 0, -math.inf)
    assert (sample_bytes(ruled_out, temperature=math.inf, generator=generators[0]) % 2 == 1).all()
    assert sample_bytes(logits[:, :1], top_k=1, temperature=math.inf, generator=generators[0]).eq(0).all()
    assert not torch.equal(sample_bytes(logits), sample_bytes(logits))  # None is the global one, which advances


def test_text_survives_a_round_trip():
    for text in ("", "plain", "ünïcode 文字", "\x00\n"):
        assert ids_to_bytes(text_to_ids(text)).decode() == text


@each(size=[1, 2, 3, 7, 8, 21, 40], buckets=[1, 7, 500_000, 2**62])
def test_hashes_are_those_of_python_integers(size, buckets):
    assert 255 * PRIME**3 > 2**63  # from n = 4 on sums wrap around
    byte_ids = torch.randint(320, (3, 40), generator=torch.Generator().manual_seed(0))
    ours = ngram_hash(byte_ids, size, buckets)
    grams = byte_ids.unfold(1, size, 1).tolist()
    expected = [[signed(sum(x * PRIME**k for k, x in enumerate(gram))) % buckets for gram in row] for row in grams]
    assert ours.tolist() == expected and int(ours.min()) >= 0


def smooth_by_loop(values, weights, fresh):
    """Smooth one token after the other."""
    current, mixed = torch.zeros(()), []
    for value, weight, first in zip(values.unbind(1), weights.unbind(1), fresh.unbind(1), strict=True):
        share = weight[:, None]
        current = share * value + (1 - share).masked_fill(first[:, None], 0.0) * current
        mixed.append(current)
    return torch.stack(mixed, 1)


@each(length=[1, 2, 3, 7, 64, 100])
def test_smoothing_is_the_sum(length):
    values = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(2, length, dtype=torch.float64, requires_grad=True)
    fresh = torch.arange(length).expand(2, length) % 50 == 0
    expected = torch.zeros(2, length, 3, dtype=torch.float64)
    for j in range(length):
        for i in range(j - j % 50, j + 1):  # a fresh token takes nothing from those before it
            kept = (1 - weights[:, i + 1 : j + 1]).prod(1)
            expected[:, j] += (kept * weights[:, i])[:, None] * values[:, i]
    found = smooth(values, weights, fresh=fresh), smooth_by_loop(values, weights, fresh)
    for out in found:
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    slopes = (torch.autograd.grad((out * torch.arange(1.0, 4.0)).sum(), (values, weights)) for out in found)
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    if length == 7:
        assert torch.autograd.gradcheck(smooth, (values, weights))


def test_narrow_types_are_smoothed_in_float32():
    values, weights = torch.randn(1, 300, 2), torch.full((1, 300), 0.02)
    narrow = smooth(values.bfloat16(), weights)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), smooth(values.bfloat16().float(), weights), rtol=0.01, atol=0.01)
    wide = smooth(values.double(), weights)  # the wider of two types is that of the sum
    torch.testing.assert_close(wide, smooth(values.double(), weights.double()), rtol=0, atol=1e-12)


def test_refusals():
    refused(
        (
            lambda: byte_log_prob(torch.zeros(2, 256), torch.tensor([255, 256])),
            ValueError,
            r"targets must lie in 0\.\.255 .*, got values from 255 to 256",
        ),
        (
            lambda: next_byte_log_prob(torch.zeros(2, 256), torch.tensor([0, -1])),
            ValueError,
            r"byte_ids must lie in 0\.\.255 .*, got values from -1 to -1",
        ),
        (lambda: ngram_hash(torch.zeros(2, 1).long(), 3, 9), ValueError, "at least size - 1 = 2 long, got 1"),
        (lambda: log_mean_exp(torch.zeros(2, 0)), ValueError, r"one entry along dim -1, got \[2, 0\]"),
        (lambda: log_mean_exp(LOGITS, 2), ValueError, r"one entry along dim 2, got \[1, 4\]"),
        (lambda: text_to_ids(3), TypeError, "text must be str or bytes, got int"),
        (lambda: ids_to_bytes([65, 256]), ValueError, r"byte_ids must lie in 0\.\.255.*got 256"),
        *(
            (lambda ids=ids: ids_to_bytes(ids), TypeError, "integer")
            for ids in ([104.5], torch.tensor([104.0]), torch.tensor([[104, 105]]), torch.tensor(104))
        ),
    )
