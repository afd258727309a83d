"""Group-relative policy gradients at an exact rate, against enumeration of all strings in float64."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import Segments, make_segmenter, read_window
from rltok_rl.agents.segmenters.grouped import group_advantages

from rltok_rl.data import RepeatedSource, TextSource
from rltok_rl.diagnostics.enumeration import boundary_strings
from rltok_rl.functional.budget import budget_offsets, string_log_prob
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

LENGTH, RATE = 6, 0.5


def own_losses(model, segmenter, byte_ids, **options):
    """The segmenter's losses of a forward pass."""
    out = read_window(model, segmenter, byte_ids, **options)
    return segmenter.losses(out.segments, byte_ids, out.final_logits)


class World:
    """A tiny model, its policy, and all strings of one text with their probabilities and returns."""

    def __init__(self, advantage: str = "centred", **options):
        torch.manual_seed(0)
        self.model = UNet(preset("tiny")).double()
        options = {"rate": RATE, "block": LENGTH, "group_size": 2, "advantage": advantage, **options}
        self.segmenter = make_segmenter("grouped", self.model, **options)
        with torch.no_grad():  # a policy and predictions that differ from byte to byte
            for parameter in [*self.segmenter.parameters(), *self.model.parameters()]:
                parameter.add_(0.2 * torch.randn_like(parameter))
        self.text = text_to_ids("to be,")
        strings = boundary_strings(LENGTH)
        self.strings = strings[strings.sum(-1) == 3]  # ceil(0.5 * 6)
        self.byte_ids = self.text.expand(len(self.strings), -1)
        with torch.no_grad():
            states = self.model.encode(self.byte_ids)
            self.final = self.model.final_logits(self.model.decode(states, self.strings))
        self.returns = next_byte_log_prob(self.final, self.byte_ids).mean(-1)
        self.parameters = list(self.segmenter.policy.parameters())

    def logits(self):
        """[n, T] policy logits with the count's offsets, along every string."""
        alone = self.segmenter.policy(self.model.encode(self.text[None]).detach()).expand(len(self.strings), -1)
        return alone + budget_offsets(self.strings, RATE, LENGTH)


@pytest.mark.parametrize(("advantage", "factor"), [("leave_one_out", 1.0), ("centred", 0.5)])
def test_the_expected_gradient_is_exact(advantage, factor):
    """The losses of all pairs of strings by their probabilities; (g - 1)/g if the mean holds the row itself."""
    world = World(advantage)
    assert float(world.returns.std()) > 1e-3
    logits = world.logits()
    probs = string_log_prob(logits, world.strings).sum(-1).exp()
    assert float(probs.detach().sum()) == pytest.approx(1.0, abs=1e-12)
    exact = torch.autograd.grad(-(probs * world.returns).sum(), world.parameters, retain_graph=True)
    expected, weights, number = 0.0, probs.detach(), len(world.strings)
    for pair in torch.cartesian_prod(torch.arange(number), torch.arange(number)):
        segments = Segments(world.strings[pair], logits=logits[pair])
        (loss,) = world.segmenter.losses(segments, world.byte_ids[pair], world.final[pair]).values()
        expected = expected + weights[pair].prod() * loss
    slopes = torch.autograd.grad(expected, world.parameters)
    torch.testing.assert_close(slopes, tuple(factor * slope for slope in exact), rtol=0, atol=1e-12)
    assert max(float(slope.abs().max()) for slope in exact) > 1e-6


def test_the_last_decision_learns_nothing():
    """It affects only the byte after the window."""
    world = World()
    logits = torch.zeros(2, LENGTH, dtype=torch.float64, requires_grad=True)
    segments = Segments(world.strings[:2], logits=logits)
    world.segmenter.losses(segments, world.byte_ids[:2], world.final[:2])["policy"].backward()
    assert logits.grad[:, :-1].all() and not logits.grad[:, -1].any()


def test_forward_draws_with_the_probabilities_that_it_learns_from():
    world = World()
    byte_ids = world.text.expand(64, -1)
    segments = world.segmenter(world.model.encode(byte_ids), byte_ids)
    for row in range(64):
        (number,) = (world.strings == segments.boundaries[row]).all(-1).nonzero().tolist()
        torch.testing.assert_close(segments.logits[row], world.logits()[number[0]], rtol=0, atol=1e-12)


def test_advantages_by_hand():
    returns = torch.tensor([1.0, 2.0, 6.0, -3.0, -3.0, -3.0], dtype=torch.float64)
    centred = torch.tensor([-2.0, -1.0, 3.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for scale in (1, 1000):
        for advantage, expected in [
            ("centred", scale * centred),
            ("leave_one_out", 1.5 * scale * centred),
            ("normalised", scale * centred / (scale * (14 / 3) ** 0.5 + 1e-4)),
        ]:
            torch.testing.assert_close(group_advantages(scale * returns, 3, advantage), expected)
    small = returns * 1e-4 / (14 / 3) ** 0.5  # its spread counts half
    torch.testing.assert_close(group_advantages(small, 3, "normalised"), centred / (14 / 3) ** 0.5 / 2)


def test_returns_are_constants_and_a_fresh_policy_prefers_no_string():
    model = UNet(preset("tiny", width=16))
    segmenter = make_segmenter("grouped", model, group_size=2, block=6, rate=RATE)
    byte_ids = text_to_ids("to be,").expand(4, -1)
    states = model.encode(byte_ids)
    assert (segmenter.policy(states) == 0).all()
    final = torch.randn(4, 6, 256, requires_grad=True)
    segmenter.losses(segmenter(states, byte_ids), byte_ids, final)["policy"].backward()
    assert final.grad is None and model.embedding.weight.grad is None
    assert segmenter.policy[-1].weight.grad.any()


def test_the_gradient_stays_out_of_the_encoder_unless_asked():
    for detached in (True, False):
        world = World(detached=detached)
        byte_ids = world.text.expand(4, -1)
        uniforms = torch.tensor([0.001, 0.999]).repeat(2)[:, None].expand(4, 6)  # early boundaries and late ones
        own_losses(world.model, world.segmenter, byte_ids, uniforms=uniforms)["policy"].backward()
        assert (world.model.embedding.weight.grad is None) == detached
        assert world.segmenter.policy[0].weight.grad.abs().max() > 0
        assert all(p.grad is None for p in world.model.token_layers.parameters())  # returns are constants


def test_groups_are_needed_in_training_only():
    model = UNet(preset("tiny"))
    source = RepeatedSource(TextSource("to be, or not to be, that is the question"), times=3)
    windows = source.draw(6, 32, torch.Generator().manual_seed(0)).byte_ids
    assert not torch.equal(windows[0], windows[3])
    segmenter = make_segmenter("grouped", model, group_size=3, block=8, evaluation="round")
    assert own_losses(model, segmenter, windows)["policy"].requires_grad
    segmenter.eval()
    assert own_losses(model, segmenter, windows[2:4]) == {}
    counts = segmenter(model.encode(windows), windows).boundaries.view(6, 4, 8).sum(-1)
    assert (counts == 2).all()  # ceil(0.2 * 8)


def test_refusals():
    model = UNet(preset("tiny"))
    segmenter = make_segmenter("grouped", model, group_size=2)
    for rows, message in [
        ([[0] * 9] * 3, "byte_ids must hold whole groups of group_size=2 rows .* got 3 rows"),
        ([[1] * 9, [1] * 9, [1] * 9, [2] * 9], "byte_ids must repeat one text in every group .* got others in group 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            own_losses(model, segmenter, torch.tensor(rows))
