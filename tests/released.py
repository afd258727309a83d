"""One update of the authors' released recipe, written down position by position: slow, and separate from the library.

Nothing is shared with the library but the names of its parameters; layers are those of `experiments/reinforce.py`. A
text x_1 .. x_T is read as S = T + 1 inputs, the mark of its beginning and T bytes. Positions count from 0: input 0 is
the mark, input i predicts byte i + 1, and the last one predicts nothing. Weights are float64 tensors by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rltok_rl.experiments.reinforce import Config, TransformerLayer
from torch import Tensor
from torch.func import functional_call

MARK = 256


@dataclass(frozen=True)
class Released:
    """The constants of the released recipe, and sizes."""

    num_heads: int
    window: int  # bytes that a byte layer sees
    target: float
    lags: int = 7  # filter_size 8: seven earlier boundaries and the base term
    scale: float = 1 / 16
    boundary_cap: float = 6.0
    attention_cap: float = 50.0
    final_cap: float = 30.0
    gamma: float = 0.99
    early_weight: float = 0.1
    policy_weight: float = 0.01
    rate_weight: float = 0.01
    end_logit: float = 100.0


def update(
    weights: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    recipe: Released,
    devices: Sequence[tuple[Tensor, Tensor]],
    *,
    learning_rate: float,
    clip_norm: float = 1.0,
) -> dict[str, float]:
    """Update the weights in place by the mean gradient of several micro-batches, each with means of its own.

    ``devices`` holds texts [B, T] and random numbers [B, T] of every micro-batch of every device.
    """
    optimizer.zero_grad()
    totals: dict[str, float] = {}
    for texts, uniforms in devices:
        found = losses(weights, recipe, texts.tolist(), uniforms.tolist())
        (sum(found.values()) / len(devices)).backward()
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + value.item() / len(devices)
    squares = sum((w.grad**2).sum().item() for w in weights.values())
    totals["grad_norm"] = math.sqrt(squares)
    for weight in weights.values():
        weight.grad *= min(1.0, clip_norm / (totals["grad_norm"] + 1e-6))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return totals


def learning_rate(peak: float, number: int, warm_up: int, total: int) -> float:
    """The rate of update ``number``, from 0: linear from a tenth of the peak, then a cosine to 0."""
    if number < warm_up:
        return peak * (0.1 + 0.9 * number / warm_up)
    return peak * (1 + math.cos(math.pi * (number - warm_up) / (total - warm_up))) / 2


def losses(
    weights: dict[str, Tensor], recipe: Released, texts: list[list[int]], uniforms: list[list[float]]
) -> dict[str, Tensor]:
    """All losses of one micro-batch, with their weights."""
    rows = [_row(weights, recipe, [MARK, *text], draws) for text, draws in zip(texts, uniforms, strict=True)]
    num_rows, size = len(texts), len(texts[0]) + 1  # B, S
    late = sum(row["late"][i] for row in rows for i in range(size - 1)) / (num_rows * (size - 1))
    early = sum(row["early"][i] for row in rows for i in range(size - 1)) / (num_rows * (size - 1))
    rewards = [[(row["early"][i] - row["late"][i]).item() for i in range(size - 1)] for row in rows]
    for i in range(size - 1):
        mean = sum(row[i] for row in rewards) / num_rows
        for row in rewards:
            row[i] -= mean
    policy = torch.zeros((), dtype=torch.float64)
    for row, reward in zip(rows, rewards, strict=True):
        for i in range(size):  # the last input has no reward, and its decision is forced
            gain = sum(recipe.gamma ** (u - i) * reward[u] for u in range(i, size - 1))
            policy = policy - gain * row["log_prob"][i] / (num_rows * size)
    mean_logit = sum(row["logit"][i] for row in rows for i in range(size)) / (num_rows * size)
    mean_prob = sum(row["prob"][i].item() for row in rows for i in range(size)) / (num_rows * size)
    return {
        "loss_language_model": (1 - recipe.early_weight) * late,
        "loss_early_exit": recipe.early_weight * early,
        "loss_policy": recipe.policy_weight * policy,
        "loss_rate": recipe.rate_weight * mean_logit * (mean_prob - recipe.target),
    }


def _row(w: dict[str, Tensor], recipe: Released, ids: list[int], draws: list[float]) -> dict[str, list[Tensor]]:
    """Costs of both predictions, and decisions with logits, probabilities and log-probabilities, of S inputs."""
    size, width = len(ids), w["embedding.weight"].shape[1]
    places = list(range(size))
    x = _layers(w, "encoder", [w["embedding.weight"][i] * math.sqrt(width) for i in ids], places, recipe, recipe.window)
    boundaries: list[int] = []
    row: dict[str, list[Tensor]] = {name: [] for name in ("late", "early", "logit", "prob", "log_prob")}
    for i in places:
        logit, prob, log_prob = _decide(w, recipe, x[i], boundaries)
        if i in (0, size - 1):
            drawn, logit, prob, log_prob = 1, logit.new_tensor(recipe.end_logit), torch.ones(()), torch.zeros(())
        else:
            drawn = int(draws[i] < prob.item())
            log_prob = log_prob if drawn else torch.log1p(-prob)
        boundaries.append(drawn)
        for name, value in (("logit", logit), ("prob", prob), ("log_prob", log_prob)):
            row[name].append(value)
    chosen = [i for i in places if boundaries[i]]
    tokens = _layers(w, "token_layers", [x[i] for i in chosen], chosen, recipe, size)
    y = [x[i] + tokens[sum(boundaries[: i + 1]) - 1] for i in places]
    decoded = [_norm(w["decoder_norm.weight"], z) for z in _layers(w, "decoder", y, places, recipe, recipe.window)]
    for i in range(size - 1):
        row["late"].append(_cost(w, "final_head", recipe, decoded[i], ids[i + 1]))
        row["early"].append(_cost(w, "early_head", recipe, x[i], ids[i + 1]))
    return row


def _decide(w: dict[str, Tensor], recipe: Released, x: Tensor, before: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Logit, probability and its logarithm of a boundary, after the boundaries ``before``."""
    terms = w["boundary_head.projection.weight"] @ x + w["boundary_head.projection.bias"]  # base, then lag 1, 2, ..
    raw = terms[0]
    for lag in range(1, recipe.lags + 1):
        if lag <= len(before) and before[-lag]:
            raw = raw + terms[lag]
    logit = recipe.scale * raw + math.log(recipe.target / (1 - recipe.target))
    logit = recipe.boundary_cap * torch.tanh(logit / recipe.boundary_cap)
    prob = 1 / (1 + torch.exp(-logit))
    return logit, prob, torch.log(prob)


