"""Attention inside packed rows is that of each row alone, by every method that runs here."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from rltok_rl.models.flex_rows import row_block_mask
from rltok_rl.models.packed_rows import PackedRows
from rltok_rl.models.varlen import METHODS, fastest_method, packed_attention, sequence_ends
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager

from rltok_rl.models import varlen

LENGTHS = [[3, 1, 7], [1], [40, 1, 129, 60], [5, 6]]
ROOMS = [0, 5, 150]
"""Places behind the last row."""


def rows_of(lengths: list[int], spare: int, device: str = "cpu") -> PackedRows:
    counts = torch.tensor(lengths, device=device)
    return PackedRows(counts, sum(lengths) + spare, most=max(lengths))


def heads(count: int, *, channels: int = 16, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    # Large queries make sharp attention, where a key seen or missed by mistake shows.
    return [s * torch.randn(count, 2, channels, generator=generator, dtype=dtype) for s in (3.0, 1.0, 1.0)]


def by_loop(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], cap: float | None) -> Tensor:
    """The definition, one query after the other: [sum of lengths, H, C]."""
    out, start = [], 0
    for length in lengths:
        for place in range(start, start + length):
            seen = slice(start, place + 1)
            scores = torch.einsum("hc,uhc->hu", query[place], key[seen]) / query.shape[-1] ** 0.5
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            out.append(torch.einsum("hu,uhc->hc", scores.softmax(-1), value[seen]))
        start += length
    return torch.stack(out)


def assert_rows_alone(method: str, lengths: list[int], spare: int, cap: float | None) -> None:
    total, weight = sum(lengths), torch.randn(sum(lengths), 2, 16, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in heads(total + spare)]
    rows = rows_of(lengths, spare)
    out = packed_attention(rows, cap=cap, dtype=torch.float64, head_size=16, method=method)(*inputs)
    expected = by_loop(*inputs, lengths, cap)
    torch.testing.assert_close(out[:total], expected, rtol=0, atol=1e-10)
    assert out.shape == inputs[0].shape and bool(out.isfinite().all())
    ours = torch.autograd.grad((out[:total] * weight).sum(), inputs)
    for mine, theirs in zip(ours, torch.autograd.grad((expected * weight).sum(), inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
        assert not mine[total:].any()  # what belongs to no row gets no gradient


@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("spare", ROOMS)
@pytest.mark.parametrize("method", ["padded", "rows"])
def test_rows_are_seen_alone_with_their_gradients(method, spare, cap):
    for lengths in LENGTHS:
        assert_rows_alone(method, lengths, spare, cap)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("spare", "cap"), [(0, 5.0), (150, None)])
def test_flex_rows_are_seen_alone_with_their_gradients(spare, cap, monkeypatch):
    """As torch defines flex attention, uncompiled: the row mask and the capped scores are ours, the kernel is not.

    Torch refuses gradients of it on a CPU, for want of a kernel; the definition has them.
    """
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None, raising=False)
    for lengths in LENGTHS:
        assert_rows_alone("flex", lengths, spare, cap)


def test_flex_rows_are_compiled_for_any_shape(monkeypatch):
    """Inside a compiled layer, as torch traces it without its kernels: one program for several batches, cap and all."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None, raising=False)
    programs = []

    def counting(graph, inputs):
        programs.append(graph)
        return aot_eager(graph, inputs)

    layer = torch.nn.Linear(32, 96, dtype=torch.float64)

    def attended(x: Tensor, attend: varlen.Attention) -> Tensor:
        return attend(*layer(x).unflatten(-1, (3, 2, 16)).unbind(-3))

    compiled = torch.compile(attended, dynamic=True, backend=counting, fullgraph=True)
    for lengths in ([40, 1, 129, 60], [300, 20]):
        x, given = torch.randn(sum(lengths) + 5, 32, dtype=torch.float64), {"dtype": torch.float64, "head_size": 16}
        found = []
        for method, run in (("flex", compiled), ("rows", attended)):
            layer.zero_grad()
            out = run(x, packed_attention(rows_of(lengths, 5), cap=5.0, **given, method=method))[: sum(lengths)]
            out.square().sum().backward()
            found.append((out.detach(), layer.weight.grad.clone()))
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    assert len(programs) == 1


