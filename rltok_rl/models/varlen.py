"""Causal attention inside the rows of a packed sequence, by whatever the device and the installed torch are best at.

Shapes: B rows, N places of all rows, S tokens of the longest row, H heads, C channels of a head. Rows follow each
other; places behind the last row belong to none. They may hold anything finite: no row sees them, and they see none.

    varlen   the flash kernel for rows of unlike length: CUDA, half precision, no cap
    flex     compiled flex attention with the rows as a block mask: CUDA, any precision and cap
    padded   rows padded to the longest for the product alone: anywhere; an accelerator waits for S
    rows     one row after the other: anywhere; an accelerator waits for the lengths
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.models.attention import causal_attention
from rltok_rl.models.flex_rows import flex_rows_attention, row_block_mask
from rltok_rl.models.packed_rows import PackedRows

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
METHODS = ("varlen", "flex", "padded", "rows")
"""Ways to compute it, all with one result."""


def packed_attention(
    rows: PackedRows, *, cap: float | None, dtype: torch.dtype, head_size: int, method: str = "auto"
) -> Attention:
    """Attention of queries, keys and values [N, H, C] over the rows of a packed sequence.

    What it needs to know of the rows is made once here, for all layers.

    Args:
        rows: where they lie.
        cap: soft cap of the scores.
        dtype: of queries, keys and values.
        head_size: C.
        method: one of :data:`METHODS`; ``"auto"`` chooses.

    Returns:
        A function to [N, H, C]; what it gives to places that hold no token is finite and means nothing.
    """
    device = rows.num_tokens.device
    if method == "auto":
        method = fastest_method(device, dtype=dtype, head_size=head_size, cap=cap)
    if method not in METHODS:
        raise ValueError(f"attention must be 'auto' or one of {list(METHODS)}, got {method!r}")
    if method == "varlen":
        _check_varlen(device, dtype, head_size, cap)
        ends, longest = sequence_ends(rows)
        return partial(varlen_attention, ends=ends, longest=longest)
    if method == "flex":
        # Compilers for any shape take numbers for variables, of which scores may have none; words are constants.
        said = None if cap is None else repr(float(cap))
        return partial(flex_rows_attention, block_mask=row_block_mask(rows), said_cap=said)
    if method == "padded":
        width = rows.longest
        slots = torch.where(rows.real, rows.row * width + rows.number, len(rows.num_tokens) * width)
        return partial(padded_rows_attention, slots=slots, num_rows=len(rows.num_tokens), width=width, cap=cap)
    lengths = rows.num_tokens.tolist()
    return partial(one_by_one_attention, lengths=lengths, cap=cap)


def fastest_method(device: torch.device, *, dtype: torch.dtype, head_size: int, cap: float | None) -> str:
    """The method for a device, as far as the installed torch has it.

    Args:
        device: of queries, keys and values.
        dtype: theirs.
        head_size: C.
        cap: soft cap of the scores.
    """
    if device.type == "cpu":
        return "rows"
    if device.type == "cuda" and torch.version.cuda is not None:
        capability = torch.cuda.get_device_capability(device)
        if capability >= (8, 0) and not _why_not_varlen(device, dtype, head_size, cap):
            return "varlen"
        # Flex attention compiles its kernels with Triton, which wants capability 7 and heads of 16 channels.
        if capability >= (7, 0) and head_size >= 16 and importlib.util.find_spec("triton") is not None:
            return "flex"
    return "padded"


# The flash kernel.


@cache
def varlen_kernel() -> Callable[..., Any] | None:
    """``torch.nn.attention.varlen.varlen_attn``, told to be causal; None where the installed torch has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    # The word for causal changed with windows: ``is_causal`` first, ``window_size`` later.
    windows = "window_size" in inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if windows else {"is_causal": True}
    return partial(varlen_attn, **causal)


