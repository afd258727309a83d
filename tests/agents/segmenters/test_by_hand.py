"""The policy and entropy rules, against loops and a few numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import (
    EntropyCombined,
    EntropyCombinedReleased,
    EntropySpike,
    EntropyThreshold,
    Predictor,
    calibrate,
)
from rltok_rl.agents.segmenters.byte_model import ByteModel

from rltok_rl.functional.boundary_rules import never_twice
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models import UNet, preset

from .definition import CASES, Case, build, texts


@pytest.mark.parametrize(("num_lags", "training"), [(1, True), (8, True), (8, False)])
def test_the_learned_policys_logits_equal_a_loop(num_lags, training):
    """l_t = base_t + sum_j a_{t-j} lags_{t,j} along its own draws, soft-capped in training alone."""
    model, segmenter = build(Case("learned", model={"num_lags": num_lags}))
    model.train(training)
    byte_ids = texts(2, 20)
    with torch.no_grad():
        states = model.encode(byte_ids)
        segments = segmenter(states, byte_ids, generator=torch.Generator().manual_seed(0))
        base, lags = model.boundary_terms(states)
    for row in range(2):
        for t in range(20):
            earlier = range(1, min(num_lags, t) + 1)
            logit = base[row, t] + sum(lags[row, t, j - 1] for j in earlier if segments.boundaries[row, t - j])
            logit = 6 * torch.tanh(logit / 6) if training else logit
            torch.testing.assert_close(segments.logits[row, t], logit, rtol=0, atol=1e-12)


def test_spacebyte_once_adds_a_token_to_the_byte_that_ends_it_alone():
    """The first byte, a letter, ends one too."""
    model, segmenter = build(CASES["spacebyte, once"])
    byte_ids = torch.tensor([list(b"to be")])
    segments = segmenter(model.encode(byte_ids), byte_ids)
    assert segments.mixing.receive.int().tolist() == segments.boundaries.int().tolist() == [[1, 0, 1, 0, 0]]


def test_spacebyte_with_an_offset_ends_tokens_after_the_second_letter():
    """Or at the space after a shorter word, and the first byte always ends one."""
    model, segmenter = build(CASES["spacebyte, second letter"])
    byte_ids = torch.tensor([list(b"some a tokens")])
    segments = segmenter(model.encode(byte_ids), byte_ids)
    #                                                    s  o  m  e  _  a  _  t  o  k  e  n  s
    assert segments.boundaries.int().tolist() == [[1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]]


class ListedEntropies(Predictor):
    """Entropies from a list."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__()
        self.rows = torch.tensor(rows, dtype=torch.float64)

    def forward(self, states, byte_ids):
        return self.rows[:, : byte_ids.shape[1]]

    def step(self, states, byte_ids, position, memory):
        return self.rows[:, int(position[0])]


NATS = [0.1, 2.0, 0.5, 1.4, 1.2, 3.0, 3.5, 1.5]


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
        target = {} if kind is EntropySpike else {"target_rate": 0.2}
        segmenter = kind(ListedEntropies(NATS), **target, **options)
        drawn = segmenter(torch.zeros(1, 8, 1), torch.zeros(1, 8, dtype=torch.int64)).boundaries[0]
        assert drawn.nonzero().flatten().tolist() == expected, (kind, options)
        state, streamed = segmenter.start(1), []
        for _ in range(8):
            segments, state = segmenter.step(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), state)
            streamed.append(bool(segments.boundaries))
        assert streamed == drawn.tolist(), (kind, options)


def test_a_spike_rises_by_more_than_its_margin():
    for options, expected in [
        ({"lags": 1, "margin": 0.6}, [0, 1, 3, 5]),
        ({"lags": 1, "margin": 0.5}, [0, 1, 3, 5]),  # the rise at 6 is 0.5
        ({"lags": 1, "margin": 0.4}, [0, 1, 3, 5, 6]),
        ({"lags": 2, "margin": 1.85}, [0, 1]),
    ]:
        segmenter = EntropySpike(ListedEntropies(NATS), **options)
        drawn = segmenter(torch.zeros(1, 8, 1), torch.zeros(1, 8, dtype=torch.int64)).boundaries[0]
        assert drawn.nonzero().flatten().tolist() == expected, options
    assert EntropySpike(ListedEntropies(NATS)).lags == 2
    rounding = EntropySpike(ListedEntropies([1.0, 1.00005, 1.00005, 1.0003]))
    drawn = rounding(torch.zeros(1, 4, 1), torch.zeros(1, 4, dtype=torch.int64)).boundaries[0]
    assert drawn.nonzero().flatten().tolist() == [0, 3]


