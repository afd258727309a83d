"""Draws follow the policy, with every option."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch

from rltok_rl.functional.policy import boundary_log_prob, boundary_logits
from rltok_rl.sampling import sample_boundaries
from rltok_rl.sampling.thresholds import draw_boundary

from ..each import each
from ..states import seeded
from .policies import random_policy, trained_policy


def test_frequencies_are_the_policys():
    """All 2^5 strings, 200,000 draws. A chi-square of 31 degrees of freedom exceeds 70 with probability 1e-4."""
    num_draws = 200_000
    base, lags = random_policy(1, 5, 2, scale=1.5)
    strings = torch.tensor(list(itertools.product([0, 1], repeat=5)))  # [32, 5]
    logits = boundary_logits(base.expand(32, 5), lags.expand(32, 5, 2), strings)
    probs = boundary_log_prob(logits, strings).sum(-1).exp()
    assert probs.sum().item() == pytest.approx(1.0, abs=1e-5)
    terms = base.expand(num_draws, 5), lags.expand(num_draws, 5, 2)
    drawn = sample_boundaries(*terms, force_first=False, generator=seeded())
    counts = torch.bincount((drawn.long() * torch.tensor([16, 8, 4, 2, 1])).sum(-1), minlength=32)
    assert ((counts - num_draws * probs) ** 2 / (num_draws * probs)).sum().item() < 70


def test_uniforms_are_compared_with_probabilities():
    """Sampling with u is drawing where u < sigmoid(l), up to uniforms within rounding of the probability."""
    base, lags = trained_policy(8, 500, 4)
    uniforms = torch.rand(8, 500)
    for cap in (None, 2.0):
        drawn = sample_boundaries(base, lags, uniforms=uniforms, cap=cap, force_first=False)
        probs = boundary_logits(base, lags, drawn, cap=cap).sigmoid()
        decided = (uniforms - probs).abs() > 1e-5
        assert torch.equal(drawn[decided], (uniforms < probs)[decided])
        assert decided.float().mean() > 0.99


def test_a_soft_cap_keeps_every_decision_open():
    """With a cap of 1, probabilities stay within sigmoid(+-1): a decided policy errs in 27 % of all draws."""
    base, lags = torch.full((64, 500), 50.0), torch.zeros(64, 500, 1)
    assert sample_boundaries(base, lags, generator=seeded()).all()
    capped = sample_boundaries(base, lags, cap=1.0, generator=seeded())
    assert capped.float().mean().item() == pytest.approx(torch.tensor(1.0).sigmoid().item(), abs=0.01)  # 4 std. errors


def test_extreme_uniforms():
    base, lags = torch.zeros(1, 2), torch.zeros(1, 2, 1)
    uniforms = torch.tensor([[0.0, torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))]])
    for cap in (None, 6.0):
        assert sample_boundaries(base, lags, uniforms=uniforms, cap=cap, force_first=False).tolist() == [[True, False]]
    wide = torch.full((1, 1), 1 - 1e-12, dtype=torch.float64)  # below sigmoid(80), but 1 in float32
    base, lags = torch.full((1, 1), 80.0), torch.zeros(1, 1, 1)
    assert sample_boundaries(base, lags, uniforms=wide, force_first=False).all() and draw_boundary(base, wide).all()


def test_greedy_draws_where_boundaries_are_likelier_than_not():
    base, lags = trained_policy(4, 300, 8)
    for cap in (None, 1.0):  # a cap changes no sign
        drawn = sample_boundaries(base, lags, greedy=True, cap=cap, force_first=False)
        assert torch.equal(drawn, boundary_logits(base, lags, drawn) > 0)
    assert not sample_boundaries(torch.zeros(1, 3), torch.zeros(1, 3, 1), greedy=True, force_first=False).any()  # a tie


def test_forced_positions_are_kept_and_seen_by_free_ones():
    base, lags = random_policy(6, 200, 3, scale=3.0)
    forced, uniforms = torch.randint(-1, 2, (6, 200)), torch.rand(6, 200)
    forced[:, 0] = 0
    drawn = sample_boundaries(base, lags, uniforms=uniforms, forced=forced)
    assert drawn[:, 0].all()  # force_first goes first
    kept, probs = forced[:, 1:] >= 0, boundary_logits(base, lags, drawn).sigmoid()
    assert torch.equal(drawn[:, 1:][kept], forced[:, 1:][kept].bool())
    free = (forced < 0) & ((uniforms - probs).abs() > 1e-5)
    assert torch.equal(drawn[free], (uniforms < probs)[free])
    one_row = sample_boundaries(base, lags, uniforms=uniforms, forced=forced[0])
    assert torch.equal(one_row, sample_boundaries(base, lags, uniforms=uniforms, forced=forced[0].expand(6, 200)))


@each(
    cap=[None, 2.0],
    greedy=[False, True],
    force_first=[False, True],
    forced=[None, "one row", "each"],
    dtypes=[(torch.float32, torch.float32), (torch.float64, torch.float32), (torch.float32, torch.float64)],
)
def test_a_string_is_drawn_position_by_position(cap, greedy, force_first, forced, dtypes):
    """Against probabilities one after the other; inputs stay as they are, and no random number is drawn."""
    terms, drawn_from = dtypes
    base, lags = (x.to(terms) for x in random_policy(4, 30, 3, scale=2.0))
    uniforms = None if greedy else torch.rand(4, 30, dtype=drawn_from)
    given = None if forced is None else torch.randint(-1, 2, (30,) if forced == "one row" else (4, 30))
    options = {"cap": cap, "greedy": greedy, "force_first": force_first, "forced": given, "uniforms": uniforms}
    copies = [None if x is None else x.clone() for x in (base, lags, uniforms, given)]
    state, generator = torch.get_rng_state(), seeded()
    ours = sample_boundaries(base, lags, generator=generator, **options)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(generator.get_state(), seeded().get_state())
    for x, copy in zip((base, lags, uniforms, given), copies, strict=True):
        assert x is copy is None or torch.equal(x, copy)
    expected = torch.zeros(4, 30, dtype=torch.bool)
    for row, t in itertools.product(range(4), range(30)):
        logit = float(base[row, t]) + sum(
            float(lags[row, t, j - 1]) * expected[row, t - j] for j in (1, 2, 3) if j <= t
        )
        logit = logit if cap is None else cap * math.tanh(logit / cap)
        free = logit > 0 if greedy else float(uniforms[row, t]) < 1 / (1 + math.exp(-logit))
        kept = -1 if given is None else int(given.expand(4, 30)[row, t])
        expected[row, t] = (force_first and t == 0) or (free if kept < 0 else bool(kept))
    assert torch.equal(ours, expected)


def test_a_generator_repeats_and_advances_whatever_the_default_dtype():
    base, lags = random_policy(2, 100, 2)
    generator = seeded(3)
    first, second = (sample_boundaries(base, lags, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.equal(first, sample_boundaries(base, lags, generator=seeded(3)))
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_leading_shapes_and_empty_strings(shape):
    base, lags = torch.randn(*shape, 10, requires_grad=True), torch.randn(*shape, 10, 2, requires_grad=True)
    drawn = sample_boundaries(base, lags)
    assert drawn.shape == base.shape and drawn.dtype == torch.bool and drawn[..., 0].all()
    assert not drawn.requires_grad
    assert sample_boundaries(base[..., :0], lags[..., :0, :]).shape == (*shape, 0)


def test_refusals():
    for options, error, message in (
        ({"cap": -1.0}, ValueError, "cap must be positive and finite, or None, got -1.0"),
        ({"cap": float("inf")}, ValueError, "cap must be positive and finite, or None, got inf"),
        ({"cap": float("nan")}, ValueError, "cap must be positive and finite, or None, got nan"),
        ({"uniforms": [0.5]}, TypeError, "uniforms must be a floating-point tensor, got list"),
        ({"forced": [1]}, TypeError, "forced must be an integer tensor of -1 (free), 0 and 1, got list"),
        ({"uniforms": torch.rand(2, 4)}, ValueError, "uniforms must have the shape of base, [2, 5], got [2, 4]"),
        ({"uniforms": torch.full((2, 5), 1.0)}, ValueError, "uniforms must lie in [0, 1), got values from 1.0 to 1.0"),
        ({"uniforms": torch.full((2, 5), float("nan"))}, ValueError, "uniforms must lie in [0, 1)"),
        ({"uniforms": torch.rand(2, 5), "greedy": True}, ValueError, "uniforms must be None with greedy=True"),
        ({"forced": torch.full((2, 5), -2)}, ValueError, "forced must hold -1 (free), 0 and 1, got [-2]"),
        ({"uniforms": torch.full((2, 5), -0.1)}, ValueError, "uniforms must lie in [0, 1), got values from -0.1"),
        ({"forced": torch.full((2, 5), 2)}, ValueError, "forced must hold -1 (free), 0 and 1, got [2]"),
        ({"forced": torch.ones(2, 5).bool()}, TypeError, "forced must be an integer tensor"),
        ({"forced": torch.ones(3, 5).long()}, ValueError, "forced must broadcast to [2, 5], got [3, 5]"),
        ({"forced": torch.ones(3, 2, 5).long()}, ValueError, "forced must broadcast to [2, 5], got [3, 2, 5]"),
        ({"method": "magic"}, ValueError, "method must be one of"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            sample_boundaries(torch.zeros(2, 5), torch.zeros(2, 5, 1), **options)