def dense(mask) -> tuple[Tensor, Tensor]:
    """Blocks that are multiplied with a mask, and without: [n, n] bool each."""

    def blocks(counts: Tensor, which: Tensor) -> Tensor:
        out = torch.zeros(which.shape[-2:], dtype=torch.bool)
        for query, count in enumerate(counts[0, 0].tolist()):
            out[query, which[0, 0, query, :count].long()] = True
        return out

    return blocks(mask.kv_num_blocks, mask.kv_indices), blocks(mask.full_kv_num_blocks, mask.full_kv_indices)


@pytest.mark.parametrize("spare", ROOMS)
def test_block_masks_are_those_of_the_dense_mask(spare):
    """A kernel sees the blocks that are listed alone, and applies the mask in some of them."""
    for lengths in [*LENGTHS, [16, 16, 32, 8], [1] * 40]:
        rows, block = rows_of(lengths, spare), 8
        mask = row_block_mask(rows, block)
        owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).tolist()
        owner += list(range(len(lengths), len(lengths) + spare))  # each place behind the rows is alone
        owner = torch.tensor(owner)
        place = torch.arange(rows.room)
        seen = (owner[:, None] == owner) & (place <= place[:, None])  # [N, N]
        assert torch.equal(mask.mask_mod(0, 0, place[:, None], place), seen)
        count = -(-rows.room // block)
        padded = torch.zeros(count * block, count * block, dtype=torch.bool)
        padded[: rows.room, : rows.room] = seen
        cut = padded.view(count, block, count, block).transpose(1, 2).flatten(2)  # [n, n, block^2]
        some, full = dense(mask)
        assert not (some & full).any()
        assert torch.equal(some | full, cut.any(-1))
        assert cut[full].all()
        assert int(full.sum()) == int((cut.all(-1)).sum())


@pytest.mark.parametrize("spare", ROOMS)
def test_sequences_cover_all_places_and_none_is_longer_than_said(spare):
    """The flash kernel writes what lies in a sequence, and runs as many blocks as the longest may have."""
    for lengths in LENGTHS:
        rows = rows_of(lengths, spare)
        ends, longest = sequence_ends(rows)
        assert ends.dtype == torch.int32 and int(ends[0]) == 0 and int(ends[-1]) == rows.room
        sizes = ends.diff().tolist()
        assert sizes[: len(lengths)] == lengths
        assert min(sizes) >= 0 and max(sizes) <= longest


def test_the_kernel_is_told_to_be_causal(monkeypatch):
    """Both signatures that torch has had."""
    asked = {}

    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
        asked.update(is_causal=is_causal, ends=cu_seq_q, longest=max_q)
        return value

    def newer(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
        asked.update(window_size=window_size)
        return value

    module = types.ModuleType("varlen")
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    ends = torch.tensor([0, 3], dtype=torch.int32)
    for function, word, value in ((older, "is_causal", True), (newer, "window_size", (-1, 0))):
        module.varlen_attn = function
        varlen.varlen_kernel.cache_clear()
        try:
            varlen.varlen_attention(*heads(3), ends=ends, longest=3)
        finally:
            varlen.varlen_kernel.cache_clear()
        assert asked[word] == value
    assert asked["ends"] is ends and asked["longest"] == 3


def test_methods_that_cannot_serve_say_why(monkeypatch):
    rows = rows_of([3, 1], 0)
    with pytest.raises(ValueError, match=r"attention must be 'auto' or one of .*got 'dense'"):
        packed_attention(rows, cap=None, dtype=torch.float32, head_size=16, method="dense")
    meta = rows_of([3, 1], 0, "meta")
    given = {"dtype": torch.bfloat16, "head_size": 16, "cap": None}
    monkeypatch.setattr(varlen, "varlen_kernel", lambda: print)
    assert packed_attention(meta, **given, method="varlen")
    for where, change, why in (
        (rows, {}, "needs a CUDA device, got cpu"),
        (meta, {"dtype": torch.float32}, "needs float16 or bfloat16, got torch.float32"),
        (meta, {"cap": 50.0}, "has no soft cap of scores, got attention_cap=50.0"),
        (meta, {"head_size": 20}, "a multiple of 8, got 20"),
    ):
        with pytest.raises(ValueError, match=why):
            packed_attention(where, **(given | change), method="varlen")
    monkeypatch.setattr(varlen, "varlen_kernel", lambda: None)
    with pytest.raises(ValueError, match=r"needs torch.nn.attention.varlen, which torch .* has not"):
        packed_attention(meta, **given, method="varlen")


def test_the_fastest_method_goes_by_device_precision_and_cap(monkeypatch):
    half, cuda = {"dtype": torch.bfloat16, "head_size": 64}, torch.device("cuda")
    assert fastest_method(torch.device("cpu"), **half, cap=None) == "rows"
    assert fastest_method(torch.device("xpu"), **half, cap=None) == "padded"
    triton = [object()]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(varlen, "varlen_kernel", lambda: print)
    monkeypatch.setattr(varlen.importlib.util, "find_spec", lambda name: triton[0])
    assert fastest_method(cuda, **half, cap=None) == "varlen"
    assert fastest_method(cuda, **half, cap=50.0) == "flex"
    assert fastest_method(cuda, dtype=torch.float32, head_size=64, cap=None) == "flex"
    assert fastest_method(cuda, dtype=torch.float32, head_size=8, cap=None) == "padded"
    monkeypatch.setattr(varlen, "varlen_kernel", lambda: None)
    assert fastest_method(cuda, **half, cap=None) == "flex"
    triton[0] = None
    assert fastest_method(cuda, **half, cap=None) == "padded"


@pytest.mark.gpu
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("spare", ROOMS)
@pytest.mark.parametrize("method", METHODS)
def test_methods_agree_on_gpu(method, spare, cap):
    dtype = torch.bfloat16 if method == "varlen" else torch.float32
    if method == "varlen" and (cap is not None or varlen.varlen_kernel() is None):
        return  # refused, see above
    tolerance = 3e-2 if method == "varlen" else 1e-3
    for lengths in [*LENGTHS, [700, 3, 1025]]:
        total, found = sum(lengths), []
        weight = torch.randn(total, 2, 16)
        for device, kind in (("cpu", torch.float64), ("cuda", dtype)):
            inputs = [x.to(device, dtype).to(kind).requires_grad_() for x in heads(total + spare)]
            rows = rows_of(lengths, spare, device)
            how = "rows" if device == "cpu" else method
            out = packed_attention(rows, cap=cap, dtype=kind, head_size=16, method=how)(*inputs)
            assert out.isfinite().all()
            gradients = torch.autograd.grad((out[:total] * weight.to(device, kind)).sum(), inputs)
            assert not any(x[total:].any() for x in gradients)
            found.append([x.double().cpu() for x in (out[:total], *gradients)])
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(theirs, mine, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
def test_rows_without_places_are_served_on_gpu():
    """A room that is full has a sequence of no places behind its rows."""
    if varlen.varlen_kernel() is None:
        return
    inputs = [x.to("cuda", torch.bfloat16).requires_grad_() for x in heads(48)]
    ends = torch.tensor([0, 16, 48, 48, 48], dtype=torch.int32, device="cuda")
    out = varlen.varlen_attention(*inputs, ends=ends, longest=32)
    out.sum().backward()
    assert out.isfinite().all() and all(x.grad.isfinite().all() for x in inputs)
