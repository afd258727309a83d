"""Variants of pooling and upsampling: windows, prefills and steps agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rltok_rl.models.byte_model import ByteModel
from rltok_rl.models.config import UNetConfig, preset
from rltok_rl.models.incremental import decide, observe
from rltok_rl.models.mixing import Mixing

from .conftest import hold_for, mixed_boundaries

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
    one = {name: Mixing(**{name: value}) for name, value in entries.items()}
    return {
        **one,
        "first_token, mean": Mixing(pooling="mean", first_token=entries["first_token"]),
        "all": Mixing(**entries),
    }


KINDS = kinds()


def at(mixing: Mixing, t: int) -> Mixing:
    """The entries of byte t."""
    taken = {name: getattr(mixing, name) for name in ("smoothing", "receive")}
    return replace(mixing, **{name: None if x is None else x[:, t] for name, x in taken.items()})


def until(mixing: Mixing, t: int) -> Mixing:
    """The entries of bytes before t."""
    taken = {name: getattr(mixing, name) for name in ("smoothing", "receive")}
    return replace(mixing, **{name: None if x is None else x[:, :t] for name, x in taken.items()})


def stepped(model, cache, byte_ids: Tensor, boundaries: Tensor, mixing: Mixing, start: int = 0) -> Tensor:
    said = []
    for t in range(start, byte_ids.shape[1]):
        observe(model, cache, byte_ids[:, t])
        said.append(decide(model, cache, boundaries[:, t], mixing=at(mixing, t)).final_logits)
    return torch.stack(said, 1)


@torch.no_grad()
def test_windows_prefills_and_steps_agree(build, text):
    """Every entry matters, too; prompts end before, at and after the first byte that a null token delays."""
    byte_ids, boundaries = text(3, 30), mixed_boundaries(3, 30)

    def law(mixing):
        for prompt, upsampling in ((0, "add"), (1, "deviation"), (2, "add"), (20, "deviation")):
            model = build(upsampling=upsampling)
            states = model.encode(byte_ids)
            full = model.final_logits(model.decode(states, boundaries, mixing=mixing))
            packed = model.final_logits(model.decode(states, boundaries, mixing=mixing, layout="packed"))
            torch.testing.assert_close(packed, full, rtol=0, atol=1e-4)
            plain = model.final_logits(model.decode(states, boundaries))
            assert (plain - full).abs().max() > 0.01
            assert torch.equal(plain, model.final_logits(model.decode(states, boundaries, mixing=Mixing())))
            cache, end = model.new_cache(3), min(30, prompt + 10)
            if prompt:
                prefix = model.encode(byte_ids[:, :prompt], cache=cache)
                model.decode(prefix, boundaries[:, :prompt], cache=cache, mixing=until(mixing, prompt))
            ours = stepped(model, cache, byte_ids[:, :end], boundaries[:, :end], mixing, start=prompt)
            torch.testing.assert_close(ours, full[:, prompt:end], rtol=0, atol=1e-4)

    hold_for(law, KINDS)


@torch.no_grad()
def test_a_byte_model_steps_as_it_reads():
    torch.manual_seed(0)
    model = ByteModel(preset("tiny")).double()
    byte_ids = torch.randint(256, (2, 40))
    whole, cache = model(byte_ids), model.new_cache(2)
    steps = [model.step(byte_ids[:, t], torch.full((2,), t), cache) for t in range(40)]
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=0, atol=1e-9)
    changed = byte_ids.clone()
    changed[:, 20:] = 0
    torch.testing.assert_close(model(changed)[:, :20], whole[:, :20], rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="byte_ids must have at least 2 bytes per row"):
        model.loss(byte_ids[:, :1])


def test_a_byte_model_needs_no_more_than_a_configuration():
    config = UNetConfig(width=16, num_heads=2, num_encoder_layers=2, num_token_layers=1, num_decoder_layers=0)
    torch.manual_seed(0)
    # Fresh weights know nothing: ln 256 = 5.55 nats, and some for being confidently wrong.
    assert ByteModel(config).loss(torch.randint(256, (2, 200))).item() == pytest.approx(5.55, abs=0.3)
