"""Variants of pooling and upsampling, and the byte model: windows, prefills and steps agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from rltok_rl.agents.segmenters.byte_model import ByteModel
from torch import nn

from rltok_rl.models.config import UNetConfig, preset
from rltok_rl.models.mixing import Mixing

from ..each import each
from .conftest import mixed_boundaries, stepped

WIDTH = 64


def kinds() -> dict[str, Mixing]:
    """Every entry on its own, and all together; entries per byte are [B, T] = [3, 30]."""
    torch.manual_seed(7)
    entries: dict[str, Any] = {
        "pooling": "mean",
        "first_token": torch.randn(WIDTH),
        "token_norm": nn.LayerNorm(WIDTH),
        "update_norm": nn.LayerNorm(WIDTH),
        "smoothing": torch.rand(3, 30),
        "residual": nn.Linear(WIDTH, WIDTH),
        "receive": torch.rand(3, 30),
    }
    null_mean = Mixing(pooling="mean", first_token=entries["first_token"])
    alone = {name: Mixing(**{name: value}) for name, value in entries.items()}
    return {**alone, "first_token, mean": null_mean, "all": Mixing(**entries)}


KINDS = kinds()


def part(mixing: Mixing, times: int | slice) -> Mixing:
    """The entries of some bytes."""
    entries = {"smoothing": mixing.smoothing, "receive": mixing.receive}
    return replace(mixing, **{name: None if x is None else x[:, times] for name, x in entries.items()})


@each(kind=KINDS, case=[(0, "add"), (1, "deviation"), (2, "add"), (20, "deviation")])
@torch.no_grad()
def test_windows_prefills_and_steps_agree(kind, case, build, text):
    """Every entry matters, too; prompts end before, at and after the first byte that a null token delays."""
    mixing, (prompt, upsampling) = KINDS[kind], case
    model, byte_ids, boundaries = build(upsampling=upsampling), text(3, 30), mixed_boundaries(3, 30)
    states = model.encode(byte_ids)
    full = model.final_logits(model.decode(states, boundaries, mixing=mixing))
    packed = model.final_logits(model.decode(states, boundaries, mixing=mixing, layout="packed"))
    torch.testing.assert_close(packed, full, rtol=0, atol=1e-4)
    assert (model.final_logits(model.decode(states, boundaries)) - full).abs().max() > 0.01
    cache, times = model.new_cache(3), slice(prompt, min(30, prompt + 10))
    if prompt:
        prefix = model.encode(byte_ids[:, :prompt], cache=cache)
        model.decode(prefix, boundaries[:, :prompt], cache=cache, mixing=part(mixing, slice(prompt)))
    ours = stepped(model, cache, byte_ids[:, times], boundaries[:, times], lambda t: part(mixing, prompt + t))
    torch.testing.assert_close(ours["final_logits"], full[:, times], rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("cap", [None, 0.5])
def test_a_byte_model_steps_as_it_reads(cap):
    torch.manual_seed(0)
    model, byte_ids = ByteModel(replace(preset("tiny"), attention_cap=cap)).double(), torch.randint(256, (2, 40))
    whole, cache = model(byte_ids), model.new_cache(2)
    steps = [model.step(byte_ids[:, t], torch.full((2,), t), cache) for t in range(40)]
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=0, atol=1e-9)
    changed = byte_ids.clone()
    changed[:, 20:] = 0
    torch.testing.assert_close(model(changed)[:, :20], whole[:, :20], rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="byte_ids must have at least 2 bytes per row"):
        model.loss(byte_ids[:, :1])


def test_a_fresh_byte_model_knows_nothing():
    config = UNetConfig(width=16, num_heads=2, num_encoder_layers=2, num_token_layers=1, num_decoder_layers=0)
    torch.manual_seed(0)
    # ln 256 = 5.55 nats, and some for being confidently wrong.
    assert ByteModel(config).loss(torch.randint(256, (2, 200))).item() == pytest.approx(5.55, abs=0.3)
