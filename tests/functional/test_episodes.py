"""Returns of episodes as sums per row, and the errors of ratios of such sums."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch

from rltok_rl.evaluation import corpus_standard_error, mean_and_error
from rltok_rl.functional.episodes import ratio_moments, ratio_with_error, return_sums

from ..each import each

ROWS, STEPS, GAMMA = 5, 12, 0.8


def rollout(short: bool):
    """Rewards, ends and free decisions; if short, several episodes per row, of which the last may not end."""
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(ROWS, STEPS, generator=generator)
    done = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    done[:, -1] = True
    if short:
        done = torch.rand(ROWS, STEPS, generator=generator) < 0.3
        done[:, 5] = True
    first = done.roll(1, -1)
    first[:, 0] = True
    return rewards, done, ~first


def by_loops(rewards, done, free):
    """All episodes, step by step: (sum of rewards, whether it ended), and the discounted returns of free decisions."""
    episodes, discounted = [], []
    for row, ends, decides in zip(rewards.tolist(), done.tolist(), free.tolist(), strict=True):
        episode = []
        for step in range(STEPS):
            episode.append((row[step], decides[step]))
            if ends[step] or step == STEPS - 1:
                episodes.append((math.fsum(x for x, _ in episode), ends[step]))
                for start, (_, is_free) in enumerate(episode):
                    ahead = math.fsum(GAMMA**k * x for k, (x, _) in enumerate(episode[start:]))
                    discounted += [ahead] if is_free else []
                episode = []
    return [total for total, ended in episodes if ended], discounted


@each(short=[False, True])
def test_returns_are_those_of_loops(short):
    rewards, done, free = rollout(short)
    whole, discounted = by_loops(rewards, done, free)
    assert (len(whole) == ROWS) is not short
    sums = return_sums(rewards, done, free=free, gamma=GAMMA)
    expected = {"reward": float(rewards.double().mean()), "episode_return": fmean(whole), "return": fmean(discounted)}
    for name, value in expected.items():
        assert ratio_with_error(ratio_moments(sums[name]), ROWS)[0] == pytest.approx(value, rel=1e-9), name
    assert "return" not in return_sums(rewards, done)
    if not short:
        error = ratio_with_error(ratio_moments(sums["episode_return"]), ROWS)[1]
        assert error == pytest.approx(mean_and_error(whole)[1], rel=1e-9)


def test_error_of_a_ratio_is_that_of_documents_and_of_all_parts_together():
    counts, nats = torch.tensor([10, 30, 25, 7]), torch.tensor([10.0, 60.0, 41.0, 12.0])
    sums = torch.stack((nats, counts.double()), -1)
    ratio, error = ratio_with_error(ratio_moments(sums), 4)
    assert ratio == pytest.approx(123 / 72)
    assert error == pytest.approx(corpus_standard_error(counts, nats) * math.log(2), rel=1e-9)
    parts = torch.stack([ratio_moments(part) for part in sums.split(2)]).mean(0)  # micro-batches or processes
    assert ratio_with_error(parts, 4) == pytest.approx((ratio, error), rel=1e-12)
    assert math.isnan(ratio_with_error(ratio_moments(sums[:1]), 1)[1])
    assert all(map(math.isnan, ratio_with_error(ratio_moments(torch.zeros(3, 2)), 3)))


def test_error_of_a_ratio_is_that_of_its_residuals():
    """Step by step, also of sums below 0; equal residuals have an error of 0, whatever rounding leaves."""
    for sign in (1, -1):
        sums = torch.rand(7, 2, dtype=torch.float64) * torch.tensor([3.0, sign])
        n, d = sums.mean(0).tolist()
        residuals = [float(x - n / d * y) for x, y in sums]
        expected = math.sqrt(fmean([e * e for e in residuals]) / 6) / abs(d)
        ratio, error = ratio_with_error(ratio_moments(sums), 7)
        assert (ratio, error) == (pytest.approx(n / d), pytest.approx(expected))
        assert ratio_with_error(ratio_moments(sums).tolist(), 7) == (ratio, error)
    for number in range(50):
        counts = torch.rand(5, dtype=torch.float64) + number
        assert ratio_with_error(ratio_moments(torch.stack((0.1 * counts, counts), -1)), 5)[1] < 1e-7


@each(free=[False, True], discounted=[False, True])
def test_sums_are_per_row_and_without_gradient(free, discounted):
    rewards, done, decides = rollout(short=True)
    options = {"free": decides if free else None, "gamma": GAMMA if discounted else None}
    whole = return_sums(rewards.clone().requires_grad_(), done, **options)
    assert ("return" in whole) is discounted
    for row in range(ROWS):
        own = {name: value if value is None or name == "gamma" else value[row, None] for name, value in options.items()}
        for name, sums in return_sums(rewards[row, None], done[row, None], **own).items():
            torch.testing.assert_close(whole[name][row, None], sums)
            assert sums.dtype == torch.float64 and not whole[name].requires_grad
    counts = {"reward": torch.full((ROWS,), STEPS), "episode_return": done.sum(1)}
    counts |= {"return": decides.sum(1) if free else counts["reward"]} if discounted else {}
    for name, count in counts.items():
        assert whole[name][:, 1].tolist() == count.tolist(), name