def test_a_predictor_of_its_own_learns_from_every_byte_but_the_first():
    model, segmenter = build(CASES["entropy-threshold"])
    for length in (1, 2, 9):
        byte_ids = texts(3, length)
        segments = segmenter(model.encode(byte_ids), byte_ids)
        losses = segmenter.losses(segments, byte_ids, torch.zeros(3, length, 256))
        assert losses.keys() == ({"predictor"} if length > 1 else set())
        if length > 1:
            scores = segmenter.predictor.model(byte_ids)[:, :-1].log_softmax(-1)
            torch.testing.assert_close(losses["predictor"], -scores.gather(-1, byte_ids[:, 1:, None]).mean())
            entropies = prediction_entropy(segmenter.predictor.model(byte_ids))
            torch.testing.assert_close(segments.scores, entropies)
    exit_model, early = build(CASES["entropy-threshold, early exit"])
    byte_ids = texts(2, 9)
    segments = early(exit_model.encode(byte_ids), byte_ids)
    entropies = prediction_entropy(exit_model.early_logits(exit_model.encode(byte_ids)))
    torch.testing.assert_close(segments.scores, entropies.detach())
    assert early.losses(segments, byte_ids, torch.zeros(2, 9, 256)) == {} and not segments.scores.requires_grad


def test_a_fresh_byte_model_keeps_sizes():
    """Every layer's output is as large as its input, but the head's, whose first predictions are close to uniform."""
    torch.manual_seed(0)
    config = preset("tiny", width=64, norm_eps=0.5, num_encoder_layers=2, byte_mlp_ratio=3, head_bias=True)
    model = ByteModel(config)
    assert float(model.embedding.weight.detach().std()) == pytest.approx(1 / 8, rel=0.05)  # times sqrt(64)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            size = 0.02 if module is model.head.projection else module.in_features**-0.5
            assert float(module.weight.detach().std()) == pytest.approx(size, rel=0.05)
            assert module.bias is None or not module.bias.any()
    assert model.norm.eps == 0.5
    layers = UNet(config).encoder.state_dict()  # of the same shapes
    assert {name: x.shape for name, x in model.layers.state_dict().items()} == {n: x.shape for n, x in layers.items()}


def test_thresholds_are_compared_in_double_precision():
    """An entropy in single precision lies above a threshold that single precision could not tell from it."""
    entropy = float(torch.tensor(1.4))
    for kind, nats in (
        (EntropyThreshold, [0.1, 1.4]),
        (EntropyCombined, [0, 0, 1.4]),
        (EntropyCombinedReleased, [0, 0, 0, 1.4]),
    ):
        for theta, drawn in ((entropy - 1e-9, True), (entropy, False), (entropy + 1e-9, False)):
            predictor = ListedEntropies(nats)
            predictor.rows = predictor.rows.float()
            segmenter = kind(predictor, target_rate=0.2, threshold=theta)
            byte_ids = torch.zeros(1, len(nats), dtype=torch.int64)
            assert bool(segmenter(torch.zeros(1, len(nats), 1), byte_ids).boundaries[0, -1]) == drawn, (kind, theta)


def released_starts(entropies: list[float], theta: float, theta_add: float) -> set[int]:
    """BLT's code in loops: starts are set at once, from a mask in which only the first entry is set."""
    later = entropies[1:]
    mask = [place == 0 for place in range(len(later))]
    starts = [
        mask[place] or (later[place] - later[place - 1] > theta_add and later[place] > theta and not mask[place - 1])
        for place in range(len(later))
    ]
    return {0, 1} | {place + 2 for place, start in enumerate(starts) if start}


def test_the_combined_rule_as_released_equals_its_code():
    generator = torch.Generator().manual_seed(0)
    agreeing = {"paper": 0, "released": 0}
    for number in range(300):
        length = 1 + number % 24
        entropies = 3 * torch.rand(length, generator=generator, dtype=torch.float64)
        theta, theta_add = 1.0 + number % 3 / 2, (0.0, 0.4, -0.3)[number % 7 % 3]
        expected = released_starts(entropies.tolist(), theta, theta_add)
        for fidelity, kind in (("paper", EntropyCombined), ("released", EntropyCombinedReleased)):
            options = {"threshold": theta, "threshold_add": theta_add, "target_rate": 0.2}
            segmenter = kind(ListedEntropies(entropies.tolist()), **options)
            drawn = segmenter(torch.zeros(1, length, 1), torch.zeros(1, length, dtype=torch.int64)).boundaries[0]
            starts = {0} | {place + 1 for place in drawn.nonzero().flatten().tolist()}  # a token ends before a start
            agreeing[fidelity] += starts == expected
    assert agreeing["released"] == 300 and agreeing["paper"] < 200


def test_never_twice_equals_a_loop():
    wanted = torch.rand(20, 50) < 0.6
    for row, drawn in zip(wanted, never_twice(wanted), strict=True):
        before, expected = True, [True]
        for want in row[1:].tolist():
            before = want and not before
            expected.append(before)
        assert drawn.tolist() == expected


