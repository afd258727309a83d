"""Formulas of the papers on a few numbers, worked out by hand or byte by byte in float64."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from rltok_rl.agents.segmenters import (
    BPESegmenter,
    EntropyCombined,
    EntropySpike,
    EntropyThreshold,
    Predictor,
    Segments,
    calibrate,
    make_segmenter,
)
from rltok_rl.agents.segmenters.gumbel import GumbelSegmenter, group_weights
from rltok_rl.agents.segmenters.hnet import HNetSegmenter, confidence

from rltok_rl.functional.boundary_rules import never_twice
from rltok_rl.models import UNet, preset
from rltok_rl.models.mixing import Mixing, pool_tokens
from rltok_rl.models.tokens import token_layout, upsample
from rltok_rl.text import text_to_ids

from .definition import Case, build, texts


def drawn_by(name: str, byte_ids: torch.Tensor, **options) -> torch.Tensor:
    """Boundaries of a rule that looks at bytes and places alone."""
    segmenter = make_segmenter(name, UNet(preset("tiny")), **options)
    return segmenter(torch.zeros(*byte_ids.shape, 1), byte_ids).boundaries


# Rules.


def test_the_papers_own_example_of_shifted_pieces():
    """Appendix D.1: hello|_token|ization has its indicators a byte after each piece; the first byte is forced here."""
    segmenter = BPESegmenter(lambda text: [5, 6, 7])
    ids = text_to_ids("hello_tokenization")[None]
    drawn = segmenter(torch.zeros(1, 18, 1), ids).boundaries[0].int().tolist()
    published = [int(a) for a in "0 0 0 0 0 1 0 0 0 0 0 1 0 0 0 0 0 0".split()]
    assert drawn[1:] == published[1:] and drawn[0] == 1


@pytest.mark.parametrize(
    "rate", [Fraction(1, 5), Fraction(1, 4), Fraction(3, 10), Fraction(1, 3), Fraction(207, 1000), 1]
)
def test_uniform_has_drawn_ceil_r_t_boundaries_after_every_byte(rate):
    drawn = drawn_by("uniform", torch.zeros(1, 500, dtype=torch.int64), rate=float(rate))[0]
    assert drawn.cumsum(0).tolist() == [math.ceil(rate * t) for t in range(1, 501)]


def test_stride_is_megabytes_patch():
    drawn = drawn_by("stride", torch.zeros(1, 40, dtype=torch.int64), stride=8)[0]
    assert drawn.nonzero().flatten().tolist() == [0, 8, 16, 24, 32]


def test_whitespace_of_all_256_bytes():
    pairs = torch.stack((torch.full((256,), 97), torch.arange(256)), 1)
    spaces = {9, 10, 11, 12, 13, 32}
    assert drawn_by("whitespace", pairs)[:, 1].nonzero().flatten().tolist() == sorted(spaces)


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


@pytest.mark.parametrize("num_lags", [0, 1, 8])
@pytest.mark.parametrize("training", [True, False])
def test_the_learned_policys_logits_equal_a_loop(num_lags, training):
    """l_t = base_t + sum_j a_{t-j} lags_{t,j} along its own draws, soft-capped in training alone."""
    model, segmenter = build(Case("learned", model={"num_lags": num_lags}))
    model.train(training)
    byte_ids = texts(2, 30)
    with torch.no_grad():
        states = model.encode(byte_ids)
        segments = segmenter(states, byte_ids, generator=torch.Generator().manual_seed(0))
        base, lags = model.boundary_terms(states)
    assert lags.shape[-1] == num_lags
    for row in range(2):
        for t in range(30):
            earlier = range(1, min(num_lags, t) + 1)
            logit = base[row, t] + sum(lags[row, t, j - 1] for j in earlier if segments.boundaries[row, t - j])
            if training:
                logit = 6 * torch.tanh(logit / 6)
            torch.testing.assert_close(segments.logits[row, t], logit, rtol=0, atol=1e-12)


# Entropies.


class Given(Predictor):
    """Entropies from a list."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__()
        self.rows = torch.tensor(rows, dtype=torch.float64)

    def forward(self, states, byte_ids):
        return self.rows[:, : byte_ids.shape[1]]

    def step(self, states, byte_ids, position, memory):
        return self.rows.gather(1, position[:, None]).squeeze(1)


NATS = [0.1, 2.0, 0.5, 1.4, 1.2, 3.0, 3.5, 1.5]


def places(segmenter, rows: int = 1) -> list[int]:
    byte_ids = torch.zeros(rows, len(NATS), dtype=torch.int64)
    return segmenter(torch.zeros(rows, len(NATS), 1), byte_ids).boundaries[0].nonzero().flatten().tolist()


