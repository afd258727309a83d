"""The U-Net with all its options, written down from equations row by row: slow, and separate from the library.

Nothing is shared with the library but the names of its parameters. Transformer layers are those of
`experiments/reinforce.py`. Tokens are picked in a Python loop.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from rltok_rl.experiments.reinforce import TransformerLayer, rotate, soft_cap
from torch import Tensor
from torch.func import functional_call


def textbook_forward(model, byte_ids: Tensor, boundaries: Tensor, *, training: bool = False) -> dict[str, Tensor]:
    """Run [B, T] bytes with given boundaries; returns boundary, early and final logits."""
    rows = [_row(model, byte_ids[b], boundaries[b], training) for b in range(len(byte_ids))]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _row(model, byte_ids: Tensor, boundaries: Tensor, training: bool) -> dict[str, Tensor]:
    config, clock = model.config, torch.arange(len(byte_ids))
    times = clock.tolist()
    window = (clock <= clock[:, None]) & (clock > clock[:, None] - config.window)
    closing, opening = window.clone(), window.clone()  # what the encoder and the decoder see
    if config.byte_scope == "token":
        start = {"encoder": 0, "decoder": 0}
        for t in times:
            start["decoder"] = t if boundaries[t] else start["decoder"]
            closing[t, : start["encoder"]] = opening[t, : start["decoder"]] = False
            start["encoder"] = t + 1 if boundaries[t] and t > 0 else start["encoder"]
    x = _layers(model, "encoder", _embed(model, byte_ids.tolist()) * math.sqrt(config.width), clock, closing)
    normed = _norm(model, "encoder_norm", x) if config.encoder_norm else x
    terms = _linear(model, "boundary_head.projection", normed)  # [T, 1 + w]
    lags = range(1, config.num_lags + 1)
    raw = [terms[t, 0] + sum((terms[t, j] * boundaries[t - j] for j in lags if t >= j), 0.0) for t in times]
    logits = torch.stack(raw) * config.boundary_scale + math.log(config.target_rate / (1 - config.target_rate))
    if training and config.boundary_cap is not None:
        logits = config.boundary_cap * torch.tanh(logits / config.boundary_cap)
    tokens, positions, serving, since = [], [], [], []
    for t in times:
        since.append(t)
        if boundaries[t]:
            if config.pooling == "attention":
                near = [u for u in since if t - u < config.window]
                tokens.append(x[t] + _cross(model, "token_pooling", x[t], t, x[near], near))
            else:
                tokens.append(x[t] if config.pooling == "select" else x[since].mean(0))
            positions.append(t)
            since = []
        serving.append(len(tokens) - 1)
    before, at, causal = torch.stack(tokens), torch.tensor(positions), _causal(len(tokens))
    lower = config.lower_layers
    heads = config.token_heads or config.num_heads
    after = _layers(model, "token_layers", _wider(before, model.token_pad), at, causal, range(lower), heads)
    if config.second_level is not None:
        after = _second_level(model, after, at, config.second_heads or heads)
    rest = range(lower, config.num_token_layers)
    after = _layers(model, "token_layers", after, at, causal, rest, heads)[:, : config.width]
    update = after - before if config.upsampling == "deviation" else after
    if config.smoothing != "none":
        update = _smoothed(update, [1.0 if t == 0 else torch.sigmoid(logits[t]) for t in positions])
    y = []
    for t in times:
        read = list(range(max(0, serving[t] - config.tokens_read + 1), serving[t] + 1))
        if config.upsampling == "attention":
            y.append(x[t] + _cross(model, "token_reading", x[t], t, update[read], [positions[j] for j in read]))
        else:
            y.append(x[t] + update[serving[t]])
    decoded = _norm(model, "decoder_norm", _layers(model, "decoder", torch.stack(y), clock, opening))
    return {
        "boundary_logits": logits,
        "early_logits": soft_cap(_linear(model, "early_head.projection", normed), config.final_cap),
        "final_logits": soft_cap(_linear(model, "final_head.projection", decoded), config.final_cap),
    }


def _smoothed(updates: Tensor, shares: list) -> Tensor:
    """U_j = P_j M_j + (1 - P_j) U_{j-1}, one token after the other."""
    out = [shares[0] * updates[0]]
    for j in range(1, len(shares)):
        out.append(shares[j] * updates[j] + (1 - shares[j]) * out[-1])
    return torch.stack(out)


def _embed(model, byte_ids: list[int]) -> Tensor:
    config, rows = model.config, []
    for t in range(len(byte_ids)):
        total = model.embedding.weight[byte_ids[t]]
        for number, size in enumerate(config.ngram_sizes):
            gram = [byte_ids[u] if u >= 0 else 0 for u in range(t - size + 1, t + 1)]
            bits = sum(byte * 1_000_000_007**k for k, byte in enumerate(gram)) % 2**64
            bucket = (bits - 2**64 if bits >= 2**63 else bits) % config.ngram_buckets  # as signed, rounded down
            total = total + model.get_parameter(f"ngrams.tables.{number}.weight")[bucket]
        rows.append(total / (1 + len(config.ngram_sizes)) if config.ngram_scale == "mean" else total)
    return torch.stack(rows)


def _wider(tokens: Tensor, pad: Tensor | None) -> Tensor:
    """Append one vector to every token."""
    return tokens if pad is None else torch.stack([torch.cat((token, pad)) for token in tokens])


def _second_level(model, z: Tensor, positions: Tensor, heads: int) -> Tensor:
    """Tokens [S, D] after they have received their tokens of tokens, one token after the other."""
    config, name, probs, places = model.config, "second_level.routing", [], []
    routes, projects = config.second_level == "routing", config.second_residual == "projection"
    x = _norm(model, f"{name}.token_norm", z) if projects else z
    for s in range(len(z)):
        chosen = s % config.second_stride == 0
        if routes:
            p = torch.ones(()).to(z)
            if s > 0:
                query, key = _linear(model, f"{name}.query", x[s - 1]), _linear(model, f"{name}.key", x[s])
                p = (1 - (query @ key) / (query.norm() * key.norm())) / 2
            probs.append(p)
            chosen = p > 0.5
        if chosen:
            places.append(s)
    wide, mask = _wider(x[places], model.second_level.pad), _causal(len(places))
    above = _layers(model, "second_level.layers", wide, positions[places], mask, heads=heads)[:, : z.shape[1]]
    if projects:
        above = _norm(model, f"{name}.update_norm", above)
    updates = _smoothed(above, [probs[s].clamp(1e-4, 1 - 1e-4) if routes else 1.0 for s in places])
    out, number = [], -1
    for s in range(len(z)):
        number += s in places
        own = _linear(model, f"{name}.residual", x[s]) if projects else z[s]
        c = (probs[s] if s in places else 1 - probs[s]) if routes else torch.ones(())
        out.append(own + (1 + (c - c.detach())) * updates[number])
    return torch.stack(out)


def _causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _layers(
    model, name: str, x: Tensor, clock: Tensor, mask: Tensor, only: range | None = None, heads: int | None = None
) -> Tensor:
    stack = model.get_submodule(name)
    one_width = dict.fromkeys(("token_width", "token_heads", "second_width", "second_heads"))
    heads = model.config.num_heads if heads is None else heads
    config = replace(model.config, width=x.shape[1], num_heads=heads, **one_width)
    for i in range(len(stack)) if only is None else only:
        with torch.device("meta"):
            layer = TransformerLayer(config, mlp_ratio=1)  # sizes come with the weights
        x = functional_call(layer, dict(stack[i].named_parameters()), (x[None], clock[None], mask))[0]
    return x


def _cross(model, name: str, asks: Tensor, at: int, held: Tensor, where: list[int]) -> Tensor:
    """One query [D] at a position, against states [n, D] at others: [D]."""
    config, heads = model.config, []
    query = _linear(model, f"{name}.query", _norm(model, f"{name}.query_norm", asks))
    keys, values = _linear(model, f"{name}.key_value", _norm(model, f"{name}.key_norm", held)).chunk(2, -1)
    for part in torch.arange(config.width).split(config.head_size):
        turned = _turn(keys[:, part], torch.tensor(where), config.rope_base)
        score = turned @ _turn(query[None, part], torch.tensor([at]), config.rope_base)[0] / math.sqrt(len(part))
        heads.append(soft_cap(score, config.attention_cap).softmax(0) @ values[:, part])
    return _norm(model, f"{name}.out_norm", _linear(model, f"{name}.out", torch.cat(heads)))


def _turn(x: Tensor, clock: Tensor, base: float) -> Tensor:
    return rotate(x[None, None], clock[None], base)[0, 0]


def _linear(model, name: str, x: Tensor) -> Tensor:
    product = x @ model.get_parameter(f"{name}.weight").T
    bias = model.get_submodule(name).bias
    return product if bias is None else product + bias


def _norm(model, name: str, x: Tensor) -> Tensor:
    weight = model.get_parameter(f"{name}.weight")
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + model.config.norm_eps) * (1 + weight)
