"""Environments of models with the options of Appendix C."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, RandomActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import TextSource
from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.models import UNet, preset

from .conftest import LONG, SHORT
from .test_parallel import assert_paths_agree

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


def make(options: dict) -> UNet:
    torch.manual_seed(0)
    model = UNet(preset("tiny", **options))  # in training mode: probabilities are those of capped logits
    with torch.no_grad():
        model.boundary_head.projection.weight.mul_(20)
    return model


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@torch.no_grad()
def test_same_seed_same_rollout(options):
    model = make(options)
    for documents, actor in ((SHORT, LearnedBoundaryActor(model)), (LONG, RandomActor(0.3))):
        source = TextSource(documents, short_documents="whole")
        env = ByteBoundaryEnv(model, source, num_steps=24, batch_size=(3,), seed=0)
        assert_paths_agree(env, actor, 37, stop=False)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@torch.no_grad()
def test_enumeration_sees_what_a_rollout_sees(options):
    model, text = make(options), "abcdefg"
    tree = enumerate_rollouts(model, text)
    env = ByteBoundaryEnv(model, [text], num_steps=6, batch_size=(32,), seed=0)
    rollout = env.parallel_rollout(actions=tree["action"][0], text=[text] * 32)
    torch.testing.assert_close(rollout["next", "final_log_prob"], tree["next", "final_log_prob"][0], rtol=0, atol=1e-4)
    plain = make({})
    plain.load_state_dict({n: p for n, p in model.state_dict().items() if n in plain.state_dict()})
    assert (
        enumerate_rollouts(plain, text)["next", "final_log_prob"] - tree["next", "final_log_prob"]
    ).abs().max() > 0.01


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_predictions_teach_the_policy_only_where_asked(options):
    model = make(options)
    env = ByteBoundaryEnv(model, LONG, num_steps=24, batch_size=(3,), seed=0)
    env.parallel_rollout()["next", "final_log_prob"].sum().backward()
    reached = model.boundary_head.projection.weight.grad is not None
    assert reached == (options["smoothing"] == "straight_through")