def test_entropy_rules_on_eight_numbers():
    """Rises are 1.9, -1.5, 0.9, -0.2, 1.8, 0.5, -2.0 after the first byte, which always ends a token."""
    assert places(EntropyThreshold(Given(NATS), target_rate=0.2)) == [0, 1, 3, 5, 6, 7]  # above 1.335 nats
    assert places(EntropyThreshold(Given(NATS), target_rate=0.2, threshold=1.4)) == [0, 1, 5, 6, 7]  # not at it
    monotonic = EntropyThreshold(Given(NATS), target_rate=0.2, threshold=0.6, rule="monotonic")
    assert places(monotonic) == [0, 1, 3, 5]
    monotonic.threshold.fill_(0.5)  # not at it
    assert places(monotonic) == [0, 1, 3, 5]
    assert places(EntropySpike(Given(NATS), lags=1)) == [0, 1, 3, 5, 6]
    assert places(EntropySpike(Given(NATS), lags=2)) == [0, 1, 5, 6]
    assert places(EntropySpike(Given(NATS), lags=4)) == [0, 1, 5, 6]
    # High and risen are 1, 3, 5, 6; 1 follows the first start and 6 follows 5.
    assert places(EntropyCombined(Given(NATS), target_rate=0.2)) == [0, 3, 5]
    assert places(EntropyCombined(Given(NATS), target_rate=0.2, threshold_add=0.6, threshold=1.9)) == [0, 5]
    assert places(EntropyCombined(Given(NATS), target_rate=0.2, threshold_add=0.5, threshold=3.2)) == [0]  # not at it
    assert places(EntropyCombined(Given(NATS), target_rate=0.2, threshold_add=0.4, threshold=3.2)) == [0, 6]


def test_patches_start_where_blt_starts_them():
    """Positions 0 and 1 start patches; a high entropy at i starts one at i + 1, where a token ends here at i."""
    ends = places(EntropyThreshold(Given(NATS), target_rate=0.2))
    starts = {0} | {t + 1 for t in ends}
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


def test_groups_on_six_numbers():
    """Groups close after bytes 2 and 4: means 7/3 and 12; bytes 0 and 1 are served by the null token, byte 5 by 12."""
    states = torch.tensor([[[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]]], dtype=torch.float64)
    soft = torch.tensor([[0, 0, 1, 0, 1, 0]], dtype=torch.float64, requires_grad=True)
    boundaries = torch.tensor([[1, 0, 1, 0, 1, 0]]).bool()
    where = token_layout(boundaries, "padded")
    mixing = Mixing(pooling="mean", pool_weights=group_weights(soft), first_token=torch.tensor([-5.0]).double())
    pooled = pool_tokens(states, where, mixing)
    torch.testing.assert_close(pooled[0, :, 0].detach(), torch.tensor([-5.0, 7 / 3, 12.0], dtype=torch.float64))
    served = upsample(torch.zeros_like(states), pooled.detach(), where)[0, :, 0]
    expected = torch.tensor([-5, -5, 7 / 3, 7 / 3, 12, 12], dtype=torch.float64)
    torch.testing.assert_close(served, expected)
    # A boundary after byte 1 would raise the weight of byte 2 in its group: (4 - 7/3) / 3 = 5/9. One after byte 3
    # raises that of byte 4 among 8 and 16, (16 - 12) / 2 = 2; one after byte 2, of both bytes, -2 + 2 = 0.
    (first,) = torch.autograd.grad(pooled[0, 1, 0], soft, retain_graph=True)
    (second,) = torch.autograd.grad(pooled[0, 2, 0], soft)
    torch.testing.assert_close(first[0], torch.tensor([0, 5 / 9, 0, 0, 0, 0], dtype=torch.float64))
    torch.testing.assert_close(second[0], torch.tensor([0, 0, 0, 2, 0, 0], dtype=torch.float64))


def test_binomial_loss_of_three_in_ten():
    """-log(120 * 0.2^3 * 0.8^7) / 10; the boundary at the first byte is no trial."""
    segmenter = GumbelSegmenter(4, target_rate=0.2, hidden=4)
    soft = torch.tensor([[1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0]], dtype=torch.float64)
    (loss,) = segmenter.losses(Segments(soft.bool(), soft=soft), soft, soft).values()
    assert float(loss) == pytest.approx(-math.log(120 * 0.2**3 * 0.8**7) / 10, abs=1e-12)
    assert float(loss) == pytest.approx(0.160282, abs=1e-6)


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


def test_the_ratio_loss_may_lie_below_one():
    """N = 5, F = 0.1, G = 0.6 give 5/4 (4 * 0.06 + 0.9 * 0.4) = 0.75; F = 1/5 gives 1 whatever G is."""
    segmenter = HNetSegmenter(4, target_rate=0.2)
    probs = torch.full((1, 10), 5 / 9, dtype=torch.float64)
    probs[0, 0] = 1.0  # p_0 = 1 counts: the mean is 0.6
    one = torch.zeros(1, 10, dtype=torch.bool)
    one[0, 0] = True
    (loss,) = segmenter.losses(Segments(one, scores=probs), one, one).values()
    assert float(loss) == pytest.approx(0.75, abs=1e-12)
    one[0, 5] = True
    (loss,) = segmenter.losses(Segments(one, scores=probs), one, one).values()
    assert float(loss) == pytest.approx(1.0, abs=1e-12)
    assert segmenter.coefficients == {"ratio": 0.03}


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
