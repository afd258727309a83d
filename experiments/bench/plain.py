"""Reference training step in plain transformers code, for speed comparisons.

Layers are transformers' own Gemma-2 layers with dense masks, [T, T] for bytes and [B, 1, S, S] for tokens; boundaries
are drawn by a loop over bytes; every row of tokens is padded to the longest; both heads take a log-softmax over all of
[B, T, 256] in float32. It computes what :class:`~rltok_rl.models.UNet` and the paper's loss compute: weights can be
copied, and losses and gradients are then equal to rounding (``tests/experiments/test_plain.py``).

Shapes: B rows, T bytes, S tokens of the longest row, D width, w lags.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrl.objectives.value.functional import reward2go

from rltok_rl.models import UNetConfig


class PlainOutput(NamedTuple):
    """Inputs of a step's losses."""

    boundaries: Tensor  # [B, T] bool
    boundary_logits: Tensor  # [B, T]
    early: Tensor  # [B, T] log-probability of the next byte by the early exit
    final: Tensor  # [B, T] log-probability of the next byte


class PlainUNet(nn.Module):
    """The U-Net of selected tokens that are added back, of transformers' Gemma-2 layers.

    Args:
        config: sizes; the paper's options.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        from transformers.models.gemma2.modeling_gemma2 import Gemma2RotaryEmbedding

        self.config = config
        self.embedding = nn.Embedding(config.num_ids, config.width)
        self.encoder = _layers(config, config.num_encoder_layers, config.byte_mlp_ratio)
        self.tokens = _layers(config, config.num_token_layers, config.token_mlp_ratio)
        self.decoder = _layers(config, config.num_decoder_layers, config.byte_mlp_ratio)
        self.angles = Gemma2RotaryEmbedding(gemma_config(config, config.byte_mlp_ratio))
        self.encoder_norm, self.decoder_norm = _norm(config), _norm(config)
        self.boundary = nn.Linear(config.width, 1 + config.num_lags, bias=False)
        self.early_head = nn.Linear(config.width, 256, bias=False)
        self.final_head = nn.Linear(config.width, 256, bias=False)

    def forward(self, byte_ids: Tensor, uniforms: Tensor) -> PlainOutput:
        """Draw boundaries and predict every next byte.

        Args:
            byte_ids: [B, T + 1].
            uniforms: [B, T] in [0, 1) to draw with.
        """
        read, following = byte_ids[:, :-1], byte_ids[:, 1:]
        positions = torch.arange(read.shape[1], device=read.device)  # [T]
        behind = positions[:, None] - positions  # [T, T]
        near = (behind >= 0) & (behind < self.config.window)
        x = self.embedding(read) * self.config.width**0.5
        x = self._run(self.encoder, x, positions[None], near[None, None])  # [B, T, D]
        normed = self.encoder_norm(x)
        boundaries, logits = self._draw(normed, uniforms)
        gathered, where, real = _padded(boundaries, x)  # [B, S, D], [B, S], [B, S]
        causal = torch.ones(where.shape[1], where.shape[1], dtype=torch.bool, device=x.device).tril()
        thought = self._run(self.tokens, gathered, where, causal & real[:, None, None])  # [B, S, D]
        serving = boundaries.long().cumsum(1) - 1  # [B, T]
        x = x + thought.gather(1, serving[..., None].expand_as(x))
        x = self._run(self.decoder, x, positions[None], near[None, None])
        early = self._log_prob(self.early_head(normed), following)
        return PlainOutput(boundaries, logits, early, self._log_prob(self.final_head(self.decoder_norm(x)), following))

    def _run(self, layers: nn.ModuleList, x: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill(~seen, torch.finfo(x.dtype).min)
        angles = self.angles(x, positions)
        for layer in layers:
            out = layer(x, position_embeddings=angles, attention_mask=mask, position_ids=positions)
            x = out[0] if isinstance(out, tuple) else out  # older versions of transformers give a tuple
        return x

    def _draw(self, states: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Boundaries byte by byte, then the logits of them all with gradient: [B, T] each."""
        config = self.config
        terms = self.boundary(states).float() * config.boundary_scale
        rate = torch.tensor(config.target_rate)
        base, lags = terms[..., 0] + torch.logit(rate), terms[..., 1:]
        with torch.no_grad():
            drawn = [torch.ones_like(base[:, 0])]
            recent = torch.zeros_like(lags[:, 0])  # [B, w]
            for t in range(1, base.shape[1]):
                recent = torch.cat((drawn[-1][:, None], recent[:, :-1]), 1)
                logit = self._cap(base[:, t] + (lags[:, t] * recent).sum(-1))
                drawn.append((uniforms[:, t] < logit.sigmoid()).float())
            boundaries = torch.stack(drawn, 1)  # [B, T]
        before = F.pad(boundaries, (config.num_lags, 0)).unfold(1, config.num_lags, 1)[:, :-1].flip(-1)  # [B, T, w]
        return boundaries.bool(), self._cap(base + (lags * before).sum(-1))

    def _cap(self, logits: Tensor) -> Tensor:
        cap = self.config.boundary_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _log_prob(self, logits: Tensor, following: Tensor) -> Tensor:
        cap = self.config.final_cap
        capped = logits if cap is None else cap * torch.tanh(logits / cap)
        return capped.float().log_softmax(-1).gather(-1, following[..., None].long()).squeeze(-1)


