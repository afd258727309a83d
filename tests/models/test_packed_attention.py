"""Attention inside packed rows equals that of each row alone, by every method that runs here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.attention.flex_attention import BlockMask

from rltok_rl.models import attention
from rltok_rl.models.attention import (
    METHODS,
    PackedRows,
    fastest_method,
    packed_attention,
    row_block_mask,
    whole_rows_mask,
    window_block_mask,
)
from rltok_rl.models.layers import Attention

from ..each import each
from .conftest import seeded

LENGTHS = [[3, 1, 7], [1], [40, 1, 129, 60], [5, 6]]
CASES = [*zip(LENGTHS * 2, (0, 150, 5, 0, 5, 0, 150, 5), (None, 5.0) * 4, strict=True)]
"""Lengths, empty places behind the last row, cap."""


def rows_of(lengths: list[int], spare: int, device: str = "cpu") -> PackedRows:
    return PackedRows(torch.tensor(lengths, device=device), sum(lengths) + spare, most=max(lengths))


def heads(count: int) -> list[Tensor]:
    generator = seeded(count)
    # Large queries make sharp attention, which shows a key that is seen or missed by mistake.
    return [s * torch.randn(count, 2, 16, generator=generator, dtype=torch.float64) for s in (3.0, 1.0, 1.0)]


def visible(lengths: list[int], spare: int = 0) -> Tensor:
    """The keys [N, N] that each query sees; empty places are alone."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).tolist()
    owner = torch.tensor(owner + list(range(len(lengths), len(lengths) + spare)))
    return (owner[:, None] == owner) & torch.ones(len(owner), len(owner), dtype=torch.bool).tril()


