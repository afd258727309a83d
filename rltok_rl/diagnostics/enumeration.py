"""Enumeration of all boundary strings of a short text, with the model's outputs for each.

Shapes: M texts of T + 1 bytes each, n = 2^(T - 1) strings of T decisions (the first is forced), D width, w lags.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob, boundary_logits, recent_boundaries
from rltok_rl.functional.rewards import Reward, as_reward, charge_boundaries, prediction_entropy
from rltok_rl.models.checks import check_byte_ids
from rltok_rl.models.unet import UNet
from rltok_rl.text import text_to_ids

MOST_BYTES = 16
"""Decisions of the longest text that is enumerated: 2^15 strings."""

Texts = str | bytes | Tensor | Sequence[str | bytes]


def boundary_strings(num_steps: int) -> Tensor:
    """List every string of ``num_steps`` decisions that begins with a boundary, [2^(T - 1), T] bool.

    Example:
        >>> boundary_strings(3).int().tolist()
        [[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]]
    """
    if not 1 <= num_steps <= MOST_BYTES:
        raise ValueError(
            f"num_steps must lie in 1..{MOST_BYTES} to be enumerated (a text of T + 1 bytes has T steps and 2^(T - 1) "
            f"strings), got {num_steps}"
        )
    numbers = torch.arange(2 ** (num_steps - 1))
    places = torch.arange(num_steps - 1).flip(0)
    rest = (numbers[:, None] >> places) & 1  # [n, T - 1]
    return torch.cat((torch.ones(len(numbers), 1, dtype=torch.bool), rest.bool()), 1)


def enumerate_rollouts(
    model: UNet, texts: Texts, *, reward: str | Reward = "log_likelihood", price: float = 0.0
) -> TensorDictBase:
    """Roll the model out along every boundary string of every text, in the model's own precision.

    Keys are those of :meth:`~rltok_rl.envs.ByteBoundaryEnv.parallel_rollout`, and ``log_weight`` [M, n, T], the
    log-probability of the whole string. With gradients on, logits, log-probabilities and log-likelihoods carry them.
    The soft cap of the policy depends on the model's mode.

    Texts are one, several of one length, or ids [M, T + 1] with their mark. A boundary costs ``price`` nats.
    """
    byte_ids = _as_ids(texts, model).to(model.embedding.weight.device)  # [M, T + 1]
    strings = boundary_strings(byte_ids.shape[1] - 1).to(byte_ids.device)
    boundaries = strings.expand(len(byte_ids), -1, -1)  # [M, n, T]
    return roll_out_strings(model, byte_ids, boundaries, reward=reward, price=price)


def roll_out_strings(
    model: UNet, byte_ids: Tensor, boundaries: Tensor, *, reward: str | Reward = "log_likelihood", price: float = 0.0
) -> TensorDictBase:
    """Roll the model out along given strings ``boundaries`` [M, n, T] bool, n of each text [M, T + 1].

    The rollouts [M, n, T] have the keys of :func:`enumerate_rollouts`.
    """
    reward_of = as_reward(reward)
    num_texts, count, num_steps = shape = tuple(boundaries.shape)

    def per_string(x: Tensor) -> Tensor:  # [M, T, ...] to [M, n, T, ...]
        return x.unsqueeze(1).expand(num_texts, count, *x.shape[1:])

    encoded = model.encode(byte_ids)  # [M, T + 1, D]: nothing of it depends on boundaries
    states = encoded[:, :-1]
    base, lags = model.boundary_terms(states)
    early_logits = model.early_logits(states)
    logits = boundary_logits(per_string(base), per_string(lags), boundaries, cap=model.boundary_cap)
    # Of all T + 1 bytes, of which the last has no decision.
    places = torch.arange(num_steps + 1, device=byte_ids.device).expand(*shape[:2], -1)
    recent = recent_boundaries(F.pad(boundaries, (0, 1)), model.config.num_lags).to(torch.int8)
    position, forced = places[..., :-1], places[..., :-1] == 0
    log_probs = boundary_log_prob(logits, boundaries, forced=forced)
    decoded = model.decode(per_string(states).flatten(0, 1), boundaries.flatten(0, 1))  # [M n, T, D]
    revealed = byte_ids[:, 1:]
    final = byte_log_prob(model.final_logits(decoded).unflatten(0, (num_texts, count)), per_string(revealed))
    early = per_string(byte_log_prob(early_logits, revealed))
    entropy = per_string(prediction_entropy(early_logits))
    rewards = reward_of(final.detach(), early.detach(), entropy.detach())
    rewards = charge_boundaries(rewards, boundaries, price)

    last = (position == num_steps - 1).unsqueeze(-1)
    following = {
        "reward": rewards.unsqueeze(-1),
        "final_log_prob": final.unsqueeze(-1),
        "early_log_prob": early.unsqueeze(-1),
        "done": last,
        # Nothing after the window counts, so no value is added at its end.
        "terminated": last.clone(),
        "truncated": torch.zeros_like(last),
        "byte": per_string(revealed),
        "recent": recent[..., 1:, :],
        "position": places[..., 1:].unsqueeze(-1),
        "forced": places[..., 1:] == 0,
        "encoder_state": per_string(encoded[:, 1:]),
    }
    content = {
        "byte": per_string(byte_ids[:, :-1]),
        "recent": recent[..., :-1, :],
        "position": position.unsqueeze(-1),
        "forced": forced,
        "encoder_state": per_string(states),
        "action": boundaries.long(),
        "logits": logits,
        "entropy": boundary_entropy(logits, forced=forced),
        "action_log_prob": log_probs,
        "log_weight": log_probs.sum(-1, keepdim=True).expand(shape),
        "early_entropy": entropy.unsqueeze(-1),
        "next": TensorDict(following, shape),
    }
    return TensorDict(content, shape, names=[None, None, "time"])


def _as_ids(texts: Texts, model: UNet) -> Tensor:
    """[M, T + 1] int64."""
    if isinstance(texts, Tensor):
        ids = texts if texts.dim() == 2 else texts[None]
        check_byte_ids(ids, model.config.num_ids)
    else:
        rows = [text_to_ids(text) for text in ([texts] if isinstance(texts, (str, bytes)) else texts)]
        if not rows or len({len(row) for row in rows}) != 1:
            raise ValueError(f"texts must be at least one, all of one length, got lengths {[len(row) for row in rows]}")
        ids = model.mark(torch.stack(rows))
    if ids.shape[1] < 2:
        raise ValueError(f"texts must have at least 2 bytes (one to read, one to predict), got {ids.shape[1]}")
    return ids.long()
