"""A layer equals the Gemma-2 decoder layer of ``transformers``, weight for weight."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from rltok_rl.experiments.bench.plain import gemma_config

from rltok_rl.models import preset
from rltok_rl.models.attention import causal_attention, sliding_window_attention
from rltok_rl.models.layers import TransformerLayer, rotary

from ..each import each

pytest.importorskip("transformers", reason="needs the test extra (transformers)")
NORMS = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


def copy_weights(ours: TransformerLayer, theirs) -> None:
    attention, mlp = theirs.self_attn, theirs.mlp
    projections = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    ours.attention.query_key_value.weight.copy_(torch.cat(projections))
    ours.attention.out.weight.copy_(attention.o_proj.weight)
    ours.mlp.gate_up.weight.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    ours.mlp.down.weight.copy_(mlp.down_proj.weight)
    for mine, other in NORMS.items():
        getattr(theirs, other).weight.normal_(std=0.3)  # the identity would hide a wrong norm
        getattr(ours, mine).weight.copy_(getattr(theirs, other).weight)


@each(cap=[None, 50.0, 2.0], window=[None, 16], mlp_ratio=[1, 4])
@torch.no_grad()
def test_layer_equals_gemma2(window, mlp_ratio, cap):
    from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer, Gemma2RotaryEmbedding

    config = preset("tiny", attention_cap=cap)
    gemma = gemma_config(config, mlp_ratio)
    theirs, angles, ours = (
        Gemma2DecoderLayer(gemma, 0),
        Gemma2RotaryEmbedding(gemma),
        TransformerLayer(config, mlp_ratio),
    )
    for parameter in theirs.eval().parameters():
        parameter.normal_(std=0.15)
    copy_weights(ours, theirs)

    x, positions = torch.randn(2, 100, config.width), torch.arange(100)
    seen = (positions <= positions[:, None]) & (positions > positions[:, None] - (window or 100))
    mask = torch.zeros(100, 100).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    at = positions[None]
    expected = theirs(x, position_embeddings=angles(x, at), attention_mask=mask, position_ids=at)
    expected = expected[0] if isinstance(expected, tuple) else expected

    attend = partial(sliding_window_attention, window=window) if window else causal_attention
    out = ours(x, rotary(positions, config.head_size, config.rope_base), partial(attend, cap=cap))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    assert (out - x).abs().max() > 0.1  # the layer does something
