"""The published formulas of gumbel and hnet, against dense matrices and straight loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import calibrate, make_segmenter
from rltok_rl.agents.segmenters.gumbel import NullGroup, TrainedSpike, group_weights, relaxed_boundaries
from rltok_rl.agents.segmenters.hnet import HNetSegmenter, routing_probability, stage_multipliers
from torch import Tensor

from rltok_rl.functional.boundary_rules import entropy_spikes
from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models import UNet, preset
from rltok_rl.models.mixing import Mixing, pool_tokens, token_updates
from rltok_rl.models.tokens import token_layout

from .definition import CASES, build, texts


def published_pooling(states: Tensor, soft: Tensor) -> Tensor:
    """Means of groups [S, D] of one row [T, D], by the dense matrix of bytes and groups (Nawrot et al.).

    M_{t,s} = 1 - (s - g_t) where s = g_t and 0 elsewhere, with the gradient of g_t; columns sum to 1.
    """
    groups = soft.cumsum(0) - soft  # [T]
    distance = torch.arange(int(soft.sum()))[None] - groups[:, None]  # [T, S]
    matrix = torch.where(distance.detach() == 0, 1 - distance, 0.0)
    return (matrix / matrix.sum(0)).T @ states


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_pooling_is_the_dense_matrix_with_its_gradient(layout):
    """The byte-0 boundary is the null token's; groups close at the others."""
    states = torch.randn(1, 14, 3, dtype=torch.float64, requires_grad=True)
    free = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0], dtype=torch.float64).requires_grad_()
    null = torch.randn(3, dtype=torch.float64)
    where = token_layout(torch.cat((torch.ones(1).bool(), free[1:].bool()))[None], layout)
    mixing = Mixing(pooling="mean", pool_weights=group_weights(free[None]), first_token=null)
    ours = pool_tokens(states, where, mixing).view(-1, 3)
    theirs = published_pooling(states[0], free)
    torch.testing.assert_close(ours[0], null)
    torch.testing.assert_close(ours[1:], theirs)
    direction = torch.randn_like(theirs)
    found = torch.autograd.grad((ours[1:] * direction).sum(), (states, free))
    expected = torch.autograd.grad((theirs * direction).sum(), (states, free))
    assert expected[1].abs().max() > 0.01
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1][1:], expected[1][1:], rtol=0, atol=1e-12)
    assert found[1][0] == 0  # byte 0 opens the text: no decision


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


def test_the_temperature_changes_no_decision():
    case = CASES["gumbel"]
    model, segmenter = build(case)
    byte_ids, uniforms = texts(2, 20), torch.rand(2, 20, dtype=torch.float64)
    drawn = []
    for temperature in (0.1, 0.5, 3.0):
        segmenter.temperature = temperature
        drawn.append(segmenter(model.encode(byte_ids), byte_ids, uniforms=uniforms).boundaries)
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


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
    n = torch.tensor(19.0).double()
    cost = -(torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1) + k * math.log(0.25 / 0.75)) / 19 / 2
    (per_count,) = torch.autograd.grad(cost.sum(), k)
    s = ((segments.logits - torch.logit(uniforms)) / 0.5).sigmoid().detach()
    torch.testing.assert_close(slope[:, 1:], (per_count * s * (1 - s) / 0.5)[:, 1:])
    assert (slope[:, 0] == 0).all()


@pytest.mark.parametrize(("fidelity", "lags"), [("paper", 2), ("released", 2), ("paper", 4)])
def test_spike_targets_come_from_the_final_logits(fidelity, lags):
    segmenter = TrainedSpike(8, hidden=4, fidelity=fidelity, lags=lags).double()
    final = torch.randn(2, 12, 256, dtype=torch.float64).mul(3).requires_grad_()
    segments = segmenter(torch.randn(2, 12, 8, dtype=torch.float64), torch.zeros(2, 12, dtype=torch.int64))
    (loss,) = segmenter.losses(segments, torch.zeros(2, 12), final).values()
    target = entropy_spikes(prediction_entropy(final), lags).double()
    p = segments.logits.sigmoid()
    p = p if fidelity == "paper" else p.sigmoid()  # the released loss takes the sigmoid of a sigmoid
    torch.testing.assert_close(loss, -(target * p.log() + (1 - target) * (1 - p).log()).mean())
    loss.backward()
    assert final.grad is None and segmenter.predictor[0].weight.grad.abs().max() > 0


