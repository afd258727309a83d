"""Transformer layers of Gemma-2's kind: rotary positions, norms around every branch, GeGLU, compilation, recomputation.

Layers do not know which positions they may see: each call passes its attention function.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, partial, update_wrapper
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rltok_rl.fused import band_attention, finish_layer, fuses, project_heads, rms_norm, traced, untouched
from rltok_rl.models.config import UNetConfig

Made = TypeVar("Made")
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries, keys, values), each [*L, H, C], to [*L, H, C]."""


class Rotary(NamedTuple):
    """Cosines and sines of rotary angles."""

    cos: Tensor  # [*L, 1, head_size / 2], float32; the 1 stands for the heads
    sin: Tensor  # [*L, 1, head_size / 2]

    def at(self, positions: Tensor) -> Rotary:
        """Return the angles of some positions [*M] of a window."""
        return Rotary(self.cos[positions], self.sin[positions])


def rotary(positions: Tensor, head_size: int, base: float) -> Rotary:
    """Return the angles ``position * base^(-2i / head_size)`` of positions [*L]; a token has its boundary byte's."""
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angles = positions.to(torch.float32)[..., None, None] * base**-exponents  # [*L, 1, head_size / 2]
    return Rotary(angles.cos(), angles.sin())


def kept(function: Callable[..., Made]) -> Callable[..., Made]:
    """Keep the last few results of a function of sizes and a device, except while a program is traced."""

    def make(*sizes: Any) -> Made:
        with torch.inference_mode(False):  # autograd must be able to keep them
            return function(*sizes)

    cached = lru_cache(maxsize=8)(make)

    def call(*sizes: Any) -> Made:
        return (make if torch.compiler.is_compiling() or traced() else cached)(*sizes)

    vars(call).update(cache_clear=cached.cache_clear, cache_info=cached.cache_info)
    return update_wrapper(call, function)


@kept
def window_rotary(length: int, head_size: int, base: float, device: torch.device) -> Rotary:
    """Return the angles of positions 0 to ``length - 1``; those of the last few windows are kept."""
    return rotary(torch.arange(length, device=device), head_size, base)


def rotate(x: Tensor, angles: Rotary) -> Tensor:
    """Rotate channel i of queries or keys [*L, H, C] together with channel ``i + C / 2``."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos.to(x.dtype), angles.sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale by ``1 + weight`` so that weight decay pulls towards the identity."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension in float32 at least."""
        rows = x.to(torch.promote_types(x.dtype, torch.float32))
        if fuses(rows, self.weight, multiplies=False):
            return rms_norm(rows, self.weight, self.eps).type_as(x)
        return F.rms_norm(rows, self.weight.shape, 1.0 + self.weight.to(rows), self.eps).type_as(x)


