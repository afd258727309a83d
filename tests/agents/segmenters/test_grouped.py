"""Group-relative policy gradients at an exact rate, against enumeration of all strings in float64."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import GroupedSegmenter, Segments, make_segmenter
from rltok_rl.agents.segmenters.grouped import group_advantages

from rltok_rl.data import RepeatedSource, TextSource
from rltok_rl.diagnostics.enumeration import boundary_strings
from rltok_rl.functional.budget import budget_offsets, string_log_prob
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.objectives.segmented import segmented_losses
from rltok_rl.text import text_to_ids

LENGTH, RATE = 6, 0.5


class World:
    """A tiny model, its policy, and all strings of one text with their probabilities and returns."""

    def __init__(self, advantage: str, **options):
        torch.manual_seed(0)
        self.model = UNet(preset("tiny")).double()
        self.segmenter = make_segmenter(
            "grouped", self.model, rate=RATE, block=LENGTH, group_size=2, advantage=advantage, **options
        )
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
        states = self.model.encode(self.text[None])
        alone = self.segmenter._logits(states).expand(len(self.strings), -1)
        return alone + budget_offsets(self.strings, RATE, LENGTH)

    def exact(self):
        """Gradient of the expected cost in nats per byte."""
        probs = string_log_prob(self.logits(), self.strings).sum(-1).exp()
        assert float(probs.detach().sum()) == pytest.approx(1.0, abs=1e-12)
        return torch.autograd.grad(-(probs * self.returns).sum(), self.parameters)

    def expected(self):
        """The loss of every pair of strings, weighed by how likely the pair is."""
        total = [torch.zeros_like(p) for p in self.parameters]
        logits = self.logits()
        probs = string_log_prob(logits, self.strings).sum(-1).exp().detach()
        for i in range(len(self.strings)):
            for j in range(len(self.strings)):
                pair = torch.tensor([i, j])
                segments = Segments(self.strings[pair], logits=logits[pair])
                (loss,) = self.segmenter.losses(segments, self.byte_ids[pair], self.final[pair]).values()
                slopes = torch.autograd.grad(loss, self.parameters, retain_graph=True)
                for sum_, slope in zip(total, slopes, strict=True):
                    sum_ += probs[i] * probs[j] * slope
        return total


@pytest.mark.parametrize(("advantage", "factor"), [("leave_one_out", 1.0), ("centred", 0.5)])
def test_the_expected_gradient_is_exact(advantage, factor):
    """Up to (g - 1)/g where the mean holds the row itself."""
    world = World(advantage)
    assert float(world.returns.std()) > 1e-3
    for found, exact in zip(world.expected(), world.exact(), strict=True):
        torch.testing.assert_close(found, factor * exact, rtol=0, atol=1e-12)
    assert max(float(g.abs().max()) for g in world.exact()) > 1e-6


def test_forward_draws_with_the_probabilities_that_it_learns_from():
    world = World("centred")
    byte_ids = world.text.expand(64, -1)
    segments = world.segmenter(world.model.encode(byte_ids), byte_ids)
    for row in range(64):
        (number,) = (world.strings == segments.boundaries[row]).all(-1).nonzero().tolist()
        torch.testing.assert_close(segments.logits[row], world.logits()[number[0]], rtol=0, atol=1e-12)


def test_advantages_by_hand():
    returns = torch.tensor([1.0, 2.0, 6.0, -3.0, -3.0, -3.0], dtype=torch.float64)
    centred = torch.tensor([-2.0, -1.0, 3.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(group_advantages(returns, 3, "centred"), centred)
    torch.testing.assert_close(group_advantages(returns, 3, "leave_one_out"), centred * 1.5)
    spread = (14 / 3) ** 0.5
    normalised = group_advantages(returns, 3, "normalised", eps=0.0).nan_to_num()
    torch.testing.assert_close(normalised, centred / spread)
    torch.testing.assert_close(group_advantages(1000 * returns, 3, "normalised", eps=0.0).nan_to_num(), normalised)


def test_a_new_policy_is_selection_sampling():
    torch.manual_seed(1)
    model = UNet(preset("tiny")).double()
    byte_ids = text_to_ids("to be, or not to be, that is the")[None].repeat(8, 1)
    uniforms = torch.rand(byte_ids.shape, dtype=torch.float64)
    drawn = [
        make_segmenter(name, model, rate=0.25, block=16)(model.encode(byte_ids), byte_ids, uniforms=uniforms).boundaries
        for name in ("grouped", "random")
    ]
    assert torch.equal(*drawn)


def test_the_gradient_stays_out_of_the_encoder_unless_asked():
    for detached in (True, False):
        world = World("centred", detached=detached)
        byte_ids = world.text.expand(4, -1)
        uniforms = torch.tensor([0.001, 0.999]).repeat(2)[:, None].expand(4, 6)  # early boundaries and late ones
        windows = torch.nn.functional.pad(byte_ids, (0, 1), value=32)
        out = segmented_losses(world.model, world.segmenter, windows, uniforms=uniforms)
        out.losses["loss_policy"].backward()
        assert (world.model.embedding.weight.grad is None) == detached
        assert world.segmenter.policy[0].weight.grad.abs().max() > 0
        assert all(p.grad is None for p in world.model.token_layers.parameters())  # returns are constants


def test_the_policy_learns_where_boundaries_help():
    """Returns that count boundaries at spaces: after some updates most are there, and their number never changed."""
    torch.manual_seed(0)
    text = b"to be or not to be so"
    byte_ids = torch.tensor([list(text)]).repeat(16, 1)
    states = torch.nn.functional.one_hot(byte_ids, 256).float()
    segmenter = GroupedSegmenter(256, target_rate=7 / 21, block=21, group_size=16, hidden=16)
    optimizer = torch.optim.Adam(segmenter.parameters(), lr=0.02)
    spaces = (byte_ids == 32).float()
    hits = []
    for _ in range(100):
        segments = segmenter(states, byte_ids)
        assert (segments.boundaries.sum(1) == 7).all()
        found = (segments.boundaries * spaces).sum(1)
        hits.append(float(found.mean()))
        # Logits that make the next byte the likelier, the more spaces were found.
        following = torch.nn.functional.one_hot(byte_ids.roll(-1, 1), 256)
        sure = 0.7 * found[:, None, None] * following
        (loss,) = segmenter.losses(segments, byte_ids, sure).values()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert hits[0] < 3 and sum(hits[-10:]) / 10 > 4.5  # of 6 spaces


def test_repeated_windows_are_groups():
    source = RepeatedSource(TextSource("to be, or not to be, that is the question"), times=3)
    windows = source.draw(6, 17, torch.Generator().manual_seed(0)).byte_ids
    model = UNet(preset("tiny"))
    out = segmented_losses(model, make_segmenter("grouped", model, group_size=3, block=8), windows)
    assert out.losses["loss_policy"].requires_grad
    assert not torch.equal(windows[0], windows[3])


def test_evaluation_needs_no_groups():
    model = UNet(preset("tiny"))
    byte_ids = torch.randint(256, (3, 33))
    segmenter = make_segmenter("grouped", model, evaluation="round", block=8).eval()
    assert set(segmented_losses(model, segmenter, byte_ids).losses) == {"loss_language_model", "loss_early_exit"}
    counts = segmenter(model.encode(byte_ids[:, :32]), byte_ids[:, :32]).boundaries.view(3, 4, 8).sum(-1)
    assert (counts == 2).all()  # ceil(0.2 * 8)


def test_refusals():
    model = UNet(preset("tiny"))
    segmenter = make_segmenter("grouped", model, group_size=2)
    for rows, message in [
        ([[0] * 9] * 3, "byte_ids must hold whole groups of group_size=2 rows .* got 3 rows"),
        ([[1] * 9, [1] * 9, [1] * 9, [2] * 9], "byte_ids must repeat one text in every group .* got others in group 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            segmented_losses(model, segmenter, torch.tensor(rows))
