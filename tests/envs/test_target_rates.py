"""Environments whose texts have target rates of their own: stepped = parallel, actors and losses follow the rate."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.agents.encoding import EncodingBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from torchrl.envs.utils import check_env_specs
from torchrl.modules import set_recurrent_mode

from rltok_rl.data import TextSource
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import LocalFlips, RateLoss
from rltok_rl.objectives.policy_loss import advantages_of

from .conftest import LONG, SHORT
from .test_parallel import assert_paths_agree

RATES = (0.05, 0.6)


def make(**options) -> UNet:
    torch.manual_seed(0)
    model = UNet(preset("tiny", rate_embedding=True, **options))
    with torch.no_grad():
        model.boundary_head.projection.weight.mul_(20)
        model.rate_embedding.weight.normal_()
    return model


def make_env(model: UNet, *, short: bool = False, rates=RATES, batch_size=(3,)) -> ByteBoundaryEnv:
    source = TextSource(SHORT, short_documents="whole") if short else TextSource(LONG)
    return ByteBoundaryEnv(model, source, num_steps=24, batch_size=batch_size, target_rates=rates, seed=0)


@pytest.mark.parametrize(
    ("short", "rates", "batch_size"), [(False, RATES, (3,)), (True, RATES, ()), (True, RATES, (3,)), (True, None, (3,))]
)
@torch.no_grad()
def test_same_seed_same_rollout(short, rates, batch_size):
    """Longer than an episode, so that texts that begin in the middle draw their rates too."""
    model = make(smoothing="detached")
    env = make_env(model, short=short, rates=rates, batch_size=batch_size)
    stepped = assert_paths_agree(env, LearnedBoundaryActor(model), 37, stop=False)
    seen, starts = stepped["target_rate"].squeeze(-1), stepped["forced"]
    if rates is None:
        assert (seen == torch.tensor(0.2)).all()
    else:
        assert (seen >= 0.05).all() and (seen <= 0.6).all()
        assert len(seen.unique()) == int(starts.sum())  # one rate per text
        changed = seen[..., 1:] != seen[..., :-1]
        assert torch.equal(changed, starts[..., 1:])


def test_rates_are_uniform_in_their_logarithm():
    env = make_env(make(), rates=(0.1, 0.4))
    drawn = env.pick_rates(2000)
    assert 0.1 <= drawn.min() and drawn.max() <= 0.4
    assert abs(float((drawn < 0.2).float().mean()) - 0.5) < 0.05
    assert make_env(make(), rates=(0.3, 0.3)).pick_rates(2).tolist() == pytest.approx([0.3, 0.3])


def test_specs_hold():
    check_env_specs(make_env(make()))


def test_texts_are_those_of_an_environment_without_rates():
    """The first texts of a seed stay: a rate is drawn after the places."""
    model = make()
    plain, rated = make_env(model, rates=None), make_env(model)
    assert torch.equal(plain.parallel_rollout()["byte"], rated.parallel_rollout()["byte"])
    given = rated.parallel_rollout(text=["abcdef"] * 3)
    assert len(given["target_rate"].unique()) > 1


@torch.no_grad()
def test_actors_score_what_was_drawn():
    """From stored states, and from bytes."""
    model = make()
    rollout = make_env(model, short=True).parallel_rollout(max_steps=37)
    for actor in (LearnedBoundaryActor(model), EncodingBoundaryActor(model)):
        with set_recurrent_mode(True):
            found = actor.get_dist(rollout.clone()).logits
        torch.testing.assert_close(found, rollout["logits"], rtol=0, atol=1e-4)
    fixed = LearnedBoundaryActor(model, target_rate=0.3).get_dist(rollout.exclude("target_rate")).logits
    other = rollout.clone().set("target_rate", torch.full_like(rollout["target_rate"], 0.3))
    torch.testing.assert_close(fixed, LearnedBoundaryActor(model).get_dist(other).logits)


def test_rollouts_of_several_processes_are_parts_of_one():
    model = make()
    whole = make_env(model, short=True, batch_size=(4,)).parallel_rollout(generator=torch.Generator().manual_seed(3))
    for index in range(2):
        env = make_env(model, short=True, batch_size=(2,))
        part = env.parallel_rollout(generator=torch.Generator().manual_seed(3), part=(index, 2))
        assert torch.equal(part["target_rate"], whole["target_rate"][2 * index : 2 * index + 2])


def test_flips_are_tried_at_the_rate_of_their_row():
    """Rows of other rates in the batch change nothing in a row's advantages."""
    model, found = make(smoothing="detached"), []
    with torch.no_grad():
        rollout = make_env(model).parallel_rollout()
    for rows in (rollout, rollout.clone()):
        if found:
            rows["target_rate"][1:] = 0.5
        flips = LocalFlips(model, gamma=0.9, num_flips=1, span=4, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found.append(advantages_of(rows, "advantage", flips)[0]["advantage"])
    torch.testing.assert_close(found[0][0], found[1][0])
    assert (found[0][1:] - found[1][1:]).abs().max() > 1e-4


def test_two_rates_are_learned_in_one_model():
    """The rate loss alone, from a policy that is sure of 0.8 whatever it is asked: rows come to 0.1 and 0.5."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", rate_embedding=True))
    model.boundary_head.forward = _without_bias(model)
    env = make_env(model, batch_size=(8,))
    env.pick_rates = lambda num_rows: torch.tensor([0.1, 0.5]).repeat(num_rows // 2)
    loss = RateLoss(0.2)
    adam = torch.optim.Adam([*model.encoder.parameters(), *model.boundary_head.parameters()], lr=0.01)
    adam.add_param_group({"params": [model.rate_embedding.weight], "lr": 0.1})
    for _ in range(50):
        adam.zero_grad()
        loss(env.parallel_rollout())["loss_rate"].backward()
        adam.step()
    with torch.no_grad():
        probs = env.parallel_rollout()["logits"][:, 1:].sigmoid().mean(1)
    held = probs.view(4, 2).mean(0)  # rows with one target are held to it together
    assert held[0] < 0.2 and 0.4 < held[1] < 0.6  # a policy that is told nothing would hold 0.3 for both


def _without_bias(model: UNet):
    """The boundary head with a bias of 1.4 for every rate, so that the embedding alone can tell rates apart."""
    forward = model.boundary_head.forward
    return lambda states, offset=None: forward(states, torch.full_like(offset, 1.4))


def test_refusals(model):
    rated = make()
    for rates in ((0.4, 0.1), (0.0, 0.1), (0.1, 1.0), (0.1,), 0.1, "ab", ("0.1", 0.2)):
        error = ValueError if rates in ((0.4, 0.1), (0.0, 0.1), (0.1, 1.0)) else TypeError
        with pytest.raises(error, match=r"target_rates must be \(low, high\) with 0 < low <= high < 1, got"):
            make_env(rated, rates=rates)
    with pytest.raises(ValueError, match=r"target_rates must be None where the model has one rate .*got \(0.05, 0.6\)"):
        make_env(model)
    with pytest.raises(ValueError, match="target_rate must be left out where the model has one rate"):
        LearnedBoundaryActor(model, target_rate=0.3)
