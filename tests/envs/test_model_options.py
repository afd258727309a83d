"""Environments of models with the options of Appendix C, and of models with target rates."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, RandomActor, WhitespaceActor
from rltok_rl.agents.encoding import EncodingBoundaryActor
from rltok_rl.agents.segmenters import SegmenterActor, make_segmenter
from rltok_rl.envs import ByteBoundaryEnv
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs
from torchrl.modules import set_recurrent_mode

from rltok_rl.data import TextSource
from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import LocalFlips, RateLoss
from rltok_rl.objectives.policy_loss import advantages_of

from ..each import each, refused
from .conftest import LONG, SHORT
from .test_parallel import assert_paths_agree, assert_same_rollout, step_through

OPTIONS = {
    "smoothing": {"smoothing": "detached"},
    "all": {
        "pooling": "attention",
        "upsampling": "attention",
        "smoothing": "straight_through",
        "ngram_sizes": (2, 5),
        "ngram_buckets": 40,
    },
}
RATES = (0.05, 0.6)


def make(**options) -> UNet:
    torch.manual_seed(0)
    model = UNet(preset("tiny", **options))  # in training mode: probabilities are those of capped logits
    with torch.no_grad():
        model.boundary_head.projection.weight.mul_(20)
        if model.config.rate_embedding:
            model.rate_embedding.weight.normal_()
    return model


def over(model: UNet, documents=LONG, batch_size=(3,), **options) -> ByteBoundaryEnv:
    source = TextSource(documents, short_documents="whole")
    return ByteBoundaryEnv(model, source, num_steps=24, batch_size=batch_size, seed=0, **options)


def rated(model: UNet, documents=LONG, rates=RATES, **options) -> ByteBoundaryEnv:
    return over(model, documents, target_rates=rates, **options)


@each(name=OPTIONS)
def test_options_are_the_same_stepped_enumerated_and_in_one_pass(name):
    model, text = make(**OPTIONS[name]), "abcdefg"
    with torch.no_grad():
        for documents, actor in ((SHORT, LearnedBoundaryActor(model)), (LONG, RandomActor(0.3))):
            assert_paths_agree(over(model, documents), actor, 37, stop=False)
        tree = enumerate_rollouts(model, text)
        env = ByteBoundaryEnv(model, [text], num_steps=6, batch_size=(32,), seed=0)
        rollout = env.parallel_rollout(actions=tree["action"][0], text=[text] * 32)
        final = ("next", "final_log_prob")
        torch.testing.assert_close(rollout[final], tree[final][0], rtol=0, atol=1e-4)
        plain = make()
        plain.load_state_dict({n: p for n, p in model.state_dict().items() if n in plain.state_dict()})
        assert (enumerate_rollouts(plain, text)[final] - tree[final]).abs().max() > 0.01
    over(model).parallel_rollout()["next", "final_log_prob"].sum().backward()
    reached = model.boundary_head.projection.weight.grad is not None  # predictions teach the policy only if asked to
    assert reached == (OPTIONS[name]["smoothing"] == "straight_through")


@each(documents=[SHORT, LONG])
@torch.no_grad()
def test_bytes_that_see_their_own_token_are_the_same_stepped_and_in_one_pass(documents):
    """Boundaries are given, or drawn from bytes; a policy on encoder states cannot draw them before the encoder."""
    model = make(byte_scope="token")
    env, actions = over(model, documents), (torch.rand(3, 37) < 0.4).long()
    rollouts = []
    for roll in (step_through, lambda env, actions: env.parallel_rollout(actions=actions)):
        env.set_seed(1)
        rollouts.append(roll(env, actions))
    assert_same_rollout(*rollouts)
    env.set_seed(1)
    drawn = env.parallel_rollout(SegmenterActor(make_segmenter("whitespace", model)), max_steps=37)
    env.set_seed(1)
    stepped = EnvBase.rollout(env, 37, WhitespaceActor(), break_when_any_done=False)
    assert_same_rollout(stepped.select(*drawn.keys(True, True)), drawn)
    refused(
        (lambda: env.parallel_rollout(), ValueError, "byte_scope='token', .* got LearnedBoundaryActor"),
        (lambda: env.parallel_rollout(WhitespaceActor()), ValueError, "byte_scope='token', .* got WhitespaceActor"),
    )


@torch.no_grad()
def test_marked_texts_are_the_same_stepped_enumerated_and_in_one_pass():
    """Short documents end within a window, so that the mark of the next one stands in the middle of a row."""
    model = make(begin_of_text=True, num_special=2, ngram_sizes=(2, 5), ngram_buckets=40)
    for documents, actor in ((SHORT, LearnedBoundaryActor(model)), (LONG, RandomActor(0.3))):
        stepped = assert_paths_agree(over(model, documents), actor, 37, stop=False)
        assert torch.equal(stepped["byte"] == 256, stepped["forced"]) and (stepped["next", "byte"] < 256).all()
    tree = enumerate_rollouts(model, "abcdefg")
    env = ByteBoundaryEnv(model, ["abcdefg"], num_steps=7, batch_size=(64,), seed=0)
    rollout = env.parallel_rollout(actions=tree["action"][0], text=["abcdefg"] * 64)
    final = ("next", "final_log_prob")
    torch.testing.assert_close(rollout[final], tree[final][0], rtol=0, atol=1e-4)
    check_env_specs(over(model))


# Target rates


@each(case=[(LONG, RATES, (3,)), (SHORT, RATES, ()), (SHORT, RATES, (3,)), (SHORT, None, (3,))])
@torch.no_grad()
def test_every_text_has_a_rate_stepped_and_in_one_pass(case):
    """Longer than an episode, so that texts that begin in the middle draw their rates too."""
    documents, rates, batch_size = case
    model = make(rate_embedding=True, smoothing="detached", target_rate=0.3)
    env = rated(model, documents, rates, batch_size=batch_size)
    stepped = assert_paths_agree(env, LearnedBoundaryActor(model), 37, stop=False)
    seen, starts = stepped["target_rate"].squeeze(-1), stepped["forced"]
    if rates is None:
        assert (seen == torch.tensor(0.3)).all()
    else:
        assert (seen >= 0.05).all() and (seen <= 0.6).all()
        assert len(seen.unique()) == int(starts.sum())
        assert torch.equal(seen[..., 1:] != seen[..., :-1], starts[..., 1:])


def test_resets_leave_rates_alone_that_were_handed_out():
    env = rated(make(rate_embedding=True))
    before = env.reset()
    kept = before.clone()
    after = env.reset(before.clone().set("_reset", torch.tensor([[False], [True], [False]])))
    assert torch.equal(before["target_rate"], kept["target_rate"])
    assert (after["target_rate"] != kept["target_rate"]).flatten().tolist() == [False, True, False]


def test_rates_are_log_uniform_and_drawn_after_the_places():
    model = make(rate_embedding=True)
    drawn = rated(model, rates=(0.1, 0.4)).pick_rates(2000)
    assert 0.1 <= drawn.min() and drawn.max() <= 0.4
    assert abs(float((drawn < 0.2).float().mean()) - 0.5) < 0.05
    assert rated(model, rates=(0.3, 0.3)).pick_rates(2).tolist() == pytest.approx([0.3, 0.3])
    env = rated(model)
    check_env_specs(env)
    plain, env = over(model), rated(model)
    assert torch.equal(plain.parallel_rollout()["byte"], env.parallel_rollout()["byte"])
    assert len(env.parallel_rollout(text=["abcdef"] * 3)["target_rate"].unique()) > 1
    whole = rated(model, SHORT, batch_size=(4,)).parallel_rollout(generator=torch.Generator().manual_seed(3))
    for index in range(2):  # rollouts of several processes are parts of one
        env = rated(model, SHORT, batch_size=(2,))
        part = env.parallel_rollout(generator=torch.Generator().manual_seed(3), part=(index, 2))
        assert torch.equal(part["target_rate"], whole["target_rate"][2 * index : 2 * index + 2])


@torch.no_grad()
def test_actors_score_what_was_drawn():
    """From stored states, and from bytes."""
    model = make(rate_embedding=True)
    again, whole = EncodingBoundaryActor(model), EncodingBoundaryActor(model, whole_rows=True)
    for documents, num_steps, actors in ((SHORT, 37, [again]), (LONG, 24, [again, whole]), (LONG, 9, [again, whole])):
        rollout = rated(model, documents).parallel_rollout(max_steps=num_steps)
        for actor in (LearnedBoundaryActor(model), *actors):
            with set_recurrent_mode(True):
                found = actor.get_dist(rollout.clone()).logits
            torch.testing.assert_close(found, rollout["logits"], rtol=0, atol=1e-4)
    restarts = over(make(), SHORT).parallel_rollout(max_steps=37)
    with pytest.raises(ValueError, match="every byte of one text in order, got position 0 after"):
        EncodingBoundaryActor(make(), whole_rows=True).get_dist(restarts)
    rollout = rated(model, SHORT).parallel_rollout(max_steps=37)
    fixed = LearnedBoundaryActor(model, target_rate=0.3).get_dist(rollout.exclude("target_rate")).logits
    other = rollout.clone().set("target_rate", torch.full_like(rollout["target_rate"], 0.3))
    torch.testing.assert_close(fixed, LearnedBoundaryActor(model).get_dist(other).logits)


@torch.no_grad()
def test_flips_are_tried_at_the_rate_of_their_row():
    """Other rates in the batch change nothing in a row's advantages."""
    model, found = make(rate_embedding=True, smoothing="detached"), []
    rollout = rated(model).parallel_rollout()
    for rows in (rollout, rollout.clone()):
        if found:
            rows["target_rate"][1:] = 0.5
        flips = LocalFlips(model, gamma=0.9, num_flips=1, span=4, generator=torch.Generator().manual_seed(0))
        found.append(advantages_of(rows, "advantage", flips)[0]["advantage"])
    torch.testing.assert_close(found[0][0], found[1][0])
    assert (found[0][1:] - found[1][1:]).abs().max() > 1e-4