def test_routing_reads_the_byte_before_as_query():
    """W_q turns the plane by a quarter, W_k does not: of x, y, -x the query of each is the key of the next."""
    segmenter = HNetSegmenter(2, target_rate=0.2, norms=False)
    with torch.no_grad():
        segmenter.query.weight.copy_(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    states = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
    for given, expected in ((states, [1.0, 0.0, 0.0]), (states.flip(1), [1.0, 1.0, 1.0])):
        probs = segmenter(given, torch.zeros(1, 3, dtype=torch.int64)).scores
        torch.testing.assert_close(probs, torch.tensor([expected]), rtol=0, atol=1e-6)
    assert float(routing_probability(torch.ones(4), torch.ones(4))) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("variant", ["faithful", "baseline"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_hnet_equals_a_loop(variant, layout):
    """Y_t = R(x_t) + STE(c_t) zbar_{i(t)}, zbar_j = P_j z_j + (1 - P_j) zbar_{j-1}, byte after byte; with gradients."""
    torch.manual_seed(1)
    model = UNet(preset("tiny", num_decoder_layers=0)).double()
    segmenter = make_segmenter("hnet", model, variant=variant)
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
            own = x[row, t] if segmenter.residual is None else segmenter.residual(x[row, t])
            out.append(own + (1 + c - c.detach()) * smoothed[number])
        rows.append(torch.stack(out))
    theirs = torch.stack(rows)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    direction = torch.randn_like(ours)
    wanted = [states, segmenter.query.weight, segmenter.key.weight]
    found = torch.autograd.grad((ours * direction).sum(), wanted, retain_graph=True)
    expected = torch.autograd.grad((theirs * direction).sum(), wanted)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_hnet_starts_without_the_bytes_themselves():
    segmenter = HNetSegmenter(8, target_rate=0.2)
    assert torch.equal(segmenter.query.weight, torch.eye(8)) and torch.equal(segmenter.key.weight, torch.eye(8))
    mixing = segmenter(torch.randn(1, 5, 8), torch.zeros(1, 5, dtype=torch.int64)).mixing
    assert (mixing.residual(torch.randn(5, 8)) == 0).all()
    states, weak = torch.randn(1, 5, 8), HNetSegmenter(8, target_rate=0.2, residual="identity", norms=False)
    assert torch.equal(weak(states, torch.zeros(1, 5, dtype=torch.int64)).mixing.residual(states), states)


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


def test_learning_rates_by_stage():
    """One stage of 6 bytes, widths equal: sqrt(4.6) outside, sqrt(4.6 / 6) inside."""
    assert stage_multipliers([6.0], [8, 8]) == pytest.approx([math.sqrt(4.6), math.sqrt(4.6 / 6)])
    with pytest.raises(ValueError, match="widths must have one entry more than chunk_sizes, got 1 and 1"):
        stage_multipliers([6.0], [8])


def test_the_null_token_serves_bytes_before_the_first_group():
    tokens = NullGroup(4).double()
    states = torch.randn(1, 6, 4, dtype=torch.float64)
    where = token_layout(torch.tensor([[1, 0, 0, 1, 0, 0]]).bool())
    pooled = pool_tokens(states, where, tokens())
    torch.testing.assert_close(pooled[0, 0], tokens.norm(tokens.null))
    torch.testing.assert_close(pooled[0, 1], tokens.norm(states[0, :4].mean(0)))  # byte 0 is part of the first group
    assert token_updates(pooled, pooled, where, tokens()) is pooled


def test_calibration_is_exact_on_its_own_text():
    for name in ("entropy-threshold", "entropy-threshold, early exit", "entropy-monotonic"):
        model, segmenter = build(CASES[name])
        for num_rows, rate in ((1, 0.1), (1, 0.5), (4, 0.1), (4, 0.5)):  # first bytes count, and nothing decides them
            byte_ids = texts(num_rows, 80 // num_rows)
            found = calibrate(segmenter, model, [byte_ids], rate=rate)
            assert found == float(segmenter.threshold)
            drawn = int(segmenter(model.encode(byte_ids), byte_ids).boundaries.sum())
            assert abs(drawn - rate * 80) <= 1
    with pytest.raises(ValueError, match="rate must be at least 0.1, which first bytes alone make, got 0.05"):
        calibrate(segmenter, model, [texts(2, 10)], rate=0.05)
    with pytest.raises(ValueError, match="windows must hold bytes beside the first of each row"):
        calibrate(segmenter, model, [texts(2, 1)])


def test_a_threshold_keeps_its_precision_and_is_saved():
    model, segmenter = build(CASES["entropy-threshold"])
    segmenter.threshold.fill_(math.pi)
    narrow = segmenter.to(torch.bfloat16)
    assert float(narrow.threshold) == math.pi and narrow.threshold.dtype == torch.float64
    assert float(segmenter.state_dict()["threshold"]) == math.pi
