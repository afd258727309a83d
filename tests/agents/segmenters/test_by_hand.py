"""Formulas of the papers on a few numbers, worked out by hand or byte by byte in float64."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from rltok_rl.agents.segmenters import (
    EntropyCombined,
    EntropySpike,
    EntropyThreshold,
    Predictor,
    calibrate,
    make_segmenter,
)
from rltok_rl.agents.segmenters.hnet import HNetSegmenter, confidence

from rltok_rl.functional.boundary_rules import never_twice
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

from .definition import Case, build, texts


def drawn_by(name: str, byte_ids: torch.Tensor, **options) -> torch.Tensor:
    """Boundaries of a rule that looks at bytes and places alone."""
    segmenter = make_segmenter(name, UNet(preset("tiny")), **options)
    return segmenter(torch.zeros(*byte_ids.shape, 1), byte_ids).boundaries


# Rules.


def test_uniform_has_drawn_ceil_r_t_boundaries_after_every_byte():
    for rate in (Fraction(1, 5), Fraction(1, 4), Fraction(3, 10), Fraction(1, 3), Fraction(207, 1000), 1):
        drawn = drawn_by("uniform", torch.zeros(1, 500, dtype=torch.int64), rate=float(rate))[0]
        assert drawn.cumsum(0).tolist() == [math.ceil(rate * t) for t in range(1, 501)], rate


@pytest.mark.parametrize("repeat", [True, False])
def test_spacebyte_of_all_pairs_of_bytes(repeat):
    """A start is a spacelike byte that follows one which is not; its classes are spelt out as in the paper's code."""

    def spacelike(b: int) -> bool:
        letter_or_digit = chr(b) in "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return not letter_or_digit and not 0x80 <= b < 0xC0

    pairs = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    drawn = drawn_by("spacebyte", pairs, repeat=repeat)[:, 1]
    expected = torch.tensor([spacelike(b) and not spacelike(a) for a, b in pairs.tolist()])
    assert torch.equal(drawn, expected)


@pytest.mark.parametrize(("num_lags", "training"), [(0, False), (1, True), (8, True), (8, False)])
def test_the_learned_policys_logits_equal_a_loop(num_lags, training):
    """l_t = base_t + sum_j a_{t-j} lags_{t,j} along its own draws, soft-capped in training alone."""
    model, segmenter = build(Case("learned", model={"num_lags": num_lags}))
    model.train(training)
    byte_ids = texts(2, 20)
    with torch.no_grad():
        states = model.encode(byte_ids)
        segments = segmenter(states, byte_ids, generator=torch.Generator().manual_seed(0))
        base, lags = model.boundary_terms(states)
    assert lags.shape[-1] == num_lags
    for row in range(2):
        for t in range(20):
            earlier = range(1, min(num_lags, t) + 1)
            logit = base[row, t] + sum(lags[row, t, j - 1] for j in earlier if segments.boundaries[row, t - j])
            if training:
                logit = 6 * torch.tanh(logit / 6)
            torch.testing.assert_close(segments.logits[row, t], logit, rtol=0, atol=1e-12)


# Entropies.