def sequence_ends(rows: PackedRows) -> tuple[Tensor, int]:
    """Places where sequences begin and end, [E + 1] int32, and the length that none exceeds.

    Places without a token are sequences of their own at the end, because the kernel leaves what belongs to no sequence
    uninitialised, forward and backward. They are cut to the length of the longest row, by what the host knows: their
    number is the same in every batch.
    """
    longest = max(rows.most, 1)
    spare = -(-rows.room // longest)
    total = rows.num_tokens.sum()
    behind = (total + longest * torch.arange(1, spare + 1, device=total.device)).clamp(max=rows.room)
    return torch.cat((rows.starts, total[None], behind)).to(torch.int32), longest


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, *, ends: Tensor, longest: int) -> Tensor:
    """Causal attention inside sequences, by the flash kernel.

    Args:
        query: [N, H, C] in half precision.
        key: [N, H, C].
        value: [N, H, C].
        ends: [E + 1] int32, where each sequence begins, and the end of the last.
        longest: no sequence is longer.
    """
    kernel = varlen_kernel()
    assert kernel is not None
    return kernel(query, key, value, ends, ends, longest, longest)


def _check_varlen(device: torch.device, dtype: torch.dtype, head_size: int, cap: float | None) -> None:
    if why := _why_not_varlen(device, dtype, head_size, cap):
        raise ValueError(f"attention 'varlen' {why}; 'auto' takes what there is")


def _why_not_varlen(device: torch.device, dtype: torch.dtype, head_size: int, cap: float | None) -> str:
    """What keeps the kernel from serving this; nothing is ``""``."""
    if varlen_kernel() is None:
        return f"needs torch.nn.attention.varlen, which torch {torch.__version__} has not"
    if device.type not in ("cuda", "meta"):  # meta tensors have shapes alone, which suffice to look for waits
        return f"needs a CUDA device, got {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16, got {dtype}"
    if cap is not None:
        return f"has no soft cap of scores, got attention_cap={cap}"
    if head_size % 8 or head_size > 256:
        return f"needs heads of at most 256 channels, a multiple of 8, got {head_size}"
    return ""


# What runs anywhere.


def padded_rows_attention(
    query: Tensor, key: Tensor, value: Tensor, *, slots: Tensor, num_rows: int, width: int, cap: float | None = None
) -> Tensor:
    """Causal attention inside rows, padded for the attention itself; projections and MLPs run on places alone.

    Args:
        query: [N, H, C].
        key: [N, H, C].
        value: [N, H, C].
        slots: [N] flat index ``row * width + number`` of each token in the padded layout; ``num_rows * width`` of
            places that hold none.
        num_rows: B.
        width: S.
        cap: soft cap of the scores.
    """
    count = num_rows * width

    def padded(x: Tensor) -> Tensor:
        out = x.new_zeros(count + 1, *x.shape[1:]).index_copy(0, slots, x)[:-1]
        return out.view(num_rows, width, *x.shape[1:])

    out = causal_attention(padded(query), padded(key), padded(value), cap=cap)  # [B, S, H, C]
    return F.pad(out.flatten(0, 1), (0, 0, 0, 0, 0, 1)).index_select(0, slots)


def one_by_one_attention(
    query: Tensor, key: Tensor, value: Tensor, *, lengths: list[int], cap: float | None = None
) -> Tensor:
    """Causal attention row after row: nothing is padded.

    Args:
        query: [N, H, C].
        key: [N, H, C].
        value: [N, H, C].
        lengths: B numbers of tokens.
        cap: soft cap of the scores.
    """
    sizes = [*lengths, len(query) - sum(lengths)]
    parts = zip(*(x.split(sizes) for x in (query, key, value)), strict=True)
    *found, (empty, _, _) = ((q, k, v) for q, k, v in parts)
    out = [causal_attention(q[None], k[None], v[None], cap=cap)[0] for q, k, v in found]
    return torch.cat([*out, torch.zeros_like(empty)])
