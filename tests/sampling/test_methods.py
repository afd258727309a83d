"""Every method solves the threshold recurrence, and all agree bit for bit."""

from __future__ import annotations

import itertools
import re
import struct

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.sampling import METHODS, sample_boundaries, solvers, threshold_recurrence
from rltok_rl.sampling.sampler import choose_method

from ..each import each
from .policies import POLICIES, long_chain, random_policy, spaced, tight_thresholds, trained_policy

LAGS = (0, 1, 2, 4, 8, 12)
FAST = [name for name in METHODS if name not in ("loop", "triton") and not METHODS[name].missing("cpu", 1)]


def random_thresholds(*shape: int) -> Tensor:
    return torch.logit(torch.rand(*shape))


def solve(method: str, *terms: Tensor) -> Tensor:
    return threshold_recurrence(*terms, method=method)


def agree(method: str, *terms: Tensor) -> bool:
    return bool(METHODS[method].missing("cpu", terms[1].shape[-1])) or torch.equal(
        solve(method, *terms), solve("loop", *terms)
    )


def scalar_reference(base: Tensor, lags: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as one reads it, in Python's own numbers: boundaries and their logits."""
    boundaries, logits = [], []
    for row, limits, terms in zip(base.tolist(), thresholds.tolist(), lags.tolist(), strict=True):
        drawn: list[bool] = []
        for t, total in enumerate(row):
            for j in range(min(t, lags.shape[-1]), 0, -1):
                if drawn[t - j]:  # a sum of two float32 rounded to float64 and then to float32 is rounded right
                    total = struct.unpack("f", struct.pack("f", total + terms[t][j - 1]))[0]
            logits.append(total)
            drawn.append(total > limits[t])
        boundaries.append(drawn)
    return torch.tensor(boundaries), torch.tensor(logits).view(base.shape)


@each(policy=POLICIES, num_lags=LAGS)
def test_loop_equals_a_scalar_loop(policy, num_lags):
    """Boundaries, and the logits recomputed from them in parallel, bit for bit."""
    base, lags = POLICIES[policy](2, 60, num_lags)
    thresholds = random_thresholds(2, 60)
    expected, sums = scalar_reference(base, lags, thresholds)
    assert torch.equal(solve("loop", base, lags, thresholds), expected)
    assert torch.equal(boundary_logits(base, lags, expected), sums)


@each(method=FAST)
def test_methods_agree(method):
    """All policies and numbers of lags, in dtypes that take turns; 150 positions are more than two chunks (64)."""
    dtypes = itertools.cycle((torch.float32, torch.bfloat16, torch.float64, torch.float32))
    for policy, num_lags in itertools.product(POLICIES, LAGS):
        dtype = next(dtypes)
        terms = [x.to(dtype) for x in POLICIES[policy](3, 150, num_lags)]
        assert agree(method, *terms, random_thresholds(3, 150)), (policy, num_lags, dtype)
    for num_lags in (2, 4, 8, 12):  # decisions by the last bit, in the one order of summation
        terms = random_policy(8, 150, num_lags)
        assert agree(method, *terms, tight_thresholds(*terms)), num_lags


@each(method=FAST)
def test_methods_agree_on_any_shape(method):
    for num_rows, length in zip(itertools.cycle((1, 3, 9, 32)), (0, 1, 2, 3, 63, 64, 65, 130, 500), strict=False):
        assert agree(method, *random_policy(num_rows, length, 4), random_thresholds(num_rows, length)), length
    assert agree(method, *trained_policy(2, 1500, 8), random_thresholds(2, 1500))
    for policy in (spaced, long_chain):
        assert agree(method, *policy(2, 1500, 8), torch.zeros(2, 1500))


@each(method=FAST)
def test_methods_agree_with_every_option(method):
    """Caps, forced positions and greedy decisions, which make infinite thresholds and ties at 0."""
    for num_lags, cap, greedy in ((1, None, False), (4, 2.0, True), (8, None, True), (8, 2.0, False), (12, 2.0, True)):
        if METHODS[method].missing("cpu", num_lags):
            continue
        base, lags = random_policy(5, 150, num_lags, scale=3.0)
        base[:, ::7], lags[:, ::7] = 0.0, 0.0  # logits of 0: greedy ties
        uniforms = None if greedy else torch.rand(5, 150)
        options = {"cap": cap, "greedy": greedy, "uniforms": uniforms, "forced": torch.randint(-1, 2, (5, 150))}
        drawn, expected = (sample_boundaries(base, lags, **options, method=name) for name in (method, "loop"))
        assert torch.equal(drawn, expected), (num_lags, cap, greedy)


@each(method=FAST)
def test_views_and_copies_are_alike(method):
    """Transposed, expanded and sliced terms; leading dimensions that do and do not merge."""
    both = torch.randn(4, 70, 6, 4).transpose(1, 2)  # [4, 6, 70, 4], not contiguous
    uniforms = torch.rand(4, 6, 70)
    for terms in (both, both[::2], both[:1].expand(4, 6, 70, 4)):
        base, lags = terms[..., 0], terms[..., 1:]
        drawn = sample_boundaries(base, lags, uniforms=uniforms[: len(terms)], method=method)
        copies = base.clone(), lags.clone(memory_format=torch.contiguous_format)
        assert torch.equal(drawn, sample_boundaries(*copies, uniforms=uniforms[: len(terms)], method="loop"))


def test_tight_thresholds_catch_wrong_sums():
    """Planted bugs: the right terms in the wrong order, and every lag one byte too far."""
    base, lags = random_policy(8, 200, 8)
    thresholds = tight_thresholds(base, lags)
    expected = solve("loop", base, lags, thresholds)
    newest_first = torch.zeros(base.shape, dtype=torch.bool)
    for t in range(200):
        total = base[:, t]
        for j in range(1, min(t, 8) + 1):
            total = total + lags[:, t, j - 1] * newest_first[:, t - j]
        newest_first[:, t] = total > thresholds[:, t]
    shifted = torch.cat((torch.zeros_like(lags[..., :1]), lags), -1)
    for wrong in (newest_first, solvers.loop(base, shifted, thresholds)):
        assert not torch.equal(wrong, expected)


@each(num_lags=[1, 3, 8])
def test_maps_take_long_strings_a_span_at_a_time(num_lags, monkeypatch):
    """Memory is bounded, and the spans join without a seam."""
    spans, original = [], solvers._map_span
    with monkeypatch.context() as patch:
        patch.setattr(solvers, "_map_span", lambda base, *x: (spans.append(base.shape[1]), original(base, *x))[1])
        patch.setattr(solvers, "_MOST_HELD", 3 * 128 << num_lags)
        assert agree("maps", *random_policy(3, 500, num_lags, scale=3.0), random_thresholds(3, 500))
    assert spans == [128, 128, 128, 116]


@each(case=[(2, 2, "maps"), (8, 2, "maps"), (8, 200, "loop"), (9, 2, "loop")])
def test_sweeps_hand_over_strings_that_settle_slowly(case, monkeypatch):
    """Both ways out of the sweeps are taken and are right: maps for few states, the loop for many."""
    num_lags, num_rows, successor = case
    terms = *long_chain(num_rows, 500, num_lags, noise=0.05), torch.zeros(num_rows, 500)
    expected = solvers.loop(*terms)
    called, original = [], getattr(solvers, successor)
    with monkeypatch.context() as patch:
        patch.setattr(solvers, successor, lambda *x: (called.append(1), original(*x))[1])
        assert torch.equal(solvers.sweeps(*terms), expected)
    assert called == [1]


def test_auto_chooses_a_method_that_can_run():
    assert choose_method("cpu", 8) == ("numba" if METHODS["numba"].missing("cpu", 8) is None else "sweeps")
    assert METHODS[choose_method("cuda", 12)].missing("cuda", 12) is None


@each(error=[RuntimeError("cannot cache function: no locator available"), OSError("No space left on device")])
def test_numba_works_without_a_cache_folder(error, monkeypatch):
    numba = pytest.importorskip("numba")
    original, cached = numba.njit, []

    def njit(*args, cache=False, **options):
        cached.append(cache)
        if cache:
            raise error
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(numba, "njit", njit)
        solvers._walk.cache_clear()
        assert agree("numba", *random_policy(3, 50, 3), torch.zeros(3, 50))
    assert cached == [True, False]
    solvers._walk.cache_clear()


@each(method=["loop", *FAST])
def test_large_terms_are_not_mistaken_for_infinite_ones(method):
    assert solve(method, torch.full((2, 50), 3e38), torch.zeros(2, 50, 1), torch.zeros(2, 50)).all()


@each(method=["auto", "loop", *FAST])
def test_terms_that_are_not_finite_are_named(method):
    for num_lags, name, value in ((0, "base", "nan"), (3, "base", "inf"), (3, "lags", "nan"), (3, "lags", "inf")):
        terms = dict(zip(("base", "lags"), random_policy(2, 20, num_lags), strict=True))
        index = (1, 7) if name == "base" else (1, 7, 2)
        terms[name][index] = float(value)
        message = re.escape(f"{name} must be finite, got {value} at index {list(index)} (1 of")
        with pytest.raises(ValueError, match=message):
            threshold_recurrence(**terms, thresholds=torch.full((2, 20), 1e9), method=method)
        with pytest.raises(ValueError, match=message):
            sample_boundaries(**terms, method=method)


def test_refusals():
    base, lags = random_policy(1, 4, 12)
    zeros = torch.zeros(1, 4)
    for thresholds, method, error, words in (
        (zeros, "fastest", ValueError, r"method must be one of \['auto', 'loop', .*\], got 'fastest'"),
        (zeros, "maps", ValueError, r"method 'maps' cannot run here: .* w may be 8 at most, got 12"),
        (zeros, "triton", ValueError, "method 'triton' cannot run here"),
        (
            zeros[0],
            "auto",
            ValueError,
            r"thresholds must have the shape of base, \[1, 4\], got \[4\]",
        ),
        (zeros.long(), "auto", TypeError, "thresholds must be a floating-point tensor, got torch.int64"),
        ([0.0] * 4, "auto", TypeError, "thresholds must be a floating-point tensor, got list"),
        (zeros + torch.nan, "auto", ValueError, r"thresholds must be numbers, got nan at index \[0, 0\]"),
    ):
        with pytest.raises(error, match=words):
            threshold_recurrence(base, lags, thresholds, method=method)
    many = METHODS["triton"].missing("cuda", 32)
    assert many is not None and ("31 at most" in many or "not installed" in many)


@pytest.mark.gpu
def test_large_terms_stop_no_gpu():
    """A sum over all terms would overflow, and a device assertion that fails takes the whole process with it."""
    base, lags = torch.full((2, 50), 3e38, device="cuda"), torch.zeros(2, 50, 1, device="cuda")
    assert threshold_recurrence(base, lags, torch.zeros_like(base)).all()
    torch.cuda.synchronize()


@pytest.mark.gpu
@each(method=["auto", "sweeps", "maps", "triton"])
def test_a_gpu_draws_the_boundaries_of_the_cpu(method):
    for policy, num_lags in itertools.product(POLICIES, LAGS):
        if method != "auto" and METHODS[method].missing("cuda", num_lags):
            continue
        base, lags = POLICIES[policy](5, 777, num_lags)
        for thresholds in (random_thresholds(5, 777), tight_thresholds(base, lags)):
            drawn = solve(method, base.cuda(), lags.cuda(), thresholds.cuda())
            assert torch.equal(drawn.cpu(), solve("loop", base, lags, thresholds)), (policy, num_lags)
