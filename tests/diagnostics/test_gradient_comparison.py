"""Comparisons with a reference, and how sure they are."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.diagnostics.gradient_quality import compare, correlation, signal_to_noise


def test_compare_removes_the_noise():
    """Mean of 10 noisy gradients: its plain cosine is far below 1, the corrected one is not."""
    torch.manual_seed(0)
    truth = torch.randn(50, dtype=torch.float64)
    gradients = truth + 5 * torch.randn(40, 50, dtype=torch.float64)
    assert torch.cosine_similarity(gradients.mean(0), truth, dim=0) < 0.85
    found = compare(signal_to_noise(gradients), truth)
    assert found.cosine == pytest.approx(1.0, abs=0.15) and found.scale == pytest.approx(1.0, abs=0.2)
    assert found.bias < 0.5
    other = signal_to_noise(truth + 5 * torch.randn(40, 50, dtype=torch.float64))
    assert compare(signal_to_noise(gradients), other).cosine == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("measured", [False, True], ids=["exact", "measured"])
def test_errors_are_as_large_as_the_scatter(measured):
    """Over 200 measurements; the bias is 0.5, and its limit is exceeded once in 40 times (here: at most 15 in 200)."""
    torch.manual_seed(0)
    truth = torch.randn(20, dtype=torch.float64)
    aside = torch.randn(20, dtype=torch.float64)
    aside -= (aside @ truth) / (truth @ truth) * truth
    expected = truth + 0.5 * truth.norm() * aside / aside.norm()
    found = []
    for _ in range(200):
        seen = signal_to_noise(expected + 3 * torch.randn(60, 20, dtype=torch.float64))
        reference = signal_to_noise(truth + 3 * torch.randn(60, 20, dtype=torch.float64)) if measured else truth
        found.append(compare(seen, reference))
    for name, value in (("cosine", 1.25**-0.5), ("scale", 1.25**0.5)):
        values = torch.tensor([getattr(one, name) for one in found])
        errors = torch.tensor([getattr(one, f"{name}_error") for one in found])
        assert abs(values.mean() - value) < 0.25 * values.std()
        assert 0.8 < errors.mean() / values.std() < 1.3
    assert sum(one.bias_limit < 0.5 for one in found) <= 15
    assert sum(one.bias_limit for one in found) / 200 < 1.0


def test_the_bound_of_a_bias_does_not_shrink_where_noise_makes_its_square_negative():
    """However negative the square, the bound is what two standard errors alone give; errors differ by half."""
    torch.manual_seed(3)
    truth = torch.randn(20, dtype=torch.float64)
    found = [compare(signal_to_noise(truth + torch.randn(60, 20, dtype=torch.float64)), truth) for _ in range(100)]
    hidden = torch.tensor([one.bias_limit for one in found if one.bias == 0])
    assert len(hidden) > 20 and hidden.min() > 0.5 * hidden.median()


def test_what_is_lost_in_noise_has_no_direction():
    torch.manual_seed(2)
    noise, truth = torch.randn(30, 20), torch.ones(20)
    seen = signal_to_noise(noise - noise.mean(0))
    assert math.isnan(compare(seen, truth).cosine) and math.isnan(compare(seen, truth).scale_error)
    clear = signal_to_noise(truth + 0.1 * torch.randn(30, 20))
    assert math.isnan(compare(clear, seen).cosine)  # a reference that is noise tells no direction either
    assert compare(clear, truth).cosine == pytest.approx(1.0, abs=0.01)


def test_correlation_is_pearsons():
    x, y = torch.randn(3, 40), torch.randn(3, 40)
    expected = torch.corrcoef(torch.stack((x.flatten(), y.flatten())))[0, 1]
    found, error = correlation(x, y, groups=torch.arange(120).view(3, 40))
    assert found == pytest.approx(expected.item(), rel=1e-5) and error == pytest.approx(118**-0.5, rel=0.3)


def test_entries_that_depend_on_each_other_are_no_evidence():
    """100 groups of 50 nearly equal entries: the error is that of 100, ten times what 5,000 would give."""
    torch.manual_seed(0)
    x, y = (torch.randn(100, 1) + 0.01 * torch.randn(100, 50) for _ in range(2))
    groups = torch.arange(100).unsqueeze(1).expand(100, 50)
    honest = correlation(x, y, groups=groups)[1]
    assert honest == pytest.approx(0.1, rel=0.35)
    left = torch.stack([torch.corrcoef(torch.stack([v[groups != g] for v in (x, y)]))[0, 1] for g in range(100)])
    assert honest == pytest.approx((99 * (left - left.mean()).square().mean()).sqrt().item(), rel=1e-3)


def test_what_does_not_vary_is_refused():
    for x, y, words in (
        (torch.ones(4), torch.randn(4), "estimates and truth must both vary, got 4 entries"),
        (torch.empty(0), torch.empty(0), "got 0 entries"),
        (torch.randn(4), torch.randn(4), "groups must be at least 2 for a standard error, got 1"),
    ):
        with pytest.raises(ValueError, match=words):
            correlation(x, y, groups=torch.zeros(len(x), dtype=torch.int64))
