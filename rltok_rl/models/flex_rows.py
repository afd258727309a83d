"""Attention inside packed rows by torch's flex attention: the rows are a block mask, a soft cap changes the scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.models.packed_rows import PackedRows

FLEX_BLOCK = 128
"""Places of a block of flex attention."""


def row_block_mask(rows: PackedRows, block: int = FLEX_BLOCK) -> Any:
    """Which blocks of keys a block of queries sees, and in them which keys: at most O((N / block)^2) is made.

    A query at place n sees the keys u with begin(n) <= u <= n. Begins never decrease, so that a block of queries a..b
    sees the blocks from that of begin(a) to its own, and those between begin(b) and its own without a mask.

    Args:
        rows: where they lie.
        block: places of a block.
    """
    from torch.nn.attention.flex_attention import BlockMask

    begin = F.pad(rows.begin, (0, -rows.room % block), value=rows.room)  # [n block]
    first, last = (begin.view(-1, block)[:, place] for place in (0, -1))  # [n] of the blocks' queries
    here = torch.arange(len(first), device=begin.device)  # [n]
    seen = (here >= first[:, None] // block) & (here <= here[:, None])  # [n, n] blocks with a key that is seen
    whole = (here * block >= last[:, None]) & (here < here[:, None])  # without one that is not
    begin = begin.to(torch.int32)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= begin[query])

    some, full = _in_order(seen & ~whole), _in_order(seen & whole)
    room = (rows.room, rows.room)
    return BlockMask.from_kv_blocks(*some, *full, BLOCK_SIZE=block, mask_mod=visible, seq_lengths=room)


def _in_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks that are True in each row of [n, n]: how many [1, 1, n], and which, first [1, 1, n, n]."""
    which = blocks.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32)[None, None], which.to(torch.int32)[None, None]


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex_rows_attention(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, said_cap: str | None = None
) -> Tensor:
    """Causal attention inside rows, by flex attention; compiled but on a CPU, which has no gradients for it.

    Args:
        query: [N, H, C].
        key: [N, H, C].
        value: [N, H, C].
        block_mask: of :func:`row_block_mask`.
        said_cap: soft cap of the scores, in digits.
    """
    from torch.nn.attention.flex_attention import flex_attention

    eager = query.device.type == "cpu" or torch.compiler.is_compiling()
    flex: Any = flex_attention if eager else _compiled_flex_attention()
    cap = 0.0 if said_cap is None else float(said_cap)

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))  # [1, H, N, C]
    out = flex(q, k, v, score_mod=None if said_cap is None else capped, block_mask=block_mask)
    return out.squeeze(0).transpose(0, 1)
