"""Embeddings and heads: what is added to byte embeddings, the boundary policy's projection, and next-byte logits.

Shapes: B rows, T bytes, D width, w lags, n bytes of an n-gram.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rltok_rl.functional.likelihood import byte_log_prob, byte_log_prob_in_parts, check_targets
from rltok_rl.functional.ngrams import ngram_hash
from rltok_rl.functional.policy import soft_cap
from rltok_rl.functional.reduction import wide
from rltok_rl.fused import fuses, head_log_prob, untouched
from rltok_rl.models.checks import check_rates
from rltok_rl.models.config import NUM_BYTES, UNetConfig

TargetRate = float | Tensor
"""Boundaries per byte, of all rows or [B] of each."""
_FREQUENCIES = (1.0, 0.5, 0.25, 0.125)  # per unit of logit; the slowest has a period of 50, which covers all rates


class NgramEmbedding(nn.Module):
    """Embeddings of byte n-grams: one table per size, whose rows n-grams share by their hash.

        e_t = s ( E(x_t) + sum_n E_n[hash(x_{t-n+1} .. x_t)] ),    s = 1 / (1 + number of sizes), or 1 for "sum"

    Reference: https://arxiv.org/abs/2412.09871
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.sizes, self.buckets, self.before = config.ngram_sizes, config.ngram_buckets, config.bytes_before
        self.scale = 1.0 if config.ngram_scale == "sum" else 1.0 / (1 + len(self.sizes))
        self.tables = nn.ModuleList(nn.Embedding(self.buckets, config.width) for _ in self.sizes)

    def forward(self, embedded: Tensor, byte_ids: Tensor, before: Tensor | None = None) -> Tensor:
        """Add n-grams of [*B, T] bytes, and of the n - 1 ``before`` them (None: a text's start), to [*B, T, D]."""
        ids = byte_ids.long()
        ids = F.pad(ids, (self.before, 0)) if before is None else torch.cat((before, ids), -1)  # [*B, n - 1 + T]
        for size, table in zip(self.sizes, self.tables, strict=True):
            hashes = ngram_hash(ids[..., self.before - size + 1 :], size, self.buckets)  # [*B, T]
            embedded = embedded + table(hashes)
        return embedded * self.scale


def row_rates(config: UNetConfig, target_rate: TargetRate | None, like: Tensor) -> Tensor | None:
    """Return the target rate of each row of ``like`` [B, ...], float32; None for models without ``rate_embedding``."""
    if not config.rate_embedding:
        if target_rate is not None:
            one_rate = f"the model has one rate only (rate_embedding=False), {config.target_rate}"
            raise ValueError(f"target_rate must be left out where {one_rate}")
        return None
    rate = config.target_rate if target_rate is None else target_rate
    check_rates(rate, like.shape)
    if isinstance(rate, Tensor):
        return rate.to(like.device, torch.float32)
    return torch.full(like.shape[:1], float(rate), dtype=torch.float32, device=like.device)


def rate_logits(rates: Tensor) -> Tensor:
    """Return the log-odds of rates [*L], the policy's bias, in the same dtype."""
    return rates.double().logit().to(rates.dtype)


class RateEmbedding(nn.Module):
    """Embedding of a row's target rate, added to each of its bytes.

        e = F f(logit(rate) - logit(configured rate)),      f(s) = (sin(s w), cos(s w) - 1)  for four frequencies w

    F is zero at first, and f is zero at the configured rate.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.centre = math.log(config.target_rate) - math.log1p(-config.target_rate)
        self.weight = nn.Parameter(torch.zeros(2 * len(_FREQUENCIES), config.width))

    def forward(self, rates: Tensor) -> Tensor:
        """[*L] to [*L, D]."""
        turns = (rate_logits(rates) - self.centre)[..., None] * rates.new_tensor(_FREQUENCIES)
        features = torch.cat((turns.sin(), turns.cos() - 1), -1)  # [*L, 8]
        return features.to(self.weight.dtype) @ self.weight


class BoundaryTerms(NamedTuple):
    """Terms of a boundary logit, ``l_t = base_t + sum_j a_{t-j} lags_{t,j}``."""

    base: Tensor  # [*B, T], float32 at least
    lags: Tensor  # [*B, T, w], float32 at least; lags[..., j - 1] goes with the boundary j bytes ago


class BoundaryHead(nn.Module):
    """Project byte states to the terms of their boundary logits (Eq. 21, 22).

    l^raw_t = W_0 X_t + sum_{j=1..w} a_{t-j} W_j X_t,      l_t = l^raw_t * scale + logit(target rate)
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
        device = states.device.type
        autocast = torch.amp.is_autocast_available(device)  # not on the meta device, where FLOPs are counted
        # A few products per byte, which all boundaries depend on.
        with torch.autocast(device, enabled=False) if autocast else nullcontext():
            terms = self.projection(states)  # [*B, T, 1 + w]
        terms = terms.to(wide(terms)) * self.scale
        base = terms[..., 0]  # [*B, T]
        if offset is None:
            return BoundaryTerms(base + self.offset, terms[..., 1:])
        return BoundaryTerms(base + offset.reshape(offset.shape + (1,) * (base.dim() - offset.dim())), terms[..., 1:])


class ByteHead(nn.Module):
    """Next-byte logits over the 256 bytes, soft-capped as in Gemma 2."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.cap = config.final_cap
        self.projection = nn.Linear(config.width, NUM_BYTES, bias=config.head_bias)

    def forward(self, states: Tensor, targets: Tensor | None = None, *, chunk: int | None = None) -> Tensor:
        """[*B, T, D] to logits [*B, T, 256], or to the log-likelihoods [*B, T] of ``targets``, float32 at least.

        With ``chunk``, only so many positions have their logits in memory at once.
        """
        if targets is None:
            return self._logits(states)
        if untouched(self.projection, nn.Linear) and fuses(states, self.projection.weight):
            check_targets(targets, states.shape[:-1], NUM_BYTES)
            return head_log_prob(states, self.projection.weight, targets, self.cap)
        if chunk is None:
            return byte_log_prob(self._logits(states), targets)
        return byte_log_prob_in_parts(self._logits, states, targets, chunk)

    def _logits(self, states: Tensor) -> Tensor:
        logits = self.projection(states)
        return logits if self.cap is None else soft_cap(logits, self.cap)
