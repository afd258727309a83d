"""Small models of every kind, boundary strings, and the comparisons shared by the model tests."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.models import UNet, preset
from rltok_rl.models.incremental import decide, observe

from .. import each
from ..states import seeded

VARIANTS = {
    "plain": {},
    "mean": {"pooling": "mean"},
    "mean, deviation, capped": {"pooling": "mean", "upsampling": "deviation", "attention_cap": 10.0},
    "short window": {"window": 2, "num_lags": 1},
    "deep, no lags": {"num_encoder_layers": 2, "num_token_layers": 2, "num_decoder_layers": 2, "num_lags": 0},
    "no byte layers": {"num_encoder_layers": 0, "num_decoder_layers": 0},
    "n-grams, smoothing": {"ngram_sizes": (3, 2, 7), "ngram_buckets": 50, "smoothing": "gradient"},
    "attention": {"pooling": "attention", "upsampling": "attention", "tokens_read": 3, "window": 5},
    "own token": {"byte_scope": "token", "num_encoder_layers": 2, "num_decoder_layers": 2, "window": 6},
    "own token, pooled": {"byte_scope": "token", "pooling": "mean", "smoothing": "gradient", "attention_cap": 10.0},
    "wide tokens": {"token_width": 96, "token_heads": 3, "upsampling": "deviation", "attention_cap": 10.0},
}
LEVELS = {
    "stride": {"second_level": "stride", "num_token_layers": 2, "num_second_layers": 2},
    "every token": {"second_level": "stride", "second_rate": 1.0},
    "routing": {"second_level": "routing", "second_rate": 0.4, "num_token_layers": 3},
    "no lower layer": {"second_level": "routing", "num_lower_layers": 0, "pooling": "mean"},
    "wide levels": {
        **{"second_level": "routing", "second_residual": "projection", "num_token_layers": 2},
        **{"token_width": 72, "second_width": 96, "second_heads": 3, "pooling": "mean"},
    },
    "as H-Net": {"second_level": "routing", "second_residual": "projection", "upsampling": "deviation"},
    "every option": {
        "second_level": "routing",
        "second_residual": "projection",
        "num_token_layers": 2,
        "ngram_sizes": (2, 3),
        "ngram_buckets": 50,
        "smoothing": "gradient",
        **VARIANTS["attention"],
    },
}
VARIANTS |= LEVELS


@pytest.fixture
def build() -> Callable[..., UNet]:
    """Build a seeded tiny model in evaluation mode whose norms, early exit and routing are not at their initial values.

    A test then cannot pass because a norm is the identity or because both heads agree.
    """

    def make(**overrides) -> UNet:
        torch.manual_seed(0)
        model = UNet(preset("tiny", **overrides)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if any(part in name for part in ("norm", "early_head", "routing", "pad")):
                    parameter.add_((0.1 if "routing" in name else 0.2) * torch.randn_like(parameter))
        return model

    return make


@pytest.fixture
def text() -> Callable[..., Tensor]:
    """Random bytes [B, T]."""
    return lambda num_rows, length, seed=2: torch.randint(256, (num_rows, length), generator=seeded(seed))


def mixed_boundaries(num_rows: int, length: int, rate: float | None = None) -> Tensor:
    """Boundaries [B, T] at a rate, or of every kind: the first row has one token, the last one per byte."""
    rates = torch.linspace(0, 1.01, num_rows)[:, None] if num_rows > 1 and rate is None else rate or 0.3
    boundaries = torch.rand(num_rows, length, generator=seeded(4)) < rates
    boundaries[:, :1] = True
    return boundaries


def outputs(model: UNet, byte_ids: Tensor, boundaries: Tensor, **options) -> dict[str, Tensor]:
    """Everything that the model computes per position."""
    out = model(byte_ids, boundaries, **options)
    names = ("encoder_states", "boundary_logits", "early_logits", "decoder_states", "final_logits")
    base, lags = model.boundary_terms(out.encoder_states, target_rate=options.get("target_rate"))
    return {**{name: getattr(out, name) for name in names}, "base": base, "lags": lags, **_decisions(out.second)}


def stepped(model: UNet, cache, byte_ids: Tensor, boundaries: Tensor, mixing_at=lambda t: None) -> dict[str, Tensor]:
    """The same, one byte after the other, except the terms of boundary logits."""
    steps = []
    for t in range(byte_ids.shape[1]):
        seen = observe(model, cache, byte_ids[:, t])
        said = decide(model, cache, boundaries[:, t], mixing=mixing_at(t))
        states = {"encoder_states": seen.encoder_state, "decoder_states": said.decoder_state}
        logits = {"boundary_logits": seen.boundary_logit, "early_logits": seen.early_logits}
        steps.append({**states, **logits, "final_logits": said.final_logits, **_decisions(said.second)})
    return {name: torch.stack([step[name] for step in steps], 1) for name in steps[0]}


def _decisions(second) -> dict[str, Tensor]:
    if second is None:
        return {}
    values = {"second_boundaries": second.boundaries.float(), "second_probabilities": second.probabilities}
    return {name: value for name, value in values.items() if value is not None}


def assert_same(ours: dict[str, Tensor], expected: dict[str, Tensor], *at, atol: float = 1e-8) -> None:
    """Require equal values by name; ``at`` is the part of the expected ones that ours are."""
    for name, values in ours.items():
        torch.testing.assert_close(values, expected[name][at], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def assert_causal(model: UNet, byte_ids: Tensor, boundaries: Tensor, **options) -> None:
    """Require that no output of [1, T] at or before t notices a change of bytes and boundaries after t."""
    length = byte_ids.shape[1]
    other_bytes = torch.randint(256, (length, length), generator=seeded(5))
    other_boundaries = torch.rand(length, length, generator=seeded(6)) < 0.5
    after = torch.arange(length) > torch.arange(length)[:, None]  # [T, T]: row t changes all that comes after t
    bytes_changed = torch.where(after, other_bytes, byte_ids)
    changed = outputs(model, bytes_changed, torch.where(after, other_boundaries, boundaries), **options)
    for name, original in outputs(model, byte_ids, boundaries, **options).items():
        apart = F.pad((changed[name] - original).abs().reshape(length, length, -1), (0, 1)).amax(-1)  # [T, T]
        wrong = (~(apart <= 1e-5) & ~after).any(1).nonzero().flatten().tolist()
        assert not wrong, f"{name} up to position {wrong[0]} sees what comes after it, by {apart[~after].max()}"


def slopes(value: Callable[[], Tensor], parameters: list[Tensor], *, step: float) -> tuple[Tensor, Tensor]:
    """Derivative of ``value`` along a random direction: by gradients, and by differences with an error of step^4."""
    directions = [0.05 * torch.randn_like(p) for p in parameters]
    gradients = torch.autograd.grad(value(), parameters)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    at = {}
    with torch.no_grad():
        for k in (-2, -1, 1, 2):
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=k * step)
            at[k] = value()
            for p, d in zip(parameters, directions, strict=True):
                p.sub_(d, alpha=k * step)
    return slope, (at[-2] - 8 * at[-1] + 8 * at[1] - at[2]) / (12 * step)


def loss_and_gradients(model: UNet, value: Tensor) -> dict[str, Tensor]:
    """Gradients of the sum of squares of ``value``, by parameter."""
    model.zero_grad(set_to_none=True)
    value.square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def refused(cases) -> None:
    """Every call raises its exception with its words; cases are (call, exception, words)."""
    each.refused(*((call, error, re.escape(words)) for call, error, words in cases))
