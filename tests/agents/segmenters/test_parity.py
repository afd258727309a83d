"""The published formulas of gumbel and hnet, against dense matrices and straight loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import TrainedSpike, make_segmenter
from rltok_rl.agents.segmenters.gumbel import NullGroup, group_weights, relaxed_boundaries
from rltok_rl.agents.segmenters.hnet import HNetSegmenter

from rltok_rl.functional.boundary_rules import entropy_spikes
from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models import UNet, preset
from rltok_rl.models.mixing import pool_tokens, token_updates
from rltok_rl.models.tokens import token_layout

from .definition import CASES, build, of_width, texts


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_pooling_is_the_dense_matrix_with_its_gradient(layout):
    """Means of groups by M_{t,s} = 1 - (s - g_t) where s = g_t and 0 elsewhere, with the gradient of g_t.

    The byte-0 boundary is the null token's; groups close at the others.
    """
    tokens = NullGroup(3).double()
    states = torch.randn(1, 14, 3, dtype=torch.float64, requires_grad=True)
    free = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0], dtype=torch.float64).requires_grad_()
    where = token_layout(torch.cat((torch.ones(1).bool(), free[1:].bool()))[None], layout)
    mixing = tokens(group_weights(free[None]))
    ours = pool_tokens(states, where, mixing).view(-1, 3)
    distance = torch.arange(int(free.sum()))[None] - (free.cumsum(0) - free)[:, None]  # [T, S]
    matrix = torch.where(distance.detach() == 0, 1 - distance, 0.0)
    theirs = tokens.norm((matrix / matrix.sum(0)).T @ states[0])
    torch.testing.assert_close(ours[0], tokens.norm(tokens.null))
    torch.testing.assert_close(ours[1:], theirs)
    direction = torch.randn_like(theirs)
    slopes = torch.autograd.grad((ours[1:] * direction).sum(), (states, free), retain_graph=True)
    expected = torch.autograd.grad((theirs * direction).sum(), (states, free))
    assert expected[1].abs().max() > 0.01
    torch.testing.assert_close(slopes[0], expected[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(slopes[1][1:], expected[1][1:], rtol=0, atol=1e-10)
    assert slopes[1][0] == 0  # byte 0 opens the text: no decision
    pooled = pool_tokens(states, where, mixing)
    assert token_updates(pooled, pooled, where, mixing) is pooled


def test_relaxed_decisions_have_the_gradient_of_the_sigmoid():
    logits = torch.randn(50, dtype=torch.float64, requires_grad=True)
    uniforms = torch.rand(50, dtype=torch.float64)
    drawn = logits > torch.logit(uniforms)
    soft = relaxed_boundaries(logits, drawn, uniforms, 0.5)
    assert torch.equal(soft.detach(), drawn.double())
    relaxed = ((logits - torch.logit(uniforms)) / 0.5).sigmoid()
    assert torch.equal(relaxed > 0.5, drawn)  # the relaxation rounds to the decision
    (slope,) = torch.autograd.grad(soft.sum(), logits)
    torch.testing.assert_close(slope, relaxed * (1 - relaxed) / 0.5)


def test_the_binomial_loss_is_exact_and_reaches_the_logits_through_the_relaxation():
    model, segmenter = build(CASES["gumbel"])
    byte_ids, uniforms = texts(2, 20), torch.rand(2, 20, dtype=torch.float64)
    segments = segmenter(model.encode(byte_ids), byte_ids, uniforms=uniforms)
    (loss,) = segmenter.losses(segments, byte_ids, byte_ids).values()
    counts = segments.boundaries[:, 1:].sum(1).double()
    exact = -torch.distributions.Binomial(19, torch.tensor(0.25).double()).log_prob(counts) / 19
    torch.testing.assert_close(loss, exact.mean())
    (slope,) = torch.autograd.grad(loss, segments.logits)
    k = counts[:, None].clone().requires_grad_()
    cost = (torch.lgamma(k + 1) + torch.lgamma(20 - k) - k * math.log(0.25 / 0.75)) / 19 / 2
    (per_count,) = torch.autograd.grad(cost.sum(), k)
    s = ((segments.logits - torch.logit(uniforms)) / 0.5).sigmoid().detach()
    torch.testing.assert_close(slope[:, 1:], (per_count * s * (1 - s) / 0.5)[:, 1:])
    assert (slope[:, 0] == 0).all()


def test_the_published_predictors():
    for variant, hidden, activation, temperature in [
        ("nawrot", 2048, torch.nn.GELU, 0.5),
        ("baseline", 64, torch.nn.ReLU, 1.0),
    ]:
        for given in (None, 24):
            segmenter = make_segmenter("gumbel", UNet(preset("tiny")), variant=variant, rate=0.2, hidden=given)
            first, act, last = segmenter.predictor
            assert (first.in_features, first.out_features, last.out_features) == (64, given or hidden, 1)
            assert isinstance(act, activation) and segmenter.temperature == temperature
            assert segmenter.eval().draws_at_random  # as the released code
            assert 0.5 < segmenter.tokens.null.std() < 2
    spikes = TrainedSpike(of_width(8), hidden=4)
    assert (spikes.lags, spikes.fidelity) == (2, "paper")
    routed = make_segmenter("hnet", UNet(preset("tiny", norm_eps=0.5)))
    assert routed.byte_norm.eps == routed.token_norm.eps == 0.5


@pytest.mark.parametrize(
    ("fidelity", "lags", "size"), [("paper", 2, 3), ("released", 2, 3), ("paper", 4, 3), ("paper", 2, 1e-3)]
)
def test_spike_targets_come_from_the_final_logits(fidelity, lags, size):
    """However small a spike is."""
    segmenter = TrainedSpike(of_width(8), hidden=4, fidelity=fidelity, lags=lags).double()
    final = torch.randn(2, 12, 256, dtype=torch.float64).mul(size).requires_grad_()
    segments = segmenter(torch.randn(2, 12, 8, dtype=torch.float64), torch.zeros(2, 12, dtype=torch.int64))
    (loss,) = segmenter.losses(segments, torch.zeros(2, 12), final).values()
    target = entropy_spikes(prediction_entropy(final), lags).double()
    p = segments.logits.sigmoid()
    p = p if fidelity == "paper" else p.sigmoid()  # the released loss takes the sigmoid of a sigmoid
    torch.testing.assert_close(loss, -(target * p.log() + (1 - target) * (1 - p).log()).mean())
    loss.backward()
    assert final.grad is None and segmenter.predictor[0].weight.grad.abs().max() > 0


def test_routing_on_a_few_vectors():
    """W_q turns the plane by a quarter: of x, y, -x the query of each is the key of the next. 1/2 is no boundary."""
    segmenter = HNetSegmenter(of_width(2), variant="baseline")
    bytes_ = torch.zeros(1, 4, dtype=torch.int64)
    right_right_up_left = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]])
    segments = segmenter(right_right_up_left, bytes_)
    assert segments.boundaries[0].tolist() == [True, False, False, False]
    with torch.no_grad():
        segmenter.query.weight.copy_(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    states = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
    for given, expected in ((states, [1.0, 0.0, 0.0]), (states.flip(1), [1.0, 1.0, 1.0])):
        probs = segmenter(given, bytes_[:, :3]).scores
        torch.testing.assert_close(probs, torch.tensor([expected]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ["faithful", "baseline"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_hnet_equals_a_loop(variant, layout):
    """Y_t = R(x_t) + STE(c_t) zbar_{i(t)}, zbar_j = P_j z_j + (1 - P_j) zbar_{j-1}, byte after byte; with gradients."""
    torch.manual_seed(1)
    model = UNet(preset("tiny", num_decoder_layers=0)).double()
    segmenter = make_segmenter("hnet", model, variant=variant)
    fresh = segmenter(torch.randn(1, 5, 64).double(), torch.zeros(1, 5, dtype=torch.int64)).mixing
    assert (fresh.residual(torch.ones(5, 64).double()) == (variant == "baseline")).all()  # nothing, or the bytes
    with torch.no_grad():
        for parameter in segmenter.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    states = torch.randn(2, 15, 64, dtype=torch.float64, requires_grad=True)
    segments = segmenter(states, torch.zeros(2, 15, dtype=torch.int64))
    assert 4 < int(segments.boundaries.sum()) < 28
    ours = model.decode(states, segments.boundaries, layout=layout, mixing=segments.mixing)

    x = segmenter.byte_norm(states)
    rows = []
    for row in range(2):
        places = [t for t in range(15) if segments.scores[row, t] > 0.5]
        z = x[row : row + 1, places]  # [1, S, D]
        where = token_layout(torch.ones(1, len(places)).bool())
        z = model.token_layers(z, model.byte_angles(torch.tensor(places)), lambda _, w=where: w.attention(None))
        z = segmenter.token_norm(z)[0]
        smoothed, current = [], torch.zeros(64, dtype=torch.float64)
        for token, t in zip(z, places, strict=True):
            share = segments.scores[row, t].clamp(1e-4, 1 - 1e-4)
            current = share * token + (1 - share) * current
            smoothed.append(current)
        out, number = [], -1
        for t in range(15):
            number += t in places
            p = segments.scores[row, t]
            c = p if t in places else 1 - p
            out.append(segmenter.residual(x[row, t]) + (1 + c - c.detach()) * smoothed[number])
        rows.append(torch.stack(out))
    theirs = torch.stack(rows)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    direction = torch.randn_like(ours)
    sources = [states, segmenter.query.weight, segmenter.key.weight]
    slopes = torch.autograd.grad((ours * direction).sum(), sources, retain_graph=True)
    torch.testing.assert_close(slopes, torch.autograd.grad((theirs * direction).sum(), sources), rtol=0, atol=1e-9)


def test_the_ratio_loss_is_published_and_detaches_the_decisions():
    """N/(N - 1) ((N - 1) F G + (1 - F)(1 - G)); its gradient with respect to p is that of G alone."""
    model, segmenter = build(CASES["hnet"])
    byte_ids = texts(3, 30)
    segments = segmenter(model.encode(byte_ids), byte_ids)
    (loss,) = segmenter.losses(segments, byte_ids, byte_ids).values()
    n, f, g = 4, segments.boundaries.double().mean(), segments.scores.mean()
    torch.testing.assert_close(loss, n / (n - 1) * ((n - 1) * f * g + (1 - f) * (1 - g)))
    (slope,) = torch.autograd.grad(loss, segments.scores)
    torch.testing.assert_close(slope, torch.full_like(slope, float(n / (n - 1) * ((n - 1) * f - (1 - f)) / 90)))
    at_target = RATE_CONTROLS["ratio"](torch.zeros(5), torch.tensor([1, 0, 0, 0, 0]), 0.2)
    assert float(at_target) == pytest.approx(1.0)
