"""Every method solves the threshold recurrence, and all agree bit for bit."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.sampling import METHODS, portable, sample_boundaries, threshold_recurrence
from rltok_rl.sampling.sampler import choose_method

from .policies import POLICIES, alternating, long_chain, random_policy, trained_policy

LAGS = (0, 1, 2, 4, 8, 12)
FAST = [name for name in METHODS if name not in ("loop", "triton")]
every_fast_method = pytest.mark.parametrize("method", FAST)


def scalar_reference(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """The recurrence as one reads it, a number at a time; float32 sums by torch scalars."""
    out = torch.zeros(base.shape, dtype=torch.bool)
    for row in range(base.shape[0]):
        for t in range(base.shape[1]):
            total = base[row, t]
            for j in range(min(t, lags.shape[-1]), 0, -1):
                if out[row, t - j]:
                    total = total + lags[row, t, j - 1]
            out[row, t] = total > thresholds[row, t]
    return out


def available(method: str, num_lags: int) -> None:
    missing = METHODS[method].missing("cpu", num_lags)
    if missing is not None:
        pytest.skip(f"{method}: {missing}")


def assert_equal_to_loop(solve, base: Tensor, lags: Tensor, thresholds: Tensor) -> None:
    expected = threshold_recurrence(base, lags, thresholds, method="loop")
    differing = (solve(base, lags, thresholds) != expected).sum().item()
    assert differing == 0, f"{differing} of {expected.numel()} boundaries differ from the loop's"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_lags", LAGS)
def test_loop_equals_a_scalar_loop(policy, num_lags):
    base, lags = POLICIES[policy](2, 40, num_lags)
    thresholds = torch.logit(torch.rand(2, 40))
    expected = scalar_reference(base, lags, thresholds)
    assert torch.equal(threshold_recurrence(base, lags, thresholds, method="loop"), expected)


@every_fast_method
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_lags", LAGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_same_boundaries_from_the_same_uniforms(method, policy, num_lags, dtype):
    available(method, num_lags)
    base, lags = (x.to(dtype) for x in POLICIES[policy](3, 333, num_lags))
    thresholds = torch.logit(torch.rand(3, 333))
    assert_equal_to_loop(lambda *x: threshold_recurrence(*x, method=method), base, lags, thresholds)


@every_fast_method
@pytest.mark.parametrize("num_rows", [1, 3, 9, 32])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 63, 64, 65, 130])
def test_any_shape(method, num_rows, length):
    available(method, 4)
    base, lags = random_policy(num_rows, length, 4)
    thresholds = torch.logit(torch.rand(num_rows, length))
    assert_equal_to_loop(lambda *x: threshold_recurrence(*x, method=method), base, lags, thresholds)


@every_fast_method
@pytest.mark.parametrize("policy", [trained_policy, alternating, long_chain])
def test_long_strings(method, policy):
    available(method, 8)
    base, lags = policy(4, 4096, 8)
    thresholds = torch.logit(torch.rand(4, 4096)) if policy is trained_policy else torch.zeros(4, 4096)
    assert_equal_to_loop(lambda *x: threshold_recurrence(*x, method=method), base, lags, thresholds)


@every_fast_method
def test_decisions_by_the_last_bit(method):
    """Thresholds that equal the sum, or lie one step beside it, under the one order of summation and under no other."""
    available(method, 8)
    base, lags = random_policy(8, 200, 8)
    drawn = threshold_recurrence(base, lags, torch.zeros(8, 200), method="loop")
    sums = boundary_logits(base, lags, drawn)
    below = torch.nextafter(sums, torch.tensor(float("-inf")))
    tight = torch.where(drawn, below, sums)  # each sum is just larger than its threshold, or just not
    assert torch.equal(threshold_recurrence(base, lags, tight, method=method), drawn)


def newest_lag_first(base, lags, thresholds):
    """A planted bug: the right terms in the wrong order."""
    out = torch.zeros(base.shape, dtype=torch.bool)
    num_lags = lags.shape[-1]
    for t in range(base.shape[1]):
        total = base[:, t]
        for j in range(1, min(t, num_lags) + 1):
            total = total + lags[:, t, j - 1] * out[:, t - j]
        out[:, t] = total > thresholds[:, t]
    return out


def lag_off_by_one(base, lags, thresholds):
    """A planted bug: every lag reaches one byte too far."""
    shifted = torch.cat((torch.zeros_like(lags[..., :1]), lags), dim=-1)
    return portable.loop(base, shifted, thresholds)


@pytest.mark.parametrize("wrong", [newest_lag_first, lag_off_by_one])
def test_the_comparison_catches_planted_bugs(wrong):
    base, lags = random_policy(8, 200, 8)
    drawn = threshold_recurrence(base, lags, torch.zeros(8, 200), method="loop")
    sums = boundary_logits(base, lags, drawn)
    tight = torch.where(drawn, torch.nextafter(sums, torch.tensor(float("-inf"))), sums)
    with pytest.raises(AssertionError, match="differ from the loop's"):
        assert_equal_to_loop(wrong, base, lags, tight)


def test_sweeps_hand_over_what_does_not_settle(monkeypatch):
    """Both ways out of the sweeps are taken and are right: maps for few lags, the loop for many."""
    for num_lags, successor in ((8, "maps"), (12, "_continue_loop")):
        base, lags = alternating(2, 500, num_lags)
        thresholds = torch.zeros(2, 500)
        expected = portable.loop(base, lags, thresholds)
        called = []
        original = getattr(portable, successor)
        monkeypatch.setattr(portable, successor, lambda *x, o=original, c=called: (c.append(1), o(*x))[1])
        assert torch.equal(portable.sweeps(base, lags, thresholds), expected)
        assert called == [1]
        monkeypatch.undo()


def test_auto_chooses_what_can_run():
    assert choose_method("cpu", 8) == ("numba" if METHODS["numba"].missing("cpu", 8) is None else "sweeps")
    assert METHODS[choose_method("cuda", 12)].missing("cuda", 12) is None


def test_numba_survives_without_a_cache_folder(monkeypatch):
    """No writable place for compiled code: it is compiled for this process alone."""
    numba = pytest.importorskip("numba")
    from rltok_rl.sampling import compiled

    original, asked = numba.njit, []

    def njit(*args, cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return original(*args, **options)

    monkeypatch.setattr(numba, "njit", njit)
    compiled._walk.cache_clear()
    base, lags = random_policy(3, 50, 3)
    thresholds = torch.zeros(3, 50)
    assert torch.equal(compiled.numba_loop(base, lags, thresholds), portable.loop(base, lags, thresholds))
    assert asked == [True, False]
    compiled._walk.cache_clear()


def test_large_terms_are_not_mistaken_for_infinite_ones():
    base, lags = torch.full((2, 50), 3e38), torch.zeros(2, 50, 1)
    for method in ("numba", "loop"):
        available(method, 1)
        assert threshold_recurrence(base, lags, torch.zeros(2, 50), method=method).all()


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize(("num_lags", "name"), [(0, "base"), (3, "base"), (3, "lags")])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_terms_that_are_not_finite_are_named(method, num_lags, name, value):
    if method != "auto":
        available(method, num_lags)
    terms = dict(zip(("base", "lags"), random_policy(2, 20, num_lags), strict=True))
    index = (1, 7) if name == "base" else (1, 7, 2)
    terms[name][index] = float(value)
    message = f"{name} must be finite, got {value} at index {list(index)} (1 of"
    with pytest.raises(ValueError, match=re.escape(message)):
        threshold_recurrence(**terms, thresholds=torch.full((2, 20), 1e9), method=method)
    with pytest.raises(ValueError, match=re.escape(message)):
        sample_boundaries(**terms, method=method)


def test_unknown_and_unfit_methods_are_refused():
    base, lags = random_policy(1, 4, 12)
    thresholds = torch.zeros(1, 4)
    with pytest.raises(ValueError, match=r"method must be one of \['auto', 'loop', .*\], got 'fastest'"):
        threshold_recurrence(base, lags, thresholds, method="fastest")
    with pytest.raises(ValueError, match=r"method 'maps' cannot run here: .* w may be 8 at most, got 12"):
        threshold_recurrence(base, lags, thresholds, method="maps")
    with pytest.raises(ValueError, match="method 'triton' cannot run here"):
        threshold_recurrence(base, lags, thresholds, method="triton")
    with pytest.raises(ValueError, match=r"thresholds must have the shape of base, \[1, 4\], got \[4\]"):
        threshold_recurrence(base, lags, thresholds[0])


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["auto", "sweeps", "maps", "triton"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_lags", LAGS)
def test_gpu_draws_what_the_cpu_draws(method, policy, num_lags):
    if method != "auto" and METHODS[method].missing("cuda", num_lags):
        pytest.skip(METHODS[method].missing("cuda", num_lags))
    base, lags = POLICIES[policy](5, 777, num_lags)
    thresholds = torch.logit(torch.rand(5, 777))
    drawn = threshold_recurrence(base.cuda(), lags.cuda(), thresholds.cuda(), method=method)
    assert torch.equal(drawn.cpu(), threshold_recurrence(base, lags, thresholds, method="loop"))