class ListedEntropies(Predictor):
    """Entropies from a list."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__()
        self.rows = torch.tensor(rows, dtype=torch.float64)

    def forward(self, states, byte_ids):
        return self.rows[:, : byte_ids.shape[1]]

    def step(self, states, byte_ids, position, memory):
        return self.rows.gather(1, position[:, None]).squeeze(1)


NATS = [0.1, 2.0, 0.5, 1.4, 1.2, 3.0, 3.5, 1.5]


def entropy_places(kind, **options) -> list[int]:
    """Boundaries of a rule on :data:`NATS`."""
    options = options if kind is EntropySpike else {"target_rate": 0.2, **options}
    segmenter = kind(ListedEntropies(NATS), **options)
    byte_ids = torch.zeros(1, len(NATS), dtype=torch.int64)
    return segmenter(torch.zeros(1, len(NATS), 1), byte_ids).boundaries[0].nonzero().flatten().tolist()


def test_entropy_rules_on_eight_numbers():
    """Rises are 1.9, -1.5, 0.9, -0.2, 1.8, 0.5, -2.0 after the first byte, which always ends a token."""
    for kind, options, expected in [
        (EntropyThreshold, {}, [0, 1, 3, 5, 6, 7]),  # above 1.335 nats
        (EntropyThreshold, {"threshold": 1.4}, [0, 1, 5, 6, 7]),  # not at the threshold
        (EntropyThreshold, {"threshold": 0.6, "rule": "monotonic"}, [0, 1, 3, 5]),
        (EntropyThreshold, {"threshold": 0.5, "rule": "monotonic"}, [0, 1, 3, 5]),  # not at the threshold
        (EntropySpike, {"lags": 1}, [0, 1, 3, 5, 6]),
        (EntropySpike, {"lags": 2}, [0, 1, 5, 6]),
        (EntropySpike, {"lags": 4}, [0, 1, 5, 6]),
        (EntropyCombined, {}, [0, 3, 5]),  # candidates 1, 3, 5, 6, but 1 follows the first boundary and 6 follows 5
        (EntropyCombined, {"threshold_add": 0.6, "threshold": 1.9}, [0, 5]),
        (EntropyCombined, {"threshold_add": 0.5, "threshold": 3.2}, [0]),  # not at the threshold
        (EntropyCombined, {"threshold_add": 0.4, "threshold": 3.2}, [0, 6]),
    ]:
        assert entropy_places(kind, **options) == expected, (kind, options)


def test_patches_start_where_blt_starts_them():
    """Positions 0 and 1 start patches; a high entropy at i starts one at i + 1, and ends a token at i here."""
    starts = {0} | {t + 1 for t in entropy_places(EntropyThreshold)}
    assert starts == {0, 1} | {i + 1 for i in range(1, 8) if NATS[i] > 1.335442066192627}


def test_never_twice_equals_a_loop():
    wanted = torch.rand(20, 50) < 0.6
    for row, drawn in zip(wanted, never_twice(wanted), strict=True):
        before, expected = True, [True]
        for want in row[1:].tolist():
            before = want and not before
            expected.append(before)
        assert drawn.tolist() == expected


def test_the_combined_rule_is_calibrated():
    model, segmenter = build(Case("entropy-threshold", {"rate": 0.2, "threshold_add": 0.0}))
    byte_ids = texts(4, 100)
    for rate in (0.1, 0.2, 0.3):
        calibrate(segmenter, model, [byte_ids[:2], byte_ids[2:]], rate=rate)
        drawn = segmenter(model.encode(byte_ids), byte_ids).boundaries
        assert abs(int(drawn.sum()) - rate * 400) <= 3
        assert not (drawn[:, 1:] & drawn[:, :-1]).any()
    with pytest.raises(ValueError, match="rate must be at most .*, which rises of more than threshold_add=0.0 allow"):
        calibrate(segmenter, model, [byte_ids], rate=0.9)


# Nawrot et al.


@pytest.mark.parametrize(
    ("variant", "hidden", "activation", "temperature"),
    [("nawrot", 2048, torch.nn.GELU, 0.5), ("baseline", 64, torch.nn.ReLU, 1.0)],
)
def test_the_published_predictors(variant, hidden, activation, temperature):
    segmenter = make_segmenter("gumbel", UNet(preset("tiny")), variant=variant, rate=0.2)
    first, act, last = segmenter.predictor
    assert (first.in_features, first.out_features, last.out_features) == (64, hidden, 1)
    assert isinstance(act, activation) and segmenter.temperature == temperature
    assert segmenter.coefficients == {"binomial": 1.0} and segmenter.target_rate == 0.2
    assert segmenter.eval().draws_at_random  # as the released code


# H-Net.


def test_routing_and_confidence_on_four_vectors():
    """Right, right, up, left: cosines 1, 0, 0 give p = 1 | 0, 1/2, 1/2, and 1/2 draws no boundary."""
    segmenter = HNetSegmenter(2, target_rate=0.2, norms=False).double()
    states = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]], dtype=torch.float64)
    segments = segmenter(states, torch.zeros(1, 4, dtype=torch.int64))
    torch.testing.assert_close(segments.scores[0], torch.tensor([1.0, 0.0, 0.5, 0.5], dtype=torch.float64))
    assert segments.boundaries[0].tolist() == [True, False, False, False]
    opposite = segmenter(states[:, [0, 3]], torch.zeros(1, 2, dtype=torch.int64))
    assert opposite.scores[0].tolist() == [1.0, 1.0] and opposite.boundaries.all()
    probs = torch.tensor([0.9, 0.2], dtype=torch.float64, requires_grad=True)
    sure = confidence(probs, torch.tensor([True, False]))
    assert sure.tolist() == [1.0, 1.0]
    (slope,) = torch.autograd.grad(sure.sum(), probs)
    assert slope.tolist() == [1.0, -1.0]


def test_the_weakened_variant_adds_bytes_as_they_are():
    model = UNet(preset("tiny"))
    weak, faithful = make_segmenter("hnet", model, variant="baseline"), make_segmenter("hnet", model)
    assert {name for name, _ in weak.named_parameters()} == {"query.weight", "key.weight"}
    assert {name.split(".")[0] for name, _ in faithful.named_parameters()} == {
        "query", "key", "byte_norm", "token_norm", "residual"
    }  # fmt: skip


@torch.no_grad()
def test_a_predictor_of_its_own_learns_from_every_next_byte():
    torch.manual_seed(0)
    model = UNet(preset("tiny")).double()
    predictor = make_segmenter("entropy-threshold", model, rate=0.2, predictor="own").predictor.double()
    ids = text_to_ids("to be or not")[None]
    logits = predictor.model(ids)[0]
    costs = [-float(logits[t].log_softmax(-1)[ids[0, t + 1]]) for t in range(11)]
    assert float(predictor.loss(ids)) == pytest.approx(sum(costs) / 11, rel=1e-9)
    assert predictor.loss(ids[:, :1]) is None
