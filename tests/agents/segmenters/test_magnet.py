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

TEXTS = {
    "latin": "The token boundary of a word is where it ends, said nobody; ",
    "devanagari": "भाषा और शब्द के बीच की सीमा कहाँ है, यह कौन जानता है; ",
    "cyrillic": "Граница слова там, где оно кончается, сказал никто; ",
    "other": "言葉の境界はどこにあるのか、誰が知っているのだろう。",
}


def rows_of(length: int) -> tuple[list[str], torch.Tensor]:
    return list(TEXTS), torch.stack([text_to_ids(text * 5)[:length] for text in TEXTS.values()])


def test_each_byte_is_read_by_the_predictor_of_its_script():
    torch.manual_seed(0)
    segmenter = MagnetSegmenter(8, other_rate=0.3, hidden=4).double()
    byte_ids = text_to_ids("1 ab я भz 日")[None]
    states = torch.randn(1, byte_ids.shape[1], 8, dtype=torch.float64)
    scripts = scripts_of(byte_ids)[0].tolist()
    assert set(scripts) == {0, 1, 2, 3}
    segments = segmenter(states, byte_ids)
    for t, script in enumerate(scripts):
        expected = segmenter.predictors[SCRIPTS[script]](states[0, t]).squeeze()
        torch.testing.assert_close(segments.logits[0, t], expected, rtol=0, atol=1e-14)
    # Nor does a predictor learn from other scripts.
    (slope,) = torch.autograd.grad(segments.logits[0, scripts.index(3)], segmenter.predictors["latin"][0].weight)
    assert (slope == 0).all()


def test_a_step_knows_characters_of_four_bytes():
    """A Gothic letter after a Latin one is of no script that is named, once its fourth byte has been read."""
    torch.manual_seed(0)
    segmenter = MagnetSegmenter(8, other_rate=0.3, hidden=4).double()
    byte_ids = text_to_ids("a\U00010348.")[None]
    assert scripts_of(byte_ids)[0].tolist() == [1, 1, 1, 1, 0, 0]
    states = torch.randn(1, 6, 8, dtype=torch.float64)
    whole, state = segmenter(states, byte_ids), segmenter.start(1)
    for t in range(6):
        said, state = segmenter.step(states[:, t], byte_ids[:, t], state)
        torch.testing.assert_close(said.logits, whole.logits[:, t], rtol=0, atol=1e-14)


def test_the_loss_is_the_binomial_of_every_script():
    torch.manual_seed(0)
    segmenter = MagnetSegmenter(8, other_rate=0.3, hidden=4).double()
    byte_ids = torch.stack([text_to_ids("abc де भाषा")[:19], text_to_ids("1, 2: наука a.")[:19]])
    segments = segmenter(torch.randn(2, 19, 8, dtype=torch.float64), byte_ids)
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
    byte_ids = text_to_ids("я" + TEXTS["cyrillic"])[2:42][None]
    prefixed = torch.cat((text_to_ids("я")[None], byte_ids), 1)  # told before the first decision
    uniforms = torch.rand(prefixed.shape, dtype=torch.float64)
    states = model.encode(prefixed)
    ours, theirs = (s(states, prefixed, uniforms=uniforms) for s in (magnet, gumbel))
    assert torch.equal(ours.boundaries[:, 1:], theirs.boundaries[:, 1:])
    torch.testing.assert_close(
        magnet.losses(ours, prefixed, states)["binomial"], gumbel.losses(theirs, prefixed, states)["binomial"]
    )


def test_every_script_reaches_its_rate():
    torch.manual_seed(0)
    names, byte_ids = rows_of(240)
    states = torch.nn.functional.one_hot(byte_ids, 256).float()
    segmenter = MagnetSegmenter(256, other_rate=0.3, hidden=16)
    optimizer = torch.optim.Adam(segmenter.parameters(), lr=0.01)
    for _ in range(80):
        (loss,) = segmenter.losses(segmenter(states, byte_ids), byte_ids, states).values()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        rates = torch.stack([segmenter(states, byte_ids).boundaries.float().mean(1) for _ in range(10)]).mean(0)
    for name, rate in zip(names, rates.tolist(), strict=True):
        assert rate == pytest.approx({**RATES, "other": 0.3}[name], abs=0.04), name
    assert rates[0] > rates[1] + 0.05 and rates[0] > rates[2] + 0.05
