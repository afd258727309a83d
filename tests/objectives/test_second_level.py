"""The second level's own loss: published, read from rollouts, and enough to bring its rate to the target."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.agents.segmenters import SegmenterActor, make_segmenter
from rltok_rl.envs import ByteBoundaryEnv
from torchrl.envs import EnvBase, check_env_specs

from rltok_rl.data import TextSource
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import forward_flops, matrix_parameters
from rltok_rl.objectives import JointLoss, SecondLevelLoss
from rltok_rl.objectives.base import MissingEntryError
from rltok_rl.objectives.segmented import second_level_cost

from ..each import each
from .conftest import TEXT, make_model, make_rollout

ROUTING = {"second_level": "routing", "num_token_layers": 2}


@pytest.mark.parametrize("real", [12, 7])
def test_the_loss_is_published_and_reads_real_tokens_alone(real):
    """N/(N - 1) ((N - 1) F G + (1 - F)(1 - G)) over tokens."""
    rollout = make_rollout(make_model(**ROUTING))
    rollout["action"] = rollout["action"].masked_fill(rollout["forced"], 0)  # tokens, whatever was asked for
    mask = torch.arange(12).expand(4, 12) < real
    tokens = (rollout["action"].bool() | rollout["forced"]) & mask
    probs = rollout["next", "second_probability"]
    n, f, g = 4, rollout["next", "second_boundary"][tokens].float().mean(), probs.squeeze(-1)[tokens].mean()
    loss = SecondLevelLoss(0.25)
    loss.loss_mask_key = "mask"
    out = loss(rollout.clone(recurse=False).set("mask", mask))
    torch.testing.assert_close(out["loss_second_level"], n / (n - 1) * ((n - 1) * f * g + (1 - f) * (1 - g)))
    torch.testing.assert_close((out["second_rate"], out["second_mean_prob"]), (f, g.detach()))
    slope = torch.autograd.grad(out["loss_second_level"], probs)[0].squeeze(-1)
    assert (slope[~tokens] == 0).all() and slope[tokens].unique().numel() == 1


def test_its_gradient_reaches_below_the_second_level():
    model = make_model(**ROUTING)
    SecondLevelLoss(1 / 3)(make_rollout(model))["loss_second_level"].backward()
    reached = {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert reached == {"embedding", "encoder", "token_layers", "second_level"}
    routing = model.second_level.routing
    assert routing.query.weight.grad.abs().max() > 0 and routing.key.weight.grad.abs().max() > 0
    assert all(p.grad is None for p in model.second_level.layers.parameters())


def test_a_rollout_without_routing_is_refused_by_name():
    for options in ({}, {"second_level": "stride"}):
        with pytest.raises(MissingEntryError, match="next.second_probability' .*second_level='routing'"):
            SecondLevelLoss(1 / 3)(make_rollout(make_model(**options)))
    with pytest.raises(ValueError, match="reduction must be 'mean'"):
        SecondLevelLoss(1 / 3, reduction="sum")
    with pytest.raises(ValueError, match="target must lie strictly between 0 and 1, got 1.0"):
        SecondLevelLoss(1.0)


@each(level=["stride", "routing"], batch_size=[(3,), ()])
@torch.no_grad()
def test_a_stepped_rollout_is_the_parallel_one(level, batch_size):
    """Documents end inside, so that rows start anew; decisions of the second level are one place later."""
    model = make_model(second_level=level, num_token_layers=2).eval()
    source = TextSource(["ab", "a longer one, of words", "x" * 30, TEXT], short_documents="whole")
    env = ByteBoundaryEnv(model, source, num_steps=12, batch_size=batch_size, seed=0)
    rollouts = []
    for roll in (EnvBase.rollout, lambda e, n, p, **o: e.parallel_rollout(p, max_steps=n, **o)):
        env.set_seed(1)
        torch.manual_seed(5)
        rollouts.append(roll(env, 30, LearnedBoundaryActor(model), break_when_any_done=False))
    keys = set(rollouts[0].keys(True, True))
    assert keys == set(rollouts[1].keys(True, True)) and ("next", "second_boundary") in keys
    assert (("next", "second_probability") in keys) == (level == "routing")
    for key in keys:
        a, b = rollouts[0][key], rollouts[1][key]
        assert a.shape == b.shape and a.dtype == b.dtype, key
        exact = not a.dtype.is_floating_point
        torch.testing.assert_close(a, b, rtol=0, atol=0 if exact else 1e-4, msg=lambda m, k=key: f"{k}: {m}")
    tokens = rollouts[1]["action"].bool() | rollouts[1]["forced"]
    drawn = rollouts[1]["next", "second_boundary"]
    going = ~rollouts[1]["next", "done"].squeeze(-1)
    assert (drawn & ~tokens).sum() == 0 and drawn[rollouts[1]["forced"]].all()
    assert torch.equal(rollouts[1]["second_boundary"][..., 1:][going[..., :-1]], drawn[..., :-1][going[..., :-1]])
    check_env_specs(env)


@each(target=[0.2, 0.5])
def test_the_loss_alone_brings_the_rate_to_its_target(target):
    torch.manual_seed(0)
    model = UNet(preset("tiny", num_token_layers=2, second_level="routing", second_rate=target))
    byte_ids = torch.tensor(list((TEXT * 4).encode()))[None, :400]
    boundaries = torch.arange(400)[None] % 3 == 0
    with torch.no_grad():
        states = model.encode(byte_ids)
    optimizer = torch.optim.Adam([*model.token_layers.parameters(), *model.second_level.parameters()], lr=3e-3)
    for _ in range(60):
        said = model.decode_levels(states, boundaries).second
        optimizer.zero_grad()
        second_level_cost(said.boundaries, said.probabilities, boundaries, target).backward()
        optimizer.step()
    rate = said.boundaries.sum() / boundaries.sum()
    assert float(rate) == pytest.approx(target, abs=0.08)


def test_segmented_training_has_both_ratio_losses():
    model = UNet(preset("tiny", second_residual="projection", **ROUTING))
    segmenter = make_segmenter("hnet", model, stages=2, second_rate=0.4)
    rollout = ByteBoundaryEnv(model, TEXT, num_steps=40, batch_size=(3,)).parallel_rollout(SegmenterActor(segmenter))
    loss = JointLoss.of_segmenter(segmenter, model)
    out = loss(rollout)
    losses = {name for name in out.keys() if name.startswith("loss_")}
    assert losses == {"loss_language_model", "loss_early_exit", "loss_ratio", "loss_second_level"}
    drawn, probs = (rollout["next", f"second_{name}"].squeeze(-1) for name in ("boundary", "probability"))
    cost = second_level_cost(drawn, probs, rollout["action"].bool() | rollout["forced"], 0.4)
    torch.testing.assert_close(out["loss_second_level"], 0.03 * cost)
    loss.total(out).backward()
    assert all(p.grad is not None for p in model.second_level.parameters())
    assert "second_level" not in JointLoss.of_segmenter(segmenter, UNet(preset("tiny", second_level="stride"))).terms


def test_flops_of_tokens_of_tokens_are_counted_separately():
    plain, model = UNet(preset("tiny", num_token_layers=2)), UNet(preset("tiny", num_second_layers=3, **ROUTING))
    counted = matrix_parameters(model)
    assert counted["second_level.layers"] == 3 * 16 * 64**2 and counted["second_level.routing"] == 2 * 64**2
    extra = forward_flops(model, 10, 6, num_second=2) - forward_flops(plain, 10, 6)
    assert extra == 2 * (6 * counted["second_level.routing"] + 2 * counted["second_level.layers"])
    assert forward_flops(model, 10, 6) == forward_flops(model, 10, 6, num_second=2)  # at the target rate, 1/3
