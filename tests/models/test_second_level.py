"""Tokens of tokens: their decisions, and gradients equal to those of the slow definition.

test_unet.py, test_incremental.py, test_packing.py and test_textbook.py hold for them too.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltok_rl.models import UNet, level, preset
from rltok_rl.models.incremental import decide, observe
from rltok_rl.models.tokens import token_layout

from ..each import each
from .conftest import LEVELS, loss_and_gradients, mixed_boundaries, slopes
from .textbook import textbook_forward


@each(name=LEVELS, layout=["padded", "packed"])
@torch.no_grad()
def test_decisions_are_at_bytes_that_close_tokens(name, layout, build, text):
    model, boundaries = build(**LEVELS[name]), mixed_boundaries(4, 24)
    second = model(text(4, 24), boundaries, layout=layout).second
    assert second.boundaries[:, 0].all() and not (second.boundaries & ~boundaries).any()
    if model.config.second_level == "stride":
        assert second.probabilities is None
        assert torch.equal(second.boundaries.sum(1), -(-boundaries.sum(1) // model.config.second_stride))
    else:
        assert (second.probabilities[:, 0] == 1).all()
        assert torch.equal(second.probabilities > 0.5, second.boundaries)
        assert torch.equal(second.probabilities > 0, boundaries)


@each(name=LEVELS)
@torch.no_grad()
def test_steps_without_tokens_decide_nothing(name, build, text):
    model, byte_ids = build(**LEVELS[name]), text(2, 3)
    cache = model.new_cache(2)
    for t, drawn in enumerate(([1, 1], [0, 0], [0, 1])):
        observe(model, cache, byte_ids[:, t])
        said = decide(model, cache, torch.tensor(drawn)).second
        assert not said.boundaries[torch.tensor(drawn) == 0].any()
        assert said.probabilities is None or (said.probabilities > 0).tolist() == [bool(d) for d in drawn]


@each(name=LEVELS)
def test_values_and_gradients_equal_the_textbook(name, build, text):
    """Token by token in loops, in float64, with the definition of straight-through parts."""
    model, byte_ids, boundaries = build(**LEVELS[name]).double(), text(3, 18), mixed_boundaries(3, 18)
    expected = textbook_forward(model, byte_ids, boundaries)["final_logits"]
    gradients = loss_and_gradients(model, expected)
    for layout in ("padded", "packed"):
        logits = model(byte_ids, boundaries, layout=layout).final_logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)  # the library's rotary angles are float32
        found = loss_and_gradients(model, logits)
        assert found.keys() == gradients.keys()
        for parameter, grad in found.items():
            assert grad.abs().max() > 0, parameter
            torch.testing.assert_close(grad, gradients[parameter], rtol=1e-4, atol=1e-3)


@each(residual=["identity", "projection"])
def test_straight_through_gradients_are_those_of_the_confidence(residual, build, text):
    """With decisions and the values of c fixed, 1 + c - c_0 is a function whose finite differences are the gradient."""
    model = build(second_level="routing", second_residual=residual).double()
    byte_ids, boundaries = text(2, 20), mixed_boundaries(2, 20)
    direction, fixed = torch.randn(2, 20, 256, dtype=torch.float64), []

    def frozen(probs: Tensor, drawn: Tensor) -> Tensor:
        sure = torch.where(drawn, probs, 1 - probs)
        fixed.append(sure.detach())
        return 1 + sure - fixed[0]

    router = model.second_level.routing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level, "confidence", frozen)
        slope, difference = slopes(
            lambda: (model(byte_ids, boundaries).final_logits * direction).sum(),
            [router.query.weight, router.key.weight],
            step=1e-4,
        )
    assert slope.abs() > 1e-3
    torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-8)


def test_models_without_a_second_level_have_no_trace_of_it(text):
    plain = UNet(preset("tiny", num_token_layers=2))
    assert not [name for name in plain.state_dict() if "second" in name]
    assert plain(text(2, 9)).second is None and plain.new_cache(2).second is None


@torch.no_grad()
def test_routing_starts_as_the_cosine_of_neighbours_and_half_draws_no_boundary():
    """A token at right angles to the one before, in a window and in a step."""
    model = UNet(preset("tiny", second_level="routing", second_residual="projection", num_token_layers=2))
    router = model.second_level.routing
    assert torch.equal(router.query.weight, torch.eye(64)) and torch.equal(router.key.weight, torch.eye(64))
    assert not router.residual.weight.any() and not router.residual.bias.any()
    states = torch.eye(64)[:2]  # [S = 2, D]
    _, window = model.second_level(states[None], token_layout(torch.ones(1, 2, dtype=torch.bool)))
    assert window.probabilities.tolist() == [[1.0, 0.5]] and window.boundaries.tolist() == [[True, False]]
    cache = model.new_cache(1)
    for s, drawn in enumerate((True, False)):
        number = torch.tensor([s])
        _, step = model.second_level.step(cache.second, torch.tensor([0]), number, number, states[s : s + 1])
        assert step.boundaries.tolist() == [drawn] and step.probabilities.tolist() == [1.0 if drawn else 0.5]
