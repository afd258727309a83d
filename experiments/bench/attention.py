"""Sliding-window attention in blocks against the same attention with a T x T mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from rltok_rl.experiments.bench.harness import Row, compare
from torch import Tensor

from rltok_rl.models.attention import sliding_window_attention

ROWS, HEADS, CHANNELS, WINDOW = 2, 6, 64, 64  # the 18M model's heads


def masked_dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The fused kernel of torch with a dense mask."""
    positions = torch.arange(query.shape[1], device=query.device)
    mask = (positions <= positions[:, None]) & (positions > positions[:, None] - WINDOW)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def train(attention: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Forward and backward."""
    torch.autograd.grad(attention(*inputs).sum(), inputs)


def rows(device: str) -> list[Row]:
    """Forward and backward at growing lengths; then the growth of the blocks alone."""
    torch.manual_seed(0)
    blocks = partial(sliding_window_attention, window=WINDOW)

    def inputs(length: int, dtype: torch.dtype) -> list[Tensor]:
        shape = (ROWS, length, HEADS, CHANNELS)
        return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]

    out = []
    for dtype in (torch.float32, torch.bfloat16):
        for length in (1024, 4096):
            given = inputs(length, dtype)
            name = f"blocks / masked dense, T={length}, {str(dtype).removeprefix('torch.')}, forward + backward"
            ours, reference = partial(train, blocks, given), partial(train, masked_dense, given)
            out.append(compare("attention", name, ours, reference, pairs=3))
    short, long = inputs(4096, torch.float32), inputs(8192, torch.float32)
    out.append(
        compare(
            "attention",
            "blocks at T=4096 / at T=8192",
            partial(train, blocks, short),
            partial(train, blocks, long),
            pairs=7,
            note="2 is linear",
        )
    )
    return out
