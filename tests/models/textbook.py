"""The U-Net written down from the paper's equations, row by row, with dense masks: slow, and apart from the library.

Nothing is shared with the implementation but the names of its parameters. Rotary positions turn complex numbers,
attention has a T x T mask, tokens are picked in a Python loop.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def textbook_forward(model, byte_ids: Tensor, boundaries: Tensor, *, training: bool = False) -> dict[str, Tensor]:
    """Run [B, T] bytes with given boundaries; returns boundary, early and final logits."""
    rows = [_row(model, byte_ids[b], boundaries[b], training) for b in range(len(byte_ids))]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _row(model, byte_ids: Tensor, boundaries: Tensor, training: bool) -> dict[str, Tensor]:
    config, weights = model.config, dict(model.named_parameters())
    length = len(byte_ids)
    clock = torch.arange(length)
    window = (clock <= clock[:, None]) & (clock > clock[:, None] - config.window)

    x = weights["embedding.weight"][byte_ids] * math.sqrt(config.width)
    for i in range(config.num_encoder_layers):
        x = _layer(config, weights, f"encoder.{i}", x, clock, window)

    tokens, positions, serving, since = [], [], [], []
    for t in range(length):
        since.append(x[t])
        if boundaries[t]:
            tokens.append(x[t] if config.pooling == "select" else torch.stack(since).mean(0))
            positions.append(t)
            since = []
        serving.append(len(tokens) - 1)
    before, count = torch.stack(tokens), len(tokens)
    after = before
    lower = config.lower_layers
    for i in range(lower):
        after = _layer(config, weights, f"token_layers.{i}", after, torch.tensor(positions), _causal(count))
    if config.second_level is not None:
        after = _second_level(config, weights, after, positions)
    for i in range(lower, config.num_token_layers):
        after = _layer(config, weights, f"token_layers.{i}", after, torch.tensor(positions), _causal(count))
    update = after if config.upsampling == "add" else after - before
    y = torch.stack([x[t] + update[serving[t]] for t in range(length)])
    for i in range(config.num_decoder_layers):
        y = _layer(config, weights, f"decoder.{i}", y, clock, window)

    normed = _norm(config, weights["encoder_norm.weight"], x)
    terms = normed @ weights["boundary_head.projection.weight"].T  # [T, 1 + w]
    raw = [
        terms[t, 0] + sum((terms[t, j] * boundaries[t - j] for j in range(1, config.num_lags + 1) if t >= j), 0.0)
        for t in range(length)
    ]
    logits = torch.stack(raw) * config.boundary_scale + math.log(config.target_rate / (1 - config.target_rate))
    if training and config.boundary_cap is not None:
        logits = config.boundary_cap * torch.tanh(logits / config.boundary_cap)
    return {
        "boundary_logits": logits,
        "early_logits": _cap(normed @ weights["early_head.projection.weight"].T, config.final_cap),
        "final_logits": _cap(
            _norm(config, weights["decoder_norm.weight"], y) @ weights["final_head.projection.weight"].T,
            config.final_cap,
        ),
    }


def _second_level(config, weights: dict[str, Tensor], z: Tensor, positions: list[int]) -> Tensor:
    """Tokens [S, D] after they have received their tokens of tokens, one token after the other."""
    name, probs, places = "second_level.routing", [], []
    faithful = config.second_residual == "projection"
    x = _norm(config, weights[f"{name}.token_norm.weight"], z) if faithful else z
    for s in range(len(z)):
        if config.second_level == "stride":
            chosen = s % config.second_stride == 0
        else:
            p = torch.ones(()).to(z)
            if s > 0:
                query, key = weights[f"{name}.query.weight"] @ x[s - 1], weights[f"{name}.key.weight"] @ x[s]
                p = (1 - (query @ key) / (query.norm() * key.norm())) / 2
            probs.append(p)
            chosen = p > 0.5
        if chosen:
            places.append(s)
    above, clock = torch.stack([x[s] for s in places]), torch.tensor([positions[s] for s in places])
    for i in range(config.num_second_layers):
        above = _layer(config, weights, f"second_level.layers.{i}", above, clock, _causal(len(places)))
    if faithful:
        above = _norm(config, weights[f"{name}.update_norm.weight"], above)
    out, current, number = [], torch.zeros_like(z[0]), 0
    for s in range(len(z)):
        if s in places:
            share = probs[s].clamp(1e-4, 1 - 1e-4) if config.second_level == "routing" else 1.0
            current = share * above[number] + (1 - share) * current
            number += 1
        own = weights[f"{name}.residual.weight"] @ x[s] + weights[f"{name}.residual.bias"] if faithful else z[s]
        sure = 1.0
        if config.second_level == "routing":
            c = probs[s] if s in places else 1 - probs[s]
            sure = 1 + (c - c.detach())
        out.append(own + sure * current)
    return torch.stack(out)


def _causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _layer(config, weights: dict[str, Tensor], name: str, x: Tensor, clock: Tensor, mask: Tensor) -> Tensor:
    def norm(which: str, values: Tensor) -> Tensor:
        return _norm(config, weights[f"{name}.{which}.weight"], values)

    out = _attention(config, weights, name, norm("attention_norm", x), clock, mask)
    x = x + norm("attention_out_norm", out)
    gate, up = (norm("mlp_norm", x) @ weights[f"{name}.mlp.gate_up.weight"].T).chunk(2, -1)
    gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return x + norm("mlp_out_norm", (gelu * up) @ weights[f"{name}.mlp.down.weight"].T)


def _attention(config, weights: dict[str, Tensor], name: str, x: Tensor, clock: Tensor, mask: Tensor) -> Tensor:
    size = config.head_size
    projected = (x @ weights[f"{name}.attention.query_key_value.weight"].T).split(config.width, -1)
    heads = []
    for h in range(config.num_heads):
        query, key, value = (part[:, h * size : (h + 1) * size] for part in projected)
        scores = _turn(query, clock, config.rope_base) @ _turn(key, clock, config.rope_base).T / math.sqrt(size)
        scores = _cap(scores, config.attention_cap).masked_fill(~mask, float("-inf"))
        heads.append(scores.softmax(-1) @ value)
    return torch.cat(heads, -1) @ weights[f"{name}.attention.out.weight"].T


def _turn(x: Tensor, clock: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, dtype=x.dtype) / half)
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones(()).to(x), clock[:, None] * frequency)
    return torch.cat((turned.real, turned.imag), -1)


def _norm(config, weight: Tensor, x: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + config.norm_eps) * (1 + weight)


def _cap(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)
