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
