"""A layer equals the Gemma-2 decoder layer of ``transformers``, weight for weight."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from rltok_rl.experiments.bench.plain import gemma_config

from rltok_rl.models import preset
from rltok_rl.models.attention import causal_attention, sliding_window_attention
from rltok_rl.models.layers import TransformerLayer, rotary

transformers = pytest.importorskip("transformers", reason="needs the test extra (transformers)")


def gemma_layer(config, mlp_ratio: int):
    """A Gemma-2 decoder layer of the same sizes, and the inputs it wants beside the states."""
    from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer, Gemma2RotaryEmbedding

    theirs = gemma_config(config, mlp_ratio)
    return Gemma2DecoderLayer(theirs, 0).eval(), Gemma2RotaryEmbedding(theirs)


@torch.no_grad()
def copy_weights(ours: TransformerLayer, theirs) -> None:
    attention, mlp = theirs.self_attn, theirs.mlp
    ours.attention.query_key_value.weight.copy_(
        torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    )
    ours.attention.out.weight.copy_(attention.o_proj.weight)
    ours.mlp.gate_up.weight.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    ours.mlp.down.weight.copy_(mlp.down_proj.weight)
    for mine, name in [
        (ours.attention_norm, "input_layernorm"),
        (ours.attention_out_norm, "post_attention_layernorm"),
        (ours.mlp_norm, "pre_feedforward_layernorm"),
        (ours.mlp_out_norm, "post_feedforward_layernorm"),
    ]:
        norm = getattr(theirs, name)
        norm.weight.normal_(std=0.3)  # the identity would hide a wrong norm
        mine.weight.copy_(norm.weight)


@pytest.mark.parametrize("cap", [None, 50.0, 2.0])
@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("mlp_ratio", [1, 4])
def test_layer_equals_gemma2(window, mlp_ratio, cap):
    torch.manual_seed(0)
    config = preset("tiny", attention_cap=cap)
    theirs, angles = gemma_layer(config, mlp_ratio)
    ours = TransformerLayer(config, mlp_ratio)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    copy_weights(ours, theirs)

    length = 100
    x = torch.randn(2, length, config.width)
    positions = torch.arange(length)
    seen = positions <= positions[:, None]
    if window:
        seen &= positions > positions[:, None] - window
    mask = torch.zeros(length, length).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = theirs(
        x, position_embeddings=angles(x, positions[None]), attention_mask=mask[None, None], position_ids=positions[None]
    )
    expected = expected[0] if isinstance(expected, tuple) else expected

    attend = partial(sliding_window_attention, window=window) if window else causal_attention
    out = ours(x, rotary(positions, config.head_size, config.rope_base), partial(attend, cap=cap))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    assert (out - x).abs().max() > 0.1  # the layer does something