def plain_loss(out: PlainOutput, *, target_rate: float, gamma: float = 0.99) -> Tensor:
    """``L_auto + 0.01 L_policy + 0.01 L_rate + 0.1 L_early`` (Section 2.6), the batch's mean as baseline.

    Args:
        target_rate: boundaries per byte.
        gamma: discount.
    """
    rewards = (out.final - out.early).detach()
    done = torch.zeros_like(rewards, dtype=torch.bool)
    done[:, -1] = True
    returns = reward2go(rewards[..., None], done[..., None], gamma)[..., 0]  # [B, T]
    baseline = returns.mean(0) if len(returns) > 1 else 0.0  # a row alone has none to be compared with
    advantages = (returns - baseline)[:, 1:]  # the first boundary is no choice
    logits, boundaries = out.boundary_logits[:, 1:], out.boundaries[:, 1:].float()
    policy = F.binary_cross_entropy_with_logits(logits, boundaries, reduction="none")
    pressure = (logits.sigmoid().mean() - target_rate).detach()
    return (
        -out.final.mean()
        + 0.01 * (policy * advantages).mean()
        + 0.01 * logits.mean() * pressure
        - 0.1 * out.early.mean()
    )


def gemma_config(config: UNetConfig, mlp_ratio: int) -> Any:
    """Return the configuration of a Gemma-2 layer of these sizes; the attention mask is passed separately."""
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Config

    options: dict[str, Any] = {"attn_implementation": "eager" if config.attention_cap else "sdpa"}  # as for Gemma 2
    return Gemma2Config(
        hidden_size=config.width,
        intermediate_size=mlp_ratio * config.width,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        head_dim=config.head_size,
        query_pre_attn_scalar=config.head_size,
        attn_logit_softcapping=config.attention_cap,
        num_hidden_layers=1,
        layer_types=["full_attention"],
        rms_norm_eps=config.norm_eps,
        **options,
    )


def _layers(config: UNetConfig, count: int, mlp_ratio: int) -> Any:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer

    return nn.ModuleList(Gemma2DecoderLayer(gemma_config(config, mlp_ratio), 0) for _ in range(count))


def _norm(config: UNetConfig) -> Any:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

    return Gemma2RMSNorm(config.width, config.norm_eps)


def _padded(boundaries: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of every row, padded to the longest: states [B, S, D], byte positions [B, S], whether they are real."""
    rows = [row.nonzero().squeeze(1) for row in boundaries]
    where = nn.utils.rnn.pad_sequence(rows, batch_first=True)  # [B, S]
    counts = torch.tensor([len(row) for row in rows], device=x.device)
    real = torch.arange(where.shape[1], device=x.device) < counts[:, None]
    return x.gather(1, where[..., None].expand(-1, -1, x.shape[-1])), where, real