def by_mask(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], cap: float | None) -> Tensor:
    """The definition with a dense mask over all rows: [sum of lengths, H, C]."""
    query, key, value = (x[: sum(lengths)] for x in (query, key, value))
    scores = torch.einsum("qhc,khc->hqk", query, key) / query.shape[-1] ** 0.5
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    return torch.einsum("hqk,khc->qhc", scores.masked_fill(~visible(lengths), float("-inf")).softmax(-1), value)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@each(method=METHODS, case=CASES)
def test_rows_are_alone_with_their_gradients(method, case):
    """Flex attention runs uncompiled, by torch's definition; torch has no kernel for its gradients on a CPU."""
    lengths, spare, cap = case
    total, weight = sum(lengths), torch.randn(sum(lengths), 2, 16, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in heads(total + spare)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
        patch.setattr(torch_flex, "_validate_device", lambda *tensors: None, raising=False)
        out = packed_attention(rows_of(lengths, spare), cap=cap, head_size=16, method=method)(*inputs)
    expected = by_mask(*inputs, lengths, cap)
    torch.testing.assert_close(out[:total], expected, rtol=0, atol=1e-10)
    assert out.shape == inputs[0].shape and bool(out.isfinite().all())
    ours = torch.autograd.grad((out[:total] * weight).sum(), inputs)
    for mine, theirs in zip(ours, torch.autograd.grad((expected * weight).sum(), inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
        assert not mine[total:].any()  # empty places have no gradient


def test_flex_rows_are_compiled_for_any_shape(monkeypatch):
    """Inside a compiled layer, traced without kernels: one program serves several batches, with a cap."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None, raising=False)
    programs, layer = [], torch.nn.Linear(32, 96, dtype=torch.float64)

    def counting(graph, inputs):
        programs.append(graph)
        return aot_eager(graph, inputs)

    def attended(x: Tensor, attend: Attention) -> Tensor:
        return attend(*layer(x).unflatten(-1, (3, 2, 16)).unbind(-3))

    compiled = torch.compile(attended, dynamic=True, backend=counting, fullgraph=True)
    for lengths in ([40, 1, 129, 60], [300, 20]):
        x, results = torch.randn(sum(lengths) + 5, 32, dtype=torch.float64), []
        for method, run in (("flex", compiled), ("rows", attended)):
            layer.zero_grad()
            attend = packed_attention(rows_of(lengths, 5), cap=5.0, head_size=16, method=method)
            out = run(x, attend)[: sum(lengths)]
            out.square().sum().backward()
            results.append((out.detach(), layer.weight.grad.clone()))
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    assert len(programs) == 1


def listed_blocks(counts: Tensor, which: Tensor) -> Tensor:
    """[n, n] bool of a block mask's lists."""
    out = torch.zeros(which.shape[-2:], dtype=torch.bool)
    for query, count in enumerate(counts[0, 0].tolist()):
        out[query, which[0, 0, query, :count].long()] = True
    return out


def assert_equals_dense(mask: BlockMask, seen: Tensor, block: int) -> None:
    """The mask sees [N, N], and a kernel that runs the listed blocks, and applies the mask in some, misses nothing."""
    room, place = len(seen), torch.arange(len(seen))
    assert torch.equal(mask.mask_mod(0, 0, place[:, None], place), seen)
    count = -(-room // block)
    padded = torch.zeros(count * block, count * block, dtype=torch.bool)
    padded[:room, :room] = seen
    cut = padded.view(count, block, count, block).transpose(1, 2).flatten(2)  # [n, n, block^2]
    some = listed_blocks(mask.kv_num_blocks, mask.kv_indices)
    full = listed_blocks(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert not (some & full).any() and torch.equal(some | full, cut.any(-1))
    assert cut[full].all() and int(full.sum()) == int((cut.all(-1)).sum())


@each(lengths=[*LENGTHS, [16, 16, 32, 8], [1] * 40], spare=[0, 5, 150])
def test_block_masks_equal_the_dense_mask(lengths, spare):
    assert_equals_dense(row_block_mask(rows_of(lengths, spare), 8), visible(lengths, spare), 8)


@each(shape=[(1, 40), (3, 16), (2, 29), (5, 3)], window=[1, 5, 8, 20, 100], restarts=[False, True])
def test_block_masks_of_windows_equal_the_dense_mask(shape, window, restarts):
    """Rows of bytes, whole or with texts that begin within them."""
    num_rows, length = shape
    begins = (torch.rand(shape, generator=seeded(length)) < 0.2) & restarts
    starts = torch.where(begins, torch.arange(length), 0).cummax(1).values
    place, first = torch.arange(num_rows * length), (starts + length * torch.arange(num_rows)[:, None]).flatten()
    seen = (place <= place[:, None]) & (place > place[:, None] - window) & (place >= first[:, None])
    assert_equals_dense(window_block_mask(starts, window, 8), seen, 8)


def test_kept_masks_can_be_trained_with():
    """Also if an evaluation without gradients made them, as rotary angles."""
    with torch.inference_mode():
        mask = whole_rows_mask(2, 40, 5, torch.device("cpu"))
    assert mask is whole_rows_mask(2, 40, 5, torch.device("cpu")) and not mask.kv_indices.is_inference()


def test_methods_are_chosen_by_device(monkeypatch):
    triton, cuda = [object()], torch.device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention.importlib.util, "find_spec", lambda name: triton[0])
    assert fastest_method(torch.device("cpu"), head_size=64) == "rows"
    assert fastest_method(torch.device("xpu"), head_size=64) == "padded"
    assert (fastest_method(cuda, head_size=64), fastest_method(cuda, head_size=8)) == ("flex", "padded")
    triton[0] = None
    assert fastest_method(cuda, head_size=64) == "padded"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch's tracer
@each(method=METHODS, case=[*CASES[:4], ([700, 3, 1025], 5, 5.0)])
def test_methods_agree_on_gpu(method, case):
    lengths, spare, cap = case
    total, results = sum(lengths), []
    weight = torch.randn(total, 2, 16)
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        inputs = [x.float().to(device, dtype).requires_grad_() for x in heads(total + spare)]
        here = "rows" if device == "cpu" else method
        out = packed_attention(rows_of(lengths, spare, device), cap=cap, head_size=16, method=here)(*inputs)
        assert out.isfinite().all()
        gradients = torch.autograd.grad((out[:total] * weight.to(device, dtype)).sum(), inputs)
        assert not any(x[total:].any() for x in gradients)
        results.append([x.double().cpu() for x in (out[:total], *gradients)])
    for expected, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
