"""A critic that reads the tokens before each byte, and generalised advantages with it."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrl.modules import ValueOperator

from rltok_rl.models.config import UNetConfig
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.critics import CriticAdvantage


class PooledCritic(ValueOperator):
    """State values from the encoder state and the tokens so far: writes ``state_value`` [*B, T, 1].

    A token is read by the state of the byte after its boundary, where ``recent[..., 0]`` is 1. The critic reads the
    state of a byte, the last token, the mean of the tokens of this text so far, their number, and the bytes since the
    last one. Time is the last dimension of the batch.
    """

    def __init__(self, config: UNetConfig, *, hidden: int = 128) -> None:
        if config.num_lags < 1:
            raise ValueError(f"num_lags must be at least 1 for a critic that pools tokens, got {config.num_lags}")
        super().__init__(_PooledValue(config.width, hidden), in_keys=["encoder_state", "recent", "position"])


class PooledCriticAdvantage(CriticAdvantage):
    """Generalised advantages of a :class:`PooledCritic`, for ``loss=ppo``, which trains it.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        lmbda: weight of later steps in [0, 1].
        **options: of :class:`~rltok_rl.objectives.critics.CriticAdvantage`.
    """

    def __init__(self, model: UNet, *, gamma: float, lmbda: Annotated[float, "[0, 1]"] = 0.95, **options: Any) -> None:
        critic = PooledCritic(model.config).to(model.embedding.weight)
        super().__init__(gamma=gamma, lmbda=lmbda, value_network=critic, **options)


class _PooledValue(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.hidden = nn.Linear(3 * width + 2, hidden)
        self.value = nn.Linear(hidden, 1)
        nn.init.zeros_(self.value.weight)  # an untrained critic is a baseline of zero
        nn.init.zeros_(self.value.bias)

    def forward(self, states: Tensor, recent: Tensor, position: Tensor) -> Tensor:
        """[*B, T, D], [*B, T, num_lags] and [*B, T, 1] to [*B, T, 1]."""
        states = self.norm(states.detach())
        is_token = recent[..., 0].bool()
        position = position.squeeze(-1)
        place = torch.arange(position.shape[-1], device=position.device)
        first = (place - position + 1).clamp(min=0)  # a text's first byte follows no boundary
        tokens = _sum_from(first, states * is_token.unsqueeze(-1))
        number = _sum_from(first, is_token.unsqueeze(-1).to(states))
        last = torch.where(is_token, place, -1).cummax(-1).values
        exists = last >= first
        latest = states.gather(-2, last.clamp(min=0).unsqueeze(-1).expand_as(states)) * exists.unsqueeze(-1)
        distance = torch.where(exists, place - last, position).unsqueeze(-1).to(states)
        read = (states, latest, tokens / number.clamp(min=1), number.log1p(), distance.log1p())
        value: Tensor = self.value(F.gelu(self.hidden(torch.cat(read, -1))))
        return value


def _sum_from(first: Tensor, values: Tensor) -> Tensor:
    """Sum values [*B, T, D] from the step ``first`` [*B, T] on, up to each step."""
    sums = F.pad(values.cumsum(-2), (0, 0, 1, 0))  # before each step
    before = sums.gather(-2, first.unsqueeze(-1).expand_as(values))
    return sums[..., 1:, :] - before
