"""FLOPs of a batch: matrix products of real and of padded tokens, and attention scores.

Budgets count matrix products alone, as the paper does (:mod:`rltok_rl.models.flops`). Attention scores are extra:

    FLOPs of a layer's scores = 4 D x pairs        (q . k, and weights times v; two per multiply-add)

over the pairs of a query and a visible key, or over all pairs that are multiplied: blocks of the sliding window are
masked in part, causal attention discards half of its square, and padding has scores too.

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

    products: float  # matrix products on bytes and real tokens: the cost of packed tokens, and what budgets count
    padded_products: float  # matrix products with tokens padded to the longest row
    scores: float  # attention scores of visible pairs
    multiplied_scores: float  # attention scores of all multiplied pairs, masked and padded ones included


def count_flops(
    model: UNet, boundaries: Tensor, *, second: Tensor | None = None, backward: bool = False, own: int = 0
) -> FlopCount:
    """Count the FLOPs of a forward pass over [B, T] bytes, or of a forward and a backward pass (three times as many).

    Args:
        boundaries: [B, T] bool or 0/1, 1 in the first column.
        second: [B, T] bool, boundaries of the second level at their bytes; default: the model's target in every row.
        own: entries of further weight matrices that run on every byte, such as a segmenter's.

    Example:
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> boundaries = torch.tensor([[1, 0, 0, 1], [1, 0, 0, 0]])
        >>> flops = count_flops(model, boundaries)  # three tokens, one of padding
        >>> flops.padded_products - flops.products == 2 * 16 * 64**2
        True
        >>> flops.scores / (4 * 64)  # pairs: 2 rows x 10 of 4 bytes, in two layers; 3 and 1 of tokens
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
    """FLOPs of the visible attention scores of one row in a forward pass, by part.

    bytes:   sum_t min(t + 1, W)        tokens:   S (S + 1) / 2
    """
    inside = min(num_bytes, config.window)
    byte_pairs = inside * (inside + 1) / 2 + (num_bytes - inside) * config.window
    tokens, second = (count * (count + 1) / 2 for count in (num_tokens, num_second))
    return _by_part(config, num_bytes, byte_pairs, tokens, second)


def multiplied_score_flops(
    config: UNetConfig, num_bytes: int, num_tokens: float, num_second: float = 0.0
) -> dict[str, float]:
    """As :func:`score_flops`, of all multiplied pairs, with tokens padded to the longest row's ``num_tokens``."""
    capped = config.attention_cap is not None
    byte_pairs = _causal_pairs(num_bytes, capped)
    if num_bytes > config.window:
        block = max(config.window, SMALLEST_BLOCK)
        byte_pairs = -(-num_bytes // block) * block * 2 * block  # a block of queries, its keys and those before it
    tokens, second = (_causal_pairs(count, capped) for count in (num_tokens, num_second))
    return _by_part(config, num_bytes, byte_pairs, tokens, second)


def _by_part(
    config: UNetConfig, num_bytes: int, byte_pairs: float, token_pairs: float, second_pairs: float
) -> dict[str, float]:
    """FLOPs of the scores of every part, from the pairs of one layer."""
    pairs: dict[str, float] = {
        "encoder": config.num_encoder_layers * byte_pairs,
        "decoder": config.num_decoder_layers * byte_pairs,
        "token_layers": config.num_token_layers * token_pairs,
    }
    widths = {"token_layers": config.of_tokens.width, "second_level.layers": config.of_second.width}
    if config.second_level is not None:
        pairs["second_level.layers"] = config.num_second_layers * second_pairs
    if config.pooling == "attention":
        pairs["token_pooling"] = num_bytes  # a byte belongs to one token
    if config.upsampling == "attention":
        pairs["token_reading"] = num_bytes * config.tokens_read
    return {part: 4.0 * widths.get(part, config.width) * count for part, count in pairs.items()}


def _causal_pairs(length: float, capped: bool) -> float:
    """Multiplied pairs of causal attention: the square, or chunks of rows up to their last key if scores are capped."""
    if not capped:
        return length * length
    starts = range(0, math.ceil(length), CAPPED_CHUNK)
    return sum((min(start + CAPPED_CHUNK, length) - start) * min(start + CAPPED_CHUNK, length) for start in starts)
