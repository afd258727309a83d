"""Sliding-window attention equals a masked dense one, at a cost that is linear in the length."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rltok_rl.models.attention import causal_attention, sliding_window_attention
from rltok_rl.models.byte_scope import decoder_starts, encoder_starts

from ..each import each
from .conftest import seeded


def visible(length: int, window: int) -> Tensor:
    t = torch.arange(length)
    return (t <= t[:, None]) & (t > t[:, None] - window)


def dense(query: Tensor, key: Tensor, value: Tensor, window: int, cap: float | None, starts=None) -> Tensor:
    """The definition, with a T x T mask: position t sees t - window < u <= t, and only u >= starts[t]."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    seen = visible(q.shape[2], window)
    if starts is not None:
        seen = seen & (torch.arange(q.shape[2]) >= starts[:, None, :, None])  # [B, 1, T, T]
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def heads(length: int, *, num_rows: int = 2) -> list[Tensor]:
    generator = seeded(length)
    # Large queries make sharp attention, where a key seen or missed by mistake shows.
    return [s * torch.randn(num_rows, length, 2, 8, generator=generator) for s in (3.0, 1.0, 1.0)]


@each(cap=[None, 5.0], window=[1, 7, 64], length=range(1, 301))
def test_sliding_window_equals_dense_at_every_length(length, window, cap):
    inputs = heads(length, num_rows=1)
    out = sliding_window_attention(*inputs, window=window, cap=cap)
    torch.testing.assert_close(out, dense(*inputs, window, cap), rtol=0, atol=1e-5)


@each(cap=[None, 5.0], case=[(1, 4), (33, 1), (64, 64), (65, 64), (130, 40), (300, 64)])
def test_gradients_equal_dense(case, cap):
    length, window = case
    inputs, weight = [x.requires_grad_() for x in heads(length)], torch.randn(2, length, 2, 8)
    ours = torch.autograd.grad((sliding_window_attention(*inputs, window=window, cap=cap) * weight).sum(), inputs)
    theirs = torch.autograd.grad((dense(*inputs, window, cap) * weight).sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@each(cap=[None, 5.0], case=[(1, 4), (5, 1), (33, 40), (64, 64), (130, 40), (300, 64)])
def test_starts_cut_the_window(case, cap):
    """Values and gradients; rows have tokens of many lengths, of a byte each, and a single one."""
    length, window = case
    boundaries = torch.rand(3, length, generator=seeded(1)) < torch.tensor([0.1, 2.0, 0.0])[:, None]
    inputs, weight = [x.requires_grad_() for x in heads(length, num_rows=3)], torch.randn(3, length, 2, 8)
    for starts in (encoder_starts(boundaries), decoder_starts(boundaries)):
        outs = (
            sliding_window_attention(*inputs, window=window, cap=cap, starts=starts),
            dense(*inputs, window, cap, starts),
        )
        torch.testing.assert_close(*outs, rtol=0, atol=1e-5)
        ours, theirs = (torch.autograd.grad((out * weight).sum(), inputs) for out in outs)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@each(cap=[None, 5.0], length=[0, 1, 5, 300])
def test_causal_attention_is_a_window_of_everything(length, cap):
    inputs = heads(length)
    out = causal_attention(*inputs, cap=cap)
    torch.testing.assert_close(out, dense(*inputs, length + 1, cap), rtol=0, atol=1e-5)


class Sizes(TorchDispatchMode):
    """Counts the elements of every tensor that any operation makes, forward and backward."""

    largest = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.numel())
                self.total += x.numel()
        return out


@each(cap=[None, 5.0], cut=[False, True])
def test_cost_is_linear_in_length(cap, cut):
    """Twice the bytes make tensors at most twice as large, and in all at most twice the elements."""
    window, counts = 64, []
    for length in (2048, 4096):
        inputs = [x.requires_grad_() for x in heads(length, num_rows=1)]
        starts = torch.arange(length)[None] // 10 * 10 if cut else None
        with Sizes() as sizes:
            sliding_window_attention(*inputs, window=window, cap=cap, starts=starts).sum().backward()
        assert sizes.largest <= 2 * length * 2 * window  # H * T * 2 * block
        counts.append(sizes)
    assert counts[1].largest <= 2 * counts[0].largest and counts[1].total <= 2.01 * counts[0].total
    with Sizes() as whole:  # the same count does see a T x T mask
        dense(*heads(2048, num_rows=1), window, cap)
    assert whole.largest >= 2048**2


@pytest.mark.gpu
@each(dtype=[torch.float32, torch.bfloat16], length=[1, 63, 64, 65, 300, 4096])
def test_sliding_window_equals_dense_on_gpu(dtype, length):
    inputs = [x.cuda().to(dtype) for x in heads(length)]
    out = sliding_window_attention(*inputs, window=64)
    wide = [x.float().transpose(1, 2) for x in inputs]
    expected = F.scaled_dot_product_attention(*wide, attn_mask=visible(length, 64).cuda()).transpose(1, 2)
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 3e-2)
