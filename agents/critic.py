"""A learned estimate of the return, for estimators that need one."""

from __future__ import annotations

from torch import Tensor, nn
from torchrl.modules import ValueOperator

from rltok_rl.models.config import UNetConfig


class BoundaryCritic(ValueOperator):
    """State values from the encoder state: reads ``encoder_state``, writes ``state_value`` [*B, T, 1].

    The last layer starts at zero, so an untrained critic is a baseline of zero. ``detach`` keeps the critic's gradient
    out of the encoder.
    """

    def __init__(self, config: UNetConfig, *, hidden: int = 128, detach: bool = True) -> None:
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        layers = [nn.RMSNorm(config.width), nn.Linear(config.width, hidden), nn.GELU(), last]
        super().__init__(nn.Sequential(*([_Detach()] if detach else []), *layers), in_keys=["encoder_state"])


class _Detach(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()
