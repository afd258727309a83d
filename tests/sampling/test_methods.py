"""Every method solves the threshold recurrence, and all agree bit for bit."""

from __future__ import annotations

import itertools
import re
import struct

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.sampling import METHODS, portable, sample_boundaries, threshold_recurrence
from rltok_rl.sampling.sampler import choose_method

from .policies import POLICIES, alternating, long_chain, parity, random_policy, tight_thresholds, trained_policy

LAGS = (0, 1, 2, 4, 8, 12)
FAST = [name for name in METHODS if name not in ("loop", "triton")]
every_fast_method = pytest.mark.parametrize("method", FAST)


def to_float32(number: float) -> float:
    """The nearest float32. A sum of two float32 rounded to float64 and then to float32 is rounded right."""
    return struct.unpack("f", struct.pack("f", number))[0]


def scalar_reference(base: Tensor, lags: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as one reads it, in Python's own numbers, a row at a time: boundaries and their logits."""
    num_lags = lags.shape[-1]
    boundaries, logits = [], []
    for row, limits, terms in zip(base.tolist(), thresholds.tolist(), lags.tolist(), strict=True):
        drawn: list[bool] = []
        sums: list[float] = []
        for t, total in enumerate(row):
            for j in range(min(t, num_lags), 0, -1):
                if drawn[t - j]:
                    total = to_float32(total + terms[t][j - 1])
            sums.append(total)
            drawn.append(total > limits[t])
        boundaries.append(drawn)
        logits.append(sums)
    return torch.tensor(boundaries), torch.tensor(logits)


def available(method: str, num_lags: int) -> None:
    missing = METHODS[method].missing("cpu", num_lags)
    if missing is not None:
        pytest.skip(f"{method}: {missing}")


def assert_equal_to_loop(solve, base: Tensor, lags: Tensor, thresholds: Tensor) -> None:
    expected = threshold_recurrence(base, lags, thresholds, method="loop")
    differing = (solve(base, lags, thresholds) != expected).sum().item()
    assert differing == 0, f"{differing} of {expected.numel()} boundaries differ from the loop's"


def test_loop_equals_a_scalar_loop():
    """Boundaries, and the logits recomputed from them in parallel, bit for bit."""
    for policy, num_lags in itertools.product(POLICIES, LAGS):
        base, lags = POLICIES[policy](2, 60, num_lags)
        thresholds = torch.logit(torch.rand(2, 60))
        expected, sums = scalar_reference(base, lags, thresholds)
        solved = threshold_recurrence(base, lags, thresholds, method="loop")
        assert torch.equal(solved, expected), (policy, num_lags)
        assert torch.equal(boundary_logits(base, lags, expected), sums), (policy, num_lags)


@every_fast_method
def test_methods_agree(method):
    """All policies and numbers of lags, in dtypes that take turns; 150 positions are more than two chunks (64)."""
    dtypes = itertools.cycle((torch.float32, torch.bfloat16, torch.float64, torch.float32))
    differing = []
    for policy, num_lags in itertools.product(POLICIES, LAGS):
        if METHODS[method].missing("cpu", num_lags):
            continue
        dtype = next(dtypes)
        base, lags = (x.to(dtype) for x in POLICIES[policy](3, 150, num_lags))
        thresholds = torch.logit(torch.rand(3, 150))
        expected = threshold_recurrence(base, lags, thresholds, method="loop")
        if not torch.equal(threshold_recurrence(base, lags, thresholds, method=method), expected):
            differing.append((policy, num_lags, dtype))
    assert not differing


@every_fast_method
def test_methods_agree_with_every_option(method):
    """Caps, forced positions and greedy decisions, which make infinite thresholds and ties at 0."""
    for num_lags, cap, greedy in ((1, None, False), (4, 2.0, True), (8, None, True), (8, 2.0, False), (12, 2.0, True)):
        if METHODS[method].missing("cpu", num_lags):
            continue
        base, lags = random_policy(5, 150, num_lags, scale=3.0)
        base[:, ::7], lags[:, ::7] = 0.0, 0.0  # logits of 0: greedy ties
        options = {
            "cap": cap,
            "greedy": greedy,
            "uniforms": None if greedy else torch.rand(5, 150),
            "forced": torch.randint(-1, 2, (5, 150)),
        }
        expected = sample_boundaries(base, lags, **options, method="loop")
        drawn = sample_boundaries(base, lags, **options, method=method)
        assert torch.equal(drawn, expected), (num_lags, cap, greedy)


@every_fast_method
def test_views_and_copies_are_alike(method):
    """Transposed, expanded and sliced terms; leading dimensions that do and do not merge."""
    available(method, 3)
    both = torch.randn(4, 70, 6, 4).transpose(1, 2)  # [4, 6, 70, 4], not contiguous
    uniforms = torch.rand(4, 6, 70)
    one = both[:1].expand(4, 6, 70, 4)
    for terms in (both, both[::2], one):
        base, lags = terms[..., 0], terms[..., 1:]
        drawn = sample_boundaries(base, lags, uniforms=uniforms[: len(terms)], method=method)
        copies = base.clone(), lags.clone(memory_format=torch.contiguous_format)
        assert torch.equal(drawn, sample_boundaries(*copies, uniforms=uniforms[: len(terms)], method="loop"))


@pytest.mark.parametrize("num_lags", [1, 3, 8])
def test_maps_take_long_strings_a_span_at_a_time(monkeypatch, num_lags):
    """What is held at a time is bounded, and the spans join without a seam."""
    spans = []
    original = portable._map_span
    monkeypatch.setattr(portable, "_map_span", lambda base, *x: (spans.append(base.shape[1]), original(base, *x))[1])
    monkeypatch.setattr(portable, "_MOST_HELD", 3 * 128 << num_lags)
    base, lags = random_policy(3, 500, num_lags, scale=3.0)
    thresholds = torch.logit(torch.rand(3, 500))
    assert_equal_to_loop(portable.maps, base, lags, thresholds)
    assert spans == [128, 128, 128, 116]


@every_fast_method
def test_any_shape(method):
    available(method, 4)
    for num_rows, length in zip(itertools.cycle((1, 3, 9, 32)), (0, 1, 2, 3, 63, 64, 65, 130, 500), strict=False):
        base, lags = random_policy(num_rows, length, 4)
        thresholds = torch.logit(torch.rand(num_rows, length))
        assert_equal_to_loop(lambda *x: threshold_recurrence(*x, method=method), base, lags, thresholds)


@every_fast_method
def test_long_strings(method):
    available(method, 8)
    for policy in (trained_policy, alternating, long_chain):
        base, lags = policy(2, 1500, 8)
        thresholds = torch.logit(torch.rand(2, 1500)) if policy is trained_policy else torch.zeros(2, 1500)
        assert_equal_to_loop(lambda *x: threshold_recurrence(*x, method=method), base, lags, thresholds)


@every_fast_method
def test_decisions_by_the_last_bit(method):
    """Thresholds equal to the sum, or one step beside it, in the one order of summation."""
    for num_lags in (2, 4, 8, 12):
        if METHODS[method].missing("cpu", num_lags):
            continue
        base, lags = random_policy(8, 150, num_lags)
        drawn = threshold_recurrence(base, lags, torch.zeros(8, 150), method="loop")
        assert torch.equal(threshold_recurrence(base, lags, tight_thresholds(base, lags), method=method), drawn)


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
    with pytest.raises(AssertionError, match="differ from the loop's"):
        assert_equal_to_loop(wrong, base, lags, tight_thresholds(base, lags))


def test_sweeps_hand_over_what_does_not_settle(monkeypatch):
    """Both ways out of the sweeps are taken and are right: maps where states are few, the loop where they are many."""
    for num_lags, num_rows, successor in (
        (2, 2, "maps"),
        (8, 2, "maps"),
        (8, 200, "_continue_loop"),
        (9, 2, "_continue_loop"),
    ):
        base, lags = parity(num_rows, 500, num_lags)
        thresholds = torch.zeros(num_rows, 500)
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


@pytest.mark.parametrize(
    "error", [RuntimeError("cannot cache function: no locator available"), OSError("No space left on device")]
)
def test_numba_survives_without_a_cache_folder(monkeypatch, error):
    """No writable place for compiled code: it is compiled for this process alone."""
    numba = pytest.importorskip("numba")
    from rltok_rl.sampling import compiled

    original, asked = numba.njit, []

    def njit(*args, cache=False, **options):
        asked.append(cache)
        if cache:
            raise error
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
def test_terms_that_are_not_finite_are_named(method):
    if method != "auto":
        available(method, 3)
    for num_lags, name, value in ((0, "base", "nan"), (3, "base", "inf"), (3, "lags", "nan"), (3, "lags", "inf")):
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
    many = METHODS["triton"].missing("cuda", 32)
    assert many is not None and ("31 at most" in many or "not installed" in many)


def test_unfit_thresholds_are_refused():
    for thresholds, error, message in (
        (torch.zeros(4), ValueError, "the shape of base, [1, 4], and its device, cpu, got [4] on cpu"),
        (torch.zeros(1, 4).long(), TypeError, "thresholds must be a floating-point tensor, got torch.int64"),
        ([0.0] * 4, TypeError, "thresholds must be a floating-point tensor, got list"),
        (torch.full((1, 4), torch.nan), ValueError, "thresholds must be numbers, got nan at index [0, 0]"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            threshold_recurrence(*random_policy(1, 4, 2), thresholds)


@pytest.mark.gpu
def test_large_terms_stop_no_gpu():
    """A sum over all terms would overflow, and a device assertion that fails takes the whole process with it."""
    base, lags = torch.full((2, 50), 3e38, device="cuda"), torch.zeros(2, 50, 1, device="cuda")
    assert threshold_recurrence(base, lags, torch.zeros_like(base)).all()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["auto", "sweeps", "maps", "triton"])
def test_gpu_draws_what_the_cpu_draws(method):
    for policy, num_lags in itertools.product(POLICIES, LAGS):
        if method != "auto" and METHODS[method].missing("cuda", num_lags):
            continue
        base, lags = POLICIES[policy](5, 777, num_lags)
        for thresholds in (torch.logit(torch.rand(5, 777)), tight_thresholds(base, lags)):
            drawn = threshold_recurrence(base.cuda(), lags.cuda(), thresholds.cuda(), method=method)
            expected = threshold_recurrence(base, lags, thresholds, method="loop")
            assert torch.equal(drawn.cpu(), expected), (policy, num_lags)
