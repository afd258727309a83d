"""One predictor per script: routed by bytes already read, each at the rate of its script."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.agents.segmenters.magnet import RATES, MagnetSegmenter

from rltok_rl.functional.scripts import SCRIPTS, scripts_of
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

from .definition import of_width

CYRILLIC = "яГраница слова там, где оно кончается, сказал никто; "


@pytest.fixture
def segmenter():
    torch.manual_seed(0)
    return MagnetSegmenter(of_width(8), rate=0.3, hidden=4).double()


def random_states(byte_ids):
    return torch.randn(*byte_ids.shape, 8, dtype=torch.float64)


def test_each_byte_is_read_by_the_predictor_of_its_script(segmenter):
    byte_ids = text_to_ids("1 ab я भz 日")[None]
    states, scripts = random_states(byte_ids), scripts_of(byte_ids)[0].tolist()
    assert set(scripts) == {0, 1, 2, 3}
    segments = segmenter(states, byte_ids)
    for t, script in enumerate(scripts):
        expected = segmenter.predictors[SCRIPTS[script]](states[0, t])
        torch.testing.assert_close(segments.logits[0, t], expected, rtol=0, atol=1e-14)
    # Nor does a predictor learn from other scripts.
    (slope,) = torch.autograd.grad(segments.logits[0, scripts.index(3)], segmenter.predictors["latin"][0].weight)
    assert (slope == 0).all()


def test_a_step_knows_characters_of_four_bytes(segmenter):
    """A Gothic letter after a Latin one is of no script that is named, once its fourth byte has been read."""
    byte_ids = text_to_ids("1a\U00010348.")[None]
    assert scripts_of(byte_ids)[0].tolist() == [0, 1, 1, 1, 1, 0, 0]
    states, state = random_states(byte_ids), segmenter.start(1)
    whole = segmenter(states, byte_ids)
    for t in range(7):
        step, state = segmenter.step(states[:, t], byte_ids[:, t], state)
        torch.testing.assert_close(step.logits, whole.logits[:, t], rtol=0, atol=1e-14)


def test_the_loss_is_the_binomial_of_every_script(segmenter):
    byte_ids = torch.stack([text_to_ids("a, 2 भाषा де")[:19], text_to_ids("1, 2: наука a.")[:19]])
    segments = segmenter(random_states(byte_ids), byte_ids)
    (loss,) = segmenter.losses(segments, byte_ids, byte_ids).values()
    rates = {"other": 0.3, "latin": 0.2, "devanagari": 0.08, "cyrillic": 0.1}
    total = 0.0
    for row in range(2):
        scripts = scripts_of(byte_ids)[row, 1:].tolist()
        for number, name in enumerate(SCRIPTS):
            n = scripts.count(number)
            k = sum(bool(a) for a, s in zip(segments.boundaries[row, 1:], scripts, strict=True) if s == number)
            total -= math.log(math.comb(n, k) * rates[name] ** k * (1 - rates[name]) ** (n - k)) / 18
    assert float(loss.detach()) == pytest.approx(total / 2, rel=1e-9)


def test_one_script_alone_is_the_gumbel_segmenter():
    torch.manual_seed(0)
    model = UNet(preset("tiny")).double()
    magnet = make_segmenter("magnet", model, hidden=16)
    gumbel = make_segmenter("gumbel", model, hidden=16, rate=RATES["cyrillic"])
    gumbel.predictor.load_state_dict(magnet.predictors["cyrillic"].state_dict())
    gumbel.tokens.load_state_dict(magnet.tokens.state_dict())
    byte_ids = text_to_ids(CYRILLIC)[:42][None]
    uniforms, states = torch.rand(byte_ids.shape, dtype=torch.float64), model.encode(byte_ids)
    ours, theirs = (s(states, byte_ids, uniforms=uniforms) for s in (magnet, gumbel))
    assert torch.equal(ours.boundaries[:, 1:], theirs.boundaries[:, 1:])
    losses = [s.losses(x, byte_ids, states)["binomial"] for s, x in ((magnet, ours), (gumbel, theirs))]
    torch.testing.assert_close(*losses)
    pairs = zip(losses, (magnet.predictors["cyrillic"], gumbel.predictor), strict=True)
    slopes = [torch.autograd.grad(loss, predictor.parameters(), retain_graph=True) for loss, predictor in pairs]
    torch.testing.assert_close(*slopes)
    assert slopes[0][0].abs().max() > 1e-6
