"""Additions to byte embeddings: hashed n-grams and target rates.

Shapes: B rows, T bytes, D width, n bytes of an n-gram.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rltok_rl.functional.ngrams import ngram_hash
from rltok_rl.models.checks import check_rates
from rltok_rl.models.config import UNetConfig


class NgramEmbedding(nn.Module):
    """Embeddings of byte n-grams: one table per size, whose rows n-grams share by their hash.

        e_t = s ( E(x_t) + sum_n E_n[hash(x_{t-n+1} .. x_t)] ),    s = 1 / (1 + number of sizes), or 1

    ``ngram_scale="mean"`` is the s of BLT's paper, ``"sum"`` that of its code.

    Reference: https://arxiv.org/abs/2412.09871
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.sizes, self.buckets, self.before = config.ngram_sizes, config.ngram_buckets, config.bytes_before
        self.scale = 1.0 if config.ngram_scale == "sum" else 1.0 / (1 + len(self.sizes))
        self.tables = nn.ModuleList(nn.Embedding(self.buckets, config.width) for _ in self.sizes)

    def forward(self, embedded: Tensor, byte_ids: Tensor, before: Tensor | None = None) -> Tensor:
        """Add the n-grams that end at each byte of [*B, T] to its embedding [*B, T, D].

        ``before`` [*B, n - 1] are the bytes before, for the largest n; None is the beginning of a text.
        """
        ids = byte_ids.long()
        ids = F.pad(ids, (self.before, 0)) if before is None else torch.cat((before, ids), -1)  # [*B, n - 1 + T]
        for size, table in zip(self.sizes, self.tables, strict=True):
            hashes = ngram_hash(ids[..., self.before - size + 1 :], size, self.buckets)  # [*B, T]
            embedded = embedded + table(hashes)
        return embedded * self.scale


TargetRate = float | Tensor
"""Boundaries per byte, of all rows or [B] of each."""
_FREQUENCIES = (1.0, 0.5, 0.25, 0.125)  # per unit of logit; the period of the slowest, 50, covers all rates


def row_rates(config: UNetConfig, target_rate: TargetRate | None, like: Tensor) -> Tensor | None:
    """Return the target rate of each row of ``like`` [B, ...], float32; None for models without ``rate_embedding``.

    Example:
        >>> from rltok_rl.models import preset
        >>> row_rates(preset("tiny", rate_embedding=True), 0.25, torch.zeros(2, 9))
        tensor([0.2500, 0.2500])
    """
    if not config.rate_embedding:
        if target_rate is not None:
            raise ValueError(
                "target_rate must be left out if the model has one rate only (rate_embedding=False), "
                f"{config.target_rate}"
            )
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
