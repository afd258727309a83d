"""The U-Net with all its options, written down from equations row by row: slow, and separate from the library.

Nothing is shared with the library but the names of its parameters. Transformer layers are those of
`experiments/reinforce.py`. Tokens are picked in a Python loop.
"""

from __future__ import annotations

import math

import torch
from rltok_rl.experiments.reinforce import TransformerLayer, rotate, soft_cap
from torch import Tensor
from torch.func import functional_call


def textbook_forward(model, byte_ids: Tensor, boundaries: Tensor, *, training: bool = False) -> dict[str, Tensor]:
    """Run [B, T] bytes with given boundaries; returns boundary, early and final logits."""
    rows = [_row(model, byte_ids[b], boundaries[b], training) for b in range(len(byte_ids))]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _row(model, byte_ids: Tensor, boundaries: Tensor, training: bool) -> dict[str, Tensor]:
    config, weights = model.config, dict(model.named_parameters())
    length = len(byte_ids)
    clock = torch.arange(length)
    window = (clock <= clock[:, None]) & (clock > clock[:, None] - config.window)

    x = _embed(config, weights, byte_ids.tolist()) * math.sqrt(config.width)
    for i in range(config.num_encoder_layers):
        x = _layer(config, weights, f"encoder.{i}", x, clock, window)

    normed = _norm(config, weights["encoder_norm.weight"], x)
    terms = normed @ weights["boundary_head.projection.weight"].T  # [T, 1 + w]
    raw = [
        terms[t, 0] + sum((terms[t, j] * boundaries[t - j] for j in range(1, config.num_lags + 1) if t >= j), 0.0)
        for t in range(length)
    ]
    logits = torch.stack(raw) * config.boundary_scale + math.log(config.target_rate / (1 - config.target_rate))
    if training and config.boundary_cap is not None:
        logits = config.boundary_cap * torch.tanh(logits / config.boundary_cap)
    tokens, positions, serving, since = [], [], [], []
    for t in range(length):
        since.append(x[t])
        if boundaries[t]:
            if config.pooling == "attention":
                bytes_of_it = [u for u in range(t - len(since) + 1, t + 1) if t - u < config.window]
                tokens.append(x[t] + _cross(config, weights, "token_pooling", x[t], t, x[bytes_of_it], bytes_of_it))
            else:
                tokens.append(x[t] if config.pooling == "select" else torch.stack(since).mean(0))
            positions.append(t)
            since = []
        serving.append(len(tokens) - 1)
    before, count = torch.stack(tokens), len(tokens)
    after = before
    for i in range(config.lower_layers):
        after = _layer(config, weights, f"token_layers.{i}", after, torch.tensor(positions), _causal(count))
    if config.second_level is not None:
        after = _second_level(config, weights, after, positions)
    for i in range(config.lower_layers, config.num_token_layers):
        after = _layer(config, weights, f"token_layers.{i}", after, torch.tensor(positions), _causal(count))
    update = after - before if config.upsampling == "deviation" else after
    if config.smoothing != "none":
        probs = [1.0 if t == 0 else torch.sigmoid(logits[t]) for t in positions]
        smoothed = [update[0]]
        for j in range(1, count):
            smoothed.append(probs[j] * update[j] + (1 - probs[j]) * smoothed[-1])
        update = torch.stack(smoothed)
    y = []
    for t in range(length):
        read = list(range(max(0, serving[t] - config.tokens_read + 1), serving[t] + 1))
        if config.upsampling == "attention":
            at = [positions[j] for j in read]
            y.append(x[t] + _cross(config, weights, "token_reading", x[t], t, update[read], at))
        else:
            y.append(x[t] + update[serving[t]])
    y = torch.stack(y)
    for i in range(config.num_decoder_layers):
        y = _layer(config, weights, f"decoder.{i}", y, clock, window)

    return {
        "boundary_logits": logits,
        "early_logits": soft_cap(normed @ weights["early_head.projection.weight"].T, config.final_cap),
        "final_logits": soft_cap(
            _norm(config, weights["decoder_norm.weight"], y) @ weights["final_head.projection.weight"].T,
            config.final_cap,
        ),
    }


def _embed(config, weights: dict[str, Tensor], byte_ids: list[int]) -> Tensor:
    rows = []
    for t in range(len(byte_ids)):
        total = weights["embedding.weight"][byte_ids[t]]
        for number, size in enumerate(config.ngram_sizes):
            gram = [byte_ids[u] if u >= 0 else 0 for u in range(t - size + 1, t + 1)]
            bits = sum(byte * 1_000_000_007**k for k, byte in enumerate(gram)) % 2**64
            bucket = (bits - 2**64 if bits >= 2**63 else bits) % config.ngram_buckets  # as signed, rounded down
            total = total + weights[f"ngrams.tables.{number}.weight"][bucket]
        rows.append(total / (1 + len(config.ngram_sizes)) if config.ngram_scale == "mean" else total)
    return torch.stack(rows)


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
    own = {key.removeprefix(f"{name}."): weight for key, weight in weights.items() if key.startswith(f"{name}.")}
    with torch.device("meta"):
        layer = TransformerLayer(config, mlp_ratio=1)  # sizes come with the weights
    return functional_call(layer, own, (x[None], clock[None], mask))[0]


def _cross(config, weights: dict[str, Tensor], name: str, asks: Tensor, at: int, held: Tensor, where: list) -> Tensor:
    """One query [D] at a position, against states [n, D] at others: [D]."""
    size = config.head_size
    query = weights[f"{name}.query.weight"] @ _norm(config, weights[f"{name}.query_norm.weight"], asks)
    both = _norm(config, weights[f"{name}.key_norm.weight"], held) @ weights[f"{name}.key_value.weight"].T
    heads = []
    for h in range(config.num_heads):
        part = slice(h * size, (h + 1) * size)
        turned = _turn(both[:, : config.width][:, part], torch.tensor(where), config.rope_base)
        score = turned @ _turn(query[None, part], torch.tensor([at]), config.rope_base)[0] / math.sqrt(size)
        heads.append(soft_cap(score, config.attention_cap).softmax(0) @ both[:, config.width :][:, part])
    return _norm(config, weights[f"{name}.out_norm.weight"], weights[f"{name}.out.weight"] @ torch.cat(heads))


def _turn(x: Tensor, clock: Tensor, base: float) -> Tensor:
    return rotate(x[None, None], clock[None], base)[0, 0]


def _norm(config, weight: Tensor, x: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + config.norm_eps) * (1 + weight)
