"""Byte-level language model without tokens, for segmenters that need the entropy of the next byte."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models.attention import sliding_window_attention
from rltok_rl.models.checks import check_byte_ids
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.heads import ByteHead
from rltok_rl.models.key_value_cache import WindowCache
from rltok_rl.models.layers import LayerStack, RMSNorm, rotary, window_rotary


class ByteModel(nn.Module):
    """Byte layers of a U-Net's encoder with a next-byte head."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.num_ids, config.width)
        self.layers = LayerStack(config, config.num_encoder_layers, config.byte_mlp_ratio)
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = ByteHead(config)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)  # unit size after sqrt(D)
        nn.init.normal_(self.head.projection.weight, std=0.02)  # first predictions close to uniform

    def forward(self, byte_ids: Tensor) -> Tensor:
        """Next-byte logits: [B, T] to [B, T, 256]."""
        check_byte_ids(byte_ids, self.config.num_ids)
        attend = partial(sliding_window_attention, window=self.config.window, cap=self.config.attention_cap)
        length, config = byte_ids.shape[1], self.config
        angles = window_rotary(length, config.head_size, config.rope_base, byte_ids.device)
        return self.head(self.norm(self.layers(self._embed(byte_ids), angles, lambda _: attend)))

    def loss(self, byte_ids: Tensor) -> Tensor:
        """Mean next-byte cost of windows [B, T] with T >= 2, in nats."""
        if byte_ids.shape[-1] < 2:
            raise ValueError(f"byte_ids must have at least 2 bytes per row, got {[*byte_ids.shape]}")
        return -next_byte_log_prob(self(byte_ids), byte_ids).mean()

    def new_cache(self, num_rows: int) -> WindowCache:
        """Return the cache of ``num_rows`` texts before their first byte."""
        config, weight = self.config, self.embedding.weight
        shape = (num_rows, config.num_encoder_layers, config.window, config.num_heads, config.head_size)
        return WindowCache(weight.new_zeros(shape), weight.new_zeros(shape))

    @torch.no_grad()
    def step(self, byte_ids: Tensor, position: Tensor, cache: WindowCache) -> Tensor:
        """Next-byte logits [B, 256] after bytes [B] at positions [B]; the cache is changed in place."""
        check_byte_ids(byte_ids, self.config.num_ids, rank=1)
        rows = torch.arange(len(byte_ids), device=byte_ids.device)
        attend_at = cache.attention(rows, position, self.config.attention_cap)
        angles = rotary(position, self.config.head_size, self.config.rope_base)
        return self.head(self.norm(self.layers(self._embed(byte_ids), angles, attend_at)))

    def _embed(self, byte_ids: Tensor) -> Tensor:
        return self.embedding(byte_ids.long()) * self.config.width**0.5
