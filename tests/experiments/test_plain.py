"""The step that ours is measured against does the same work: equal boundaries, losses and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.bench.plain import PlainUNet, plain_loss

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss

pytest.importorskip("transformers", reason="needs the test extra (transformers)")
NORMS = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


@torch.no_grad()
def copy_weights(model: UNet, plain: PlainUNet) -> None:
    plain.embedding.weight.copy_(model.embedding.weight)
    stacks: Any = (model.encoder, model.token_layers, model.decoder)
    for mine, theirs in zip((plain.encoder, plain.tokens, plain.decoder), stacks, strict=True):
        for layer, one in zip(mine, theirs, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            split = one.attention.query_key_value.weight.chunk(3)
            for part, weight in zip((attention.q_proj, attention.k_proj, attention.v_proj), split, strict=True):
                part.weight.copy_(weight)
            attention.o_proj.weight.copy_(one.attention.out.weight)
            for part, weight in zip((mlp.gate_proj, mlp.up_proj), one.mlp.gate_up.weight.chunk(2), strict=True):
                part.weight.copy_(weight)
            mlp.down_proj.weight.copy_(one.mlp.down.weight)
            for ours, name in NORMS.items():
                getattr(layer, name).weight.copy_(getattr(one, ours).weight)
    plain.encoder_norm.weight.copy_(model.encoder_norm.weight)
    plain.decoder_norm.weight.copy_(model.decoder_norm.weight)
    plain.boundary.weight.copy_(model.boundary_head.projection.weight)
    plain.early_head.weight.copy_(model.early_head.projection.weight)
    plain.final_head.weight.copy_(model.final_head.projection.weight)


@pytest.mark.parametrize("cap", [None, 50.0, 2.0])
def test_the_plain_step_is_ours(cap):
    torch.manual_seed(0)
    config = preset("tiny", attention_cap=cap, boundary_scale=1.0, num_token_layers=2, target_rate=0.3)
    model, plain = UNet(config).train(), PlainUNet(config).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    copy_weights(model, plain)
    env = ByteBoundaryEnv(model, local_prose(), num_steps=100, batch_size=(3,), seed=0)
    uniforms = torch.rand(3, 100)
    rollout = env.parallel_rollout(LearnedBoundaryActor(model), uniforms=uniforms)
    byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
    out = plain(byte_ids, uniforms)
    assert torch.equal(out.boundaries[:, 1:], rollout["action"].bool()[:, 1:])
    assert 20 < out.boundaries.sum() < 250
    torch.testing.assert_close(out.final, rollout["next", "final_log_prob"].squeeze(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.early, rollout["next", "early_log_prob"].squeeze(-1), rtol=1e-4, atol=1e-4)

    joint = JointLoss.paper(target_rate=0.3)
    total, theirs = joint.total(joint(rollout)), plain_loss(out, target_rate=0.3)
    torch.testing.assert_close(theirs, total, rtol=1e-5, atol=1e-5)
    total.backward(), theirs.backward()
    pairs = [
        (model.embedding.weight, plain.embedding.weight),
        (model.boundary_head.projection.weight, plain.boundary.weight),
        (model.early_head.projection.weight, plain.early_head.weight),
        (model.encoder[0].attention.out.weight, plain.encoder[0].self_attn.o_proj.weight),
        (model.token_layers[1].mlp.down.weight, plain.tokens[1].mlp.down_proj.weight),
        (model.decoder[0].mlp_norm.weight, plain.decoder[0].pre_feedforward_layernorm.weight),
    ]
    for ours, other in pairs:
        assert ours.grad is not None and other.grad is not None
        torch.testing.assert_close(other.grad, ours.grad, rtol=1e-3, atol=1e-5)
        assert ours.grad.abs().max() > 1e-4