def test_calibration_is_exact_on_its_own_text():
    for name in ("entropy-threshold", "entropy-threshold, early exit", "entropy-monotonic"):
        model, segmenter = build(CASES[name])
        for num_rows, rate in ((1, 0.1), (1, 0.5), (4, 0.1), (4, 0.5)):  # first bytes count, and nothing decides them
            byte_ids = texts(num_rows, 80 // num_rows)
            threshold = calibrate(segmenter, model, [byte_ids], rate=rate)
            assert threshold == float(segmenter.threshold)
            drawn = int(segmenter(model.encode(byte_ids), byte_ids).boundaries.sum())
            assert abs(drawn - rate * 80) <= 1
    combined_model, combined = build(Case("entropy-threshold", {"rate": 0.2, "threshold_add": 0.0}))
    byte_ids = texts(4, 100)
    for rate in (0.1, 0.2, 0.3):
        calibrate(combined, combined_model, [byte_ids[:2], byte_ids[2:]], rate=rate)
        drawn = combined(combined_model.encode(byte_ids), byte_ids).boundaries
        assert abs(int(drawn.sum()) - rate * 400) <= 3
        assert not (drawn[:, 1:] & drawn[:, :-1]).any()
    released_model, released = build(CASES["entropy-threshold, released"])
    for rate in (0.1, 0.2, 0.3):
        calibrate(released, released_model, [byte_ids[:2], byte_ids[2:]], rate=rate)
        drawn = released(released_model.encode(byte_ids), byte_ids).boundaries
        assert abs(int(drawn.sum()) - rate * 400) <= 1 and drawn[:, :3].tolist() == [[True, True, False]] * 4
    calibrate(segmenter, model, [texts(2, 10)], rate=0.1)  # what first bytes alone make
    assert segmenter(model.encode(texts(2, 10)), texts(2, 10)).boundaries.sum() == 2
    released.threshold_add = -1e9  # every byte counts as risen
    calibrate(released, released_model, [byte_ids[:1]], rate=1.0)
    assert released(released_model.encode(byte_ids[:1]), byte_ids[:1]).boundaries.sum() == 99  # but the third
    rising = torch.tensor([[-math.inf, *range(1, 8)]])  # scores, of which never two in a row are drawn
    few = torch.tensor([[math.inf, math.inf, -math.inf, 1.0, -math.inf, 2.0]])
    for rule, scores in ((combined, rising), (released, few)):  # files hold finite numbers
        assert -1e31 < rule.threshold_for([scores], 4.0) < 1
    apart = torch.tensor([[-math.inf, -math.inf, 1, -math.inf, 2, -math.inf, 3, -math.inf, 4, -math.inf]])
    for count in range(1, 6):  # no boundary frees another: the threshold that is found is the best
        assert int(never_twice(apart > combined.threshold_for([apart], float(count))).sum()) == count
    with pytest.raises(ValueError, match="rate must be at most 0.5, .* got 0.75"):
        combined.threshold_for([rising], 6.0)
    released.threshold_add = 1e-3
    released.check_risen(19, 20.0, 100)
    for most, count in ((18, 20.0), (18, 19.5)):
        with pytest.raises(ValueError, match=f"rate must be at most {most / 100}, .* got {count / 100}"):
            released.check_risen(most, count, 100)
    for call, words in [
        (lambda: calibrate(released, released_model, [byte_ids], rate=0.01), "at least 0.02, the share of first bytes"),
        (lambda: calibrate(released, released_model, [byte_ids[:, :3]]), "windows must have at least 4 bytes per row"),
        (
            lambda: calibrate(released, released_model, [byte_ids], rate=0.9),
            "whose entropy rises by more than threshold_add=0.001",
        ),
        (lambda: calibrate(segmenter, model, [texts(2, 10)], rate=0.05), "at least 0.1, the share of first bytes"),
        (lambda: calibrate(segmenter, model, [texts(2, 10)], rate=1.5), r"rate must lie in \(0, 1\], got 1.5"),
        (lambda: calibrate(segmenter, model, [texts(2, 1)]), "windows must have at least 2 bytes per row"),
        (
            lambda: calibrate(combined, combined_model, [byte_ids], rate=0.9),
            "rate must be at most .*, the share of bytes whose entropy rises by more than threshold_add=0.0",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_a_threshold_keeps_its_precision_and_is_saved():
    model, segmenter = build(CASES["entropy-threshold"])
    segmenter.threshold.fill_(math.pi)
    narrow = segmenter.to(torch.bfloat16)
    assert float(narrow.threshold) == math.pi and narrow.threshold.dtype == torch.float64
    assert float(segmenter.state_dict()["threshold"]) == math.pi