class GeGLU(nn.Module):
    """``W_down (gelu(W_gate x) * W_up x)``."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[*L, D] to [*L, D]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # [*L, hidden] each
        return self.down(F.gelu(gate, approximate="tanh") * up)


class SelfAttention(nn.Module):
    """Projections of self-attention: to rotated heads, and back."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def heads(self, x: Tensor, angles: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """[*L, D] to queries, keys and values, [*L, H, C] each."""
        heads = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1))  # [*L, 3, H, C]
        query, key, value = heads.unbind(-3)
        return rotate(query, angles), rotate(key, angles), value


class TransformerLayer(nn.Module):
    """Residual layer with norms before and after both attention and MLP."""

    def __init__(self, config: UNetConfig, mlp_ratio: int) -> None:
        super().__init__()
        width, eps = config.width, config.norm_eps
        self.attention_norm = RMSNorm(width, eps)
        self.attention = SelfAttention(width, config.num_heads)
        self.attention_out_norm = RMSNorm(width, eps)
        self.mlp_norm = RMSNorm(width, eps)
        self.mlp = GeGLU(width, mlp_ratio * width)
        self.mlp_out_norm = RMSNorm(width, eps)
        self.backend: str | None = None  # of ``torch.compile``, for the parts before and after attention

    def forward(self, x: Tensor, angles: Rotary, attend: Attention) -> Tensor:
        """[*L, D] to [*L, D]."""
        if self.backend is None and fuses(x) and self.is_plain():  # the cheap question first: steps are never fused
            weights = self.fused_weights()
            if fuses(x, *weights, *angles):
                return self.run_fused(x, angles, attend, weights)
        if self.backend is None or x.dim() != 2 or len(x) < FEW:
            return self.attended(x, angles, attend)
        if is_traced(attend):
            return compiled(TransformerLayer.attended, self.backend)(self, varies(x), angles, attend)
        heads = compiled(TransformerLayer.heads, self.backend)(self, varies(x), angles)
        before = SCORES.set(self.backend)
        try:
            attended = attend(*heads)  # [*L, H, C]
        finally:
            SCORES.reset(before)
        return compiled(TransformerLayer.finish, self.backend)(self, x, varies(in_rows(attended, x.shape[-1])))

    def attended(self, x: Tensor, angles: Rotary, attend: Attention) -> Tensor:
        """[*L, D] to [*L, D], in plain torch."""
        return self.finish(x, attend(*self.heads(x, angles)).flatten(-2))

    def heads(self, x: Tensor, angles: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values, [*L, H, C] each, from [*L, D]."""
        return self.attention.heads(self.attention_norm(x), angles)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add attention's output [*L, D] to [*L, D], then the MLP's."""
        x = x + self.attention_out_norm(self.attention.out(attended))
        return x + self.mlp_out_norm(self.mlp(self.mlp_norm(x)))

    # The same by fused operations, :mod:`rltok_rl.fused`.

    def fused_weights(self) -> tuple[Tensor, ...]:
        """Return the weights of :meth:`heads`, then those of :meth:`finish` in the order of ``finish_layer``."""
        attention, mlp = self.attention, self.mlp
        before = self.attention_norm.weight, attention.query_key_value.weight
        after = attention.out.weight, self.attention_out_norm.weight, self.mlp_norm.weight
        return *before, *after, mlp.gate_up.weight, mlp.down.weight, self.mlp_out_norm.weight

    def is_plain(self) -> bool:
        """Whether no part was replaced, hooked or wrapped: fused operations call none of them."""
        attention, mlp = self.attention, self.mlp
        kinds: dict[type[nn.Module], tuple[nn.Module, ...]] = {
            RMSNorm: (self.attention_norm, self.attention_out_norm, self.mlp_norm, self.mlp_out_norm),
            nn.Linear: (attention.query_key_value, attention.out, mlp.gate_up, mlp.down),
            SelfAttention: (attention,),
            GeGLU: (mlp,),
        }
        return all(untouched(part, kind) for kind, parts in kinds.items() for part in parts)

    def run_fused(self, x: Tensor, angles: Rotary, attend: Attention, weights: tuple[Tensor, ...]) -> Tensor:
        """[*L, D] to [*L, D], with :meth:`fused_weights`."""
        norm, weight, *after = weights
        heads, eps = self.attention.num_heads, self.mlp_norm.eps
        qkv = project_heads(x, norm, weight, *angles, eps)  # [*L, 3 D]
        band = band_of(attend, qkv)
        if band is None:
            attended = attend(*qkv.unflatten(-1, (3, heads, -1)).unbind(-3)).flatten(-2)
        else:
            attended = band_attention(qkv, heads, **band)
        return finish_layer(x, attended, after, eps)


WINDOWED: set[Callable[..., Tensor]] = set()
"""Attention functions over [B, T, H, C] that see the last ``window`` places (all without it), capped by ``cap``."""
TRACED: set[Callable[..., Tensor]] = set()
"""Attention functions of flat rows [L, H, C] that a compiler takes into the program of their layer."""


def band_of(attend: Attention, qkv: Tensor) -> dict[str, Any] | None:
    """Return ``window`` and ``cap`` of an attention that :func:`band_attention` computes on [B, T, 3 D], or None."""
    if not isinstance(attend, partial) or attend.func not in WINDOWED or attend.args or qkv.dim() != 3:
        return None
    options = {"window": qkv.shape[1], **attend.keywords}
    starts = options.pop("starts", None)
    return options if starts is None and options.keys() <= {"window", "cap"} else None


def is_traced(attend: Attention) -> bool:
    """Whether attention is a part of a compiled layer, instead of running between two compiled parts."""
    return isinstance(attend, partial) and attend.func in TRACED


class LayerStack(nn.ModuleList):
    """Layers of one kind, run in order.

    With ``recompute``, a layer keeps only its input for the backward pass and runs again there (activation
    checkpointing). Layers have no randomness, so both passes are equal.
    """

    recompute = False

    @property
    def is_compiled(self) -> bool:
        """Whether :func:`~rltok_rl.training.options.compile_layers` was called; there are layers to compile."""
        return len(self) > 0 and self[0].backend is not None

    def __init__(self, config: UNetConfig, num_layers: int, mlp_ratio: int) -> None:
        super().__init__(TransformerLayer(config, mlp_ratio) for _ in range(num_layers))

    def forward(
        self,
        x: Tensor,
        angles: Rotary,
        attend_at: Callable[[int], Attention],
        *,
        only: range | None = None,
        cached: bool = False,
    ) -> Tensor:
        """Run all layers or ``only`` some: [*L, D] to [*L, D].

        ``attend_at`` returns a layer's attention; if it writes into a cache (``cached``), nothing is recomputed.
        """
        shape = x.shape
        if self.is_compiled and shape[:-1].numel() >= FEW:
            # Compiled layers take rows [L, D], so that bytes, padded and packed tokens share a program.
            x, attend_at = in_rows(x, shape[-1]), _in_shape(attend_at, shape[:-1])
            angles = Rotary(*(varies(in_rows(part.expand(*shape[:-1], 1, -1), 1, part.shape[-1])) for part in angles))
        again = self.recompute and torch.is_grad_enabled() and not cached
        for i in range(len(self)) if only is None else only:
            if again:
                x = checkpoint(self[i], x, angles, attend_at(i), use_reentrant=False, preserve_rng_state=False)
            else:
                x = self[i](x, angles, attend_at(i))
        return x if x.shape == shape else x.view(shape)


def _in_shape(attend_at: Callable[[int], Attention], shape: torch.Size) -> Callable[[int], Attention]:
    """Let attention over [*shape, H, C] take heads of flat rows [L, H, C]."""

    def flat(layer: int) -> Attention:
        attend = attend_at(layer)
        return attend if is_traced(attend) else lambda *heads: attend(*(x.unflatten(0, shape) for x in heads))

    return flat


# Compilation. Sizes that change with every batch are marked as dynamic; tensors are copied out of views, because a
# compiled program also depends on the base of a view.

FEW = 32
"""Fewer positions run eagerly: a compiled program does not pay, and a size of 1 needs a program of its own."""
SCORES: ContextVar[str | None] = ContextVar("SCORES", default=None)
"""The backend that compiles the softmax of capped attention in a layer's call, or None."""


@lru_cache
def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Compile a function of tensors and modules once for all models."""
    return torch.compile(function, backend=backend)


def varies(x: Tensor, *dims: int) -> Tensor:
    """Mark dimensions (default: the first) as dynamic, skipping absent ones and those of size 1."""
    for dim in dims or (0,):
        if -x.dim() <= dim < x.dim() and x.shape[dim] > 1:
            torch._dynamo.maybe_mark_dynamic(x, dim % x.dim())
    return x


def in_rows(x: Tensor, *last: int) -> Tensor:
    """Reshape to [L, *last] in memory that is no view."""
    rows = x.reshape(-1, *last)
    return rows.clone() if rows._is_view() else rows


def scores_backend() -> str | None:
    """Return the backend that compiles the softmax of capped attention in this call, or None."""
    return SCORES.get()
