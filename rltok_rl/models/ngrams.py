"""Embeddings of the last few bytes together, added to the embedding of a byte.

Shapes: B rows, T bytes, D width, n bytes of an n-gram.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rltok_rl.functional.ngrams import ngram_hash
from rltok_rl.models.config import UNetConfig


class NgramEmbedding(nn.Module):
    """One table per size of n-gram; n-grams share its rows by their hash.

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
        """Add what the n-grams that end at each byte say.

        Args:
            embedded: [*B, T, D] embeddings of the bytes alone.
            byte_ids: [*B, T] the bytes.
            before: [*B, n - 1] the bytes before them, for the largest n; None is the beginning of a text.

        Returns:
            [*B, T, D].
        """
        ids = byte_ids.long()
        ids = F.pad(ids, (self.before, 0)) if before is None else torch.cat((before, ids), -1)  # [*B, n - 1 + T]
        for size, table in zip(self.sizes, self.tables, strict=True):
            hashes = ngram_hash(ids[..., self.before - size + 1 :], size, self.buckets)  # [*B, T]
            embedded = embedded + table(hashes)
        return embedded * self.scale
