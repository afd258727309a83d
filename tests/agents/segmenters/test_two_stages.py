"""H-Net with two stages: requirements of the model, rates, learning rates."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter, read_window, split_stages
from rltok_rl.agents.segmenters.hnet import stage_multipliers

from rltok_rl.models import UNet, preset

from .definition import HNET, ROUTING, texts


def two_level_model(**overrides) -> UNet:
    torch.manual_seed(0)
    return UNet(preset("tiny", **{**HNET, **overrides}))


def test_refusals():
    two = {"stages": 2}
    for config, options, message in [
        ({}, two, "model must have second_level='routing' for segmenter 'hnet' with stages=2, got None"),
        ({"second_level": "stride"}, two, "second_level='routing' .*, got 'stride'"),
        (ROUTING, two, "model must have second_residual='projection' for .*, got 'identity'"),
        (HNET, {**two, "variant": "baseline"}, "model must have second_residual='identity' for .*'projection'"),
        ({**HNET, "num_token_layers": 1}, two, r"num_token_layers=2 at least\), got num_token_layers=1, 1"),
        ({**HNET, "num_lower_layers": 0}, two, "got num_token_layers=2, 0 of them before it"),
        (HNET, {"stages": 3}, r"stages must be one of \[1, 2\], got 3"),
        (HNET, {"second_rate": 0.5}, "second_rate must be left out with stages=1, got 0.5"),
        (HNET, {**two, "second_rate": 1.0}, "second_rate must lie strictly between 0 and 1, or None, got 1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_segmenter("hnet", UNet(preset("tiny", **config)), **options)
    with pytest.raises(ValueError, match="model must have a second level for three stages"):
        split_stages(UNet(preset("tiny")), [], 3)
    with pytest.raises(ValueError, match="widths must have one entry more than chunk_sizes, got 1 and 1"):
        stage_multipliers([6.0], [8])


def test_rates_are_a_third_each_unless_given():
    for config, options, rates in [
        ({}, {"stages": 2}, (1 / 3, 1 / 3)),
        ({"second_rate": 0.5}, {"stages": 2}, (1 / 3, 0.5)),
        ({}, {"stages": 2, "rate": 0.2, "second_rate": 0.4}, (0.2, 0.4)),
        ({}, {}, (0.2, None)),
    ]:
        segmenter = make_segmenter("hnet", two_level_model(**config), **options)
        assert (segmenter.target_rate, segmenter.second_rate) == rates


def stages_of(model, segmenter):
    """The parameters of each stage of a model and its segmenter."""
    parameters = torch.nn.ModuleList([model, segmenter]).parameters()
    return split_stages(model, parameters, len(segmenter.multipliers))


def test_three_learning_rates():
    """Chunks of 3 and 3: 4.6 bytes of a token to 9, 3 and 1 bytes in each stage's chunk."""
    model = two_level_model()
    segmenter = make_segmenter("hnet", model, stages=2)
    expected = [math.sqrt(4.6), math.sqrt(4.6 / 3), math.sqrt(4.6 / 9)]
    assert segmenter.multipliers == pytest.approx(expected)
    members = [{id(p) for p in stage} for stage in stages_of(model, segmenter)]
    everything = {id(p) for m in (model, segmenter) for p in m.parameters()}
    assert set().union(*members) == everything and sum(map(len, members)) == len(everything)
    assert members[2] == {id(p) for p in model.second_level.layers.parameters()}
    inner = [*model.token_layers.parameters(), *model.second_level.routing.parameters()]
    assert members[1] == {id(p) for p in inner}
    wide = two_level_model(token_width=96, second_width=144)
    segmenter = make_segmenter("hnet", wide, stages=2)
    factors = [(4.6 * 144 / 64) ** 0.5, (4.6 / 3 * 144 / 96) ** 0.5, (4.6 / 9) ** 0.5]  # N_GPT D^S / D^s
    assert segmenter.multipliers == pytest.approx(factors)
    stages = stages_of(wide, segmenter)
    pads = {id(wide.token_pad): 1, id(wide.second_level.pad): 2}
    assert {id(p): n for n, stage in enumerate(stages) for p in stage if id(p) in pads} == pads
    assert sum(map(len, stages)) == sum(map(len, members)) + 2
    one_stage = make_segmenter("hnet", wide, rate=1 / 6)
    assert one_stage.multipliers == pytest.approx([(4.6 * 96 / 64) ** 0.5, (4.6 / 6) ** 0.5])
    one_stage = make_segmenter("hnet", model, rate=1 / 6)
    assert one_stage.multipliers == pytest.approx([4.6**0.5, (4.6 / 6) ** 0.5])


def test_each_stage_has_its_boundaries_and_its_gradients():
    """Boundaries of the second stage lie at tokens of the first; next-byte losses reach both routers."""
    model = two_level_model()
    segmenter = make_segmenter("hnet", model, stages=2)
    with torch.no_grad():  # fresh token states are too much alike for a boundary
        model.second_level.routing.key.weight.normal_(std=64**-0.5)
        model.second_level.routing.residual.weight.normal_(std=64**-0.5)
    out = read_window(model, segmenter, texts(2, 60))
    first, second = out.segments.boundaries, out.second.boundaries
    assert not (second & ~first).any() and 2 < int(second.sum()) < int(first.sum()) < 120
    out.final_logits.logsumexp(-1).sum().backward()
    for router in (segmenter, model.second_level.routing):
        for parameter in (router.query.weight, router.key.weight, router.residual.weight):
            assert parameter.grad.abs().max() > 1e-6