def test_two_rates_are_learned_in_one_model():
    """The rate loss alone, from a policy that draws 0.8 at any target: rows come to 0.1 and 0.5."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", rate_embedding=True))
    forward = model.boundary_head.forward  # with a bias of 1.4 for every rate, so that the embedding alone learns them
    model.boundary_head.forward = lambda states, offset=None: forward(states, torch.full_like(offset, 1.4))
    env = rated(model, batch_size=(8,))
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
    assert held[0] < 0.2 and 0.4 < held[1] < 0.6  # a policy without targets would hold 0.3 for both


def test_refused_rates(model):
    with_rates = make(rate_embedding=True)
    words = r"target_rates must be \(low, high\) with 0 < low <= high < 1, got"
    for rates in ((0.4, 0.1), (0.0, 0.1), (0.1, 1.0), (0.1,), 0.1, "ab", ("0.1", 0.2)):
        error = ValueError if rates in ((0.4, 0.1), (0.0, 0.1), (0.1, 1.0)) else TypeError
        refused((lambda rates=rates: rated(with_rates, rates=rates), error, words))
    one_rate = r"target_rates must be None where the model has one rate .*got \(0.05, 0.6\)"
    left_out = "target_rate must be left out where the model has one rate"
    refused(
        (lambda: rated(model), ValueError, one_rate),
        (lambda: LearnedBoundaryActor(model, target_rate=0.3), ValueError, left_out),
    )
