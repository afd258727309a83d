"""What stays float32 where products are bfloat16."""

from __future__ import annotations

import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.models import UNet, preset

TEXT = "the cat sat on the mat, and the dog sat on the log. " * 20


def narrow() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_boundary_logits_are_products_of_float32():
    """All boundaries hang on nine products per byte; those of byte logits are in the narrow type."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", boundary_bias=True))
    states = torch.randn(2, 30, 64)
    wanted = model.boundary_terms(states)
    with narrow():
        found, logits = model.boundary_terms(states), model.early_logits(states)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert logits.dtype == torch.bfloat16


def test_a_rollout_keeps_its_stream_and_its_rewards_wide():
    model = UNet(preset("tiny", attention_cap=50.0)).train()
    env = ByteBoundaryEnv(model, TEXT, num_steps=32, batch_size=(2,), seed=0)
    with narrow():
        rollout = env.parallel_rollout(LearnedBoundaryActor(model))
        out = model(rollout["byte"], rollout["action"].bool() | rollout["forced"])
    for states in (rollout["encoder_state"], out.encoder_states, out.decoder_states):
        assert states.dtype == torch.float32
    for name in ("logits", "action_log_prob", "entropy", ("next", "reward"), ("next", "final_log_prob")):
        assert rollout[name].dtype == torch.float32, name
    assert out.final_logits.dtype == torch.bfloat16  # products are narrow, or the above would say nothing