def _cost(w: dict[str, Tensor], head: str, recipe: Released, state: Tensor, byte: int) -> Tensor:
    """Minus the log-likelihood of a byte, from a linear layer with a bias."""
    logits = w[f"{head}.projection.weight"] @ state + w[f"{head}.projection.bias"]
    logits = recipe.final_cap * torch.tanh(logits / recipe.final_cap)
    return torch.log(torch.exp(logits).sum()) - logits[byte]


def _layers(
    w: dict[str, Tensor], stack: str, x: list[Tensor], places: list[int], recipe: Released, window: int
) -> list[Tensor]:
    """Layers over vectors at places; one sees the last ``window`` vectors, itself included."""
    config = Config(width=len(x[0]), num_heads=recipe.num_heads, attention_cap=recipe.attention_cap)
    with torch.device("meta"):
        layer = TransformerLayer(config, mlp_ratio=1)  # sizes come with the weights
    states, order = torch.stack(x)[None], torch.arange(len(x))
    mask = (order <= order[:, None]) & (order > order[:, None] - window)
    number = 0
    while weights := _below(w, f"{stack}.{number}."):
        states = functional_call(layer, weights, (states, torch.tensor([places]), mask))
        number += 1
    return [*states[0]]


def _below(w: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Weights whose names begin with ``prefix``, by the rest of the name."""
    return {name.removeprefix(prefix): weight for name, weight in w.items() if name.startswith(prefix)}


def _norm(weight: Tensor, x: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).mean() + 1e-6) * (1 + weight)
