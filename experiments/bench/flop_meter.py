"""The FLOPs of a batch, apart: matrix products of real tokens and with padding, and attention scores beside them.

Matrix products are what :mod:`rltok_rl.models.flops` counts and a training is charged for, as in the paper. Attention
scores are not in them, and are figures of their own here:

    FLOPs of a layer's scores = 4 D x pairs        (two for each multiply-add; q . k, and weights times v)

over the pairs of a query and a key that it may see; and over all pairs that are multiplied, which are more: blocks of
the sliding window are masked in part, causal attention throws half of its square away, and padding has scores too.

Shapes: B rows, T bytes, S tokens of the longest row, D width, W window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from rltok_rl.models.attention import CAPPED_CHUNK, SMALLEST_BLOCK
from rltok_rl.models.checks import check_boundaries
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.flops import forward_flops
from rltok_rl.models.unet import UNet


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one pass over a batch."""

    products: float
    """Matrix products, on bytes and real tokens: what packed tokens cost, and what a budget of FLOPs counts."""
    padded_products: float
    """The same with rows of tokens padded to the longest: what padded tokens cost."""
    scores: float
    """Attention scores that may be seen, and the values that they weigh."""
    multiplied_scores: float
    """The same of all pairs that are multiplied, masked and padded ones included."""


def count_flops(
    model: UNet, boundaries: Tensor, *, second: Tensor | None = None, backward: bool = False, own: int = 0
) -> FlopCount:
    """Count the FLOPs of a forward pass over [B, T] bytes, or of a forward and a backward pass.

    A backward pass counts twice as much as a forward pass, for scores too; kernels that do not keep the scores multiply
    those of q . k once more.

    Args:
        model: the U-Net.
        boundaries: [B, T] bool or 0/1, 1 in the first column.
        second: [B, T] bool, those of the second level at their bytes (``out.second.boundaries``); None takes as many as
            the model aims at, in every row.
        backward: whether the backward pass is counted as well.
        own: entries of weight matrices that run on every byte besides, as a segmenter's
            (:func:`rltok_rl.training.metrics.segmenter_matrices`).

    Example:
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> boundaries = torch.tensor([[1, 0, 0, 1], [1, 0, 0, 0]])
        >>> found = count_flops(model, boundaries)  # three tokens, one of padding
        >>> found.padded_products - found.products == 2 * 16 * 64**2
        True
        >>> found.scores / (4 * 64)  # pairs: 2 rows x 10 of 4 bytes, in two layers; 3 and 1 of tokens
        44.0
    """
    check_boundaries(boundaries, boundaries.shape)
    config = model.config
    num_rows, length = boundaries.shape
    tokens = boundaries.bool().sum(1).tolist()
    widest = max(tokens, default=0)
    above = [config.second_rate * n for n in tokens] if second is None else second.bool().sum(1).tolist()
    above = above if config.second_level is not None else [0] * num_rows
    num_bytes, passes = num_rows * length, 3.0 if backward else 1.0
    products = forward_flops(model, num_bytes, sum(tokens), num_second=sum(above))
    padded = forward_flops(model, num_bytes, num_rows * widest, num_second=num_rows * max(above, default=0))
    both = 2.0 * own * num_bytes
    scores = sum(sum(score_flops(config, length, n, upper).values()) for n, upper in zip(tokens, above, strict=True))
    most = sum(multiplied_score_flops(config, length, widest, max(above, default=0)).values())
    return FlopCount(*(passes * x for x in (products + both, padded + both, scores, num_rows * most)))


def score_flops(config: UNetConfig, num_bytes: int, num_tokens: float, num_second: float = 0.0) -> dict[str, float]:
    """FLOPs of the attention scores of one row in a forward pass, by part, of pairs that may be seen.

        bytes:   sum_t min(t + 1, W)        tokens:   S (S + 1) / 2

    Args:
        config: of the model.
        num_bytes: T.
        num_tokens: S; a mean will do, as if all rows had it.
        num_second: tokens of tokens.
    """
    inside = min(num_bytes, config.window)
    byte_pairs = inside * (inside + 1) / 2 + (num_bytes - inside) * config.window
    pairs: dict[str, float] = {
        "encoder": config.num_encoder_layers * byte_pairs,
        "decoder": config.num_decoder_layers * byte_pairs,
        "token_layers": config.num_token_layers * num_tokens * (num_tokens + 1) / 2,
    }
    if config.second_level is not None:
        pairs["second_level.layers"] = config.num_second_layers * num_second * (num_second + 1) / 2
    return {part: 4.0 * config.width * n for part, n in (pairs | _between(config, num_bytes)).items()}


def multiplied_score_flops(
    config: UNetConfig, num_bytes: int, num_tokens: float, num_second: float = 0.0
) -> dict[str, float]:
    """As :func:`score_flops`, of all pairs that are multiplied where tokens are padded to ``num_tokens``.

    Args:
        config: of the model.
        num_bytes: T.
        num_tokens: S of the longest row.
        num_second: tokens of tokens of the longest row.
    """
    capped = config.attention_cap is not None
    if num_bytes <= config.window:
        byte_pairs = _causal_pairs(num_bytes, capped)
    else:
        block = max(config.window, SMALLEST_BLOCK)
        byte_pairs = -(-num_bytes // block) * block * 2 * block  # a block of queries, its keys and those before it
    pairs: dict[str, float] = {
        "encoder": config.num_encoder_layers * byte_pairs,
        "decoder": config.num_decoder_layers * byte_pairs,
        "token_layers": config.num_token_layers * _causal_pairs(num_tokens, capped),
    }
    if config.second_level is not None:
        pairs["second_level.layers"] = config.num_second_layers * _causal_pairs(num_second, capped)
    return {part: 4.0 * config.width * n for part, n in (pairs | _between(config, num_bytes)).items()}


def _causal_pairs(length: float, capped: bool) -> float:
    """Pairs of a causal attention: the whole square, or chunks of rows up to their last key where scores are capped."""
    if not capped:
        return length * length
    starts = range(0, math.ceil(length), CAPPED_CHUNK)
    return sum((min(start + CAPPED_CHUNK, length) - start) * min(start + CAPPED_CHUNK, length) for start in starts)


def _between(config: UNetConfig, num_bytes: int) -> dict[str, float]:
    """Pairs of the attention between bytes and tokens: a byte belongs to one token, or reads k."""
    pairs: dict[str, float] = {}
    if config.pooling == "attention":
        pairs["token_pooling"] = num_bytes
    if config.upsampling == "attention":
        pairs["token_reading"] = num_bytes * config.tokens_read
    return pairs
