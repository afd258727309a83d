"""Linear heads: the boundary policy's projection, and next-byte logits."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rltok_rl.functional.likelihood import byte_log_prob, byte_log_prob_in_parts
from rltok_rl.functional.policy import soft_cap
from rltok_rl.models.config import NUM_BYTES, UNetConfig


class BoundaryTerms(NamedTuple):
    """Terms of a boundary logit, ``l_t = base_t + sum_j a_{t-j} lags_{t,j}``."""

    base: Tensor  # [*B, T], float32 at least
    lags: Tensor  # [*B, T, w], float32 at least; lags[..., j - 1] goes with the boundary j bytes ago


class BoundaryHead(nn.Module):
    """Project byte states to the terms of their boundary logits (Eq. 21, 22).

        l^raw_t = W_0 X_t + sum_{j=1..w} a_{t-j} W_j X_t,      l_t = l^raw_t * scale + logit(target rate)

    The target rate is the configured one, or that of each row. The sampler draws boundaries from the terms.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.scale, self.num_lags = config.boundary_scale, config.num_lags
        self._training_cap = config.boundary_cap
        self.offset = math.log(config.target_rate) - math.log1p(-config.target_rate)
        self.projection = nn.Linear(config.width, 1 + config.num_lags, bias=config.boundary_bias)

    @property
    def cap(self) -> float | None:
        """Soft cap of boundary logits, in training only (Section 2.5)."""
        return self._training_cap if self.training else None

    def forward(self, states: Tensor, offset: Tensor | None = None) -> BoundaryTerms:
        """[*B, T, D] to base [*B, T] and lags [*B, T, w].

        ``offset`` are logits of target rates with the first dimensions of ``states``; None is the configured rate's.
        """
        with _without_autocast(states.device):  # a few products per byte, which all boundaries depend on
            terms = self.projection(states)  # [*B, T, 1 + w]
        terms = terms.to(torch.promote_types(terms.dtype, torch.float32)) * self.scale
        base = terms[..., 0]  # [*B, T]
        if offset is None:
            return BoundaryTerms(base + self.offset, terms[..., 1:])
        return BoundaryTerms(base + offset.reshape(offset.shape + (1,) * (base.dim() - offset.dim())), terms[..., 1:])


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device.type)  # not on the meta device, where FLOPs are counted
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


class ByteHead(nn.Module):
    """Next-byte logits over the 256 bytes, soft-capped as in Gemma 2."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.cap = config.final_cap
        self.projection = nn.Linear(config.width, NUM_BYTES, bias=False)

    def forward(self, states: Tensor, targets: Tensor | None = None, *, chunk: int | None = None) -> Tensor:
        """[*B, T, D] to logits [*B, T, 256], or to the log-likelihoods [*B, T] of ``targets``, float32 at least.

        For log-likelihoods, ``chunk`` positions have their logits in memory at once; None is all.
        """
        if targets is None:
            return self._logits(states)
        if chunk is None:
            return byte_log_prob(self._logits(states), targets)
        return byte_log_prob_in_parts(self._logits, states, targets, chunk)

    def _logits(self, states: Tensor) -> Tensor:
        logits = self.projection(states)
        return logits if self.cap is None else soft_cap(logits, self.cap)
