"""Rotary positions: queries and keys turn with their position, so that scores see only distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rltok_rl.models.config import UNetConfig


class Rotary(NamedTuple):
    """Cosines and sines of every position's angles."""

    cos: Tensor  # [*L, 1, head_size / 2], float32; the 1 stands for the heads
    sin: Tensor  # [*L, 1, head_size / 2]


def rotary(positions: Tensor, head_size: int, base: float) -> Rotary:
    """Return the angles ``position * base^(-2i / head_size)`` as cosines and sines.

    Tokens pass the position of their boundary byte, so that bytes and tokens share one clock.

    Args:
        positions: [*L] integer positions.
        head_size: channels of one head, even.
        base: base of the frequencies.
    """
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angles = positions.to(torch.float32)[..., None, None] * base**-exponents  # [*L, 1, head_size / 2]
    return Rotary(angles.cos(), angles.sin())


def rotate(x: Tensor, angles: Rotary) -> Tensor:
    """Turn channel i together with channel ``i + head_size / 2`` by the angle of its position.

    Args:
        x: [*L, H, head_size] queries or keys.
        angles: the positions' cosines and sines.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos.to(x.dtype), angles.sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries, keys, values), each [*L, H, C], to [*L, H, C]."""


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale by ``1 + weight`` so that weight decay pulls towards the identity."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension in float32 at least."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, 1.0 + self.weight.to(wide), self.eps).type_as(x)


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
    """Project to heads and turn them by position; whoever attends is told elsewhere; project back."""

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
    """One residual layer with a norm before and after both attention and MLP."""

    def __init__(self, config: UNetConfig, mlp_ratio: int) -> None:
        super().__init__()
        width, eps = config.width, config.norm_eps
        self.attention_norm = RMSNorm(width, eps)
        self.attention = SelfAttention(width, config.num_heads)
        self.attention_out_norm = RMSNorm(width, eps)
        self.mlp_norm = RMSNorm(width, eps)
        self.mlp = GeGLU(width, mlp_ratio * width)
        self.mlp_out_norm = RMSNorm(width, eps)
        self.backend: str | None = None
        """That what stands before and after attention is compiled with (``compile_layers``); None runs it as it is."""

    def forward(self, x: Tensor, angles: Rotary, attend: Attend) -> Tensor:
        """[*L, D] to [*L, D]."""
        if self.backend is None or x.dim() != 2 or len(x) < FEW:
            return self.finish(x, attend(*self.heads(x, angles)).flatten(-2))
        heads = compiled(TransformerLayer.heads, self.backend)(self, varies(x), angles)
        with compiled_scores(self.backend):
            attended = attend(*heads)  # [*L, H, C]
        return compiled(TransformerLayer.finish, self.backend)(self, x, varies(in_rows(attended, x.shape[-1])))

    def heads(self, x: Tensor, angles: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """What is done before attention: [*L, D] to queries, keys and values, [*L, H, C] each."""
        return self.attention.heads(self.attention_norm(x), angles)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What is done after attention: [*L, D] and heads side by side, [*L, D], to [*L, D]."""
        x = x + self.attention_out_norm(self.attention.out(attended))
        return x + self.mlp_out_norm(self.mlp(self.mlp_norm(x)))


class LayerStack(nn.ModuleList):
    """Layers of one kind, run in order.

    With ``recompute``, a layer keeps its input alone for the backward pass, and is run again there: memory of one layer
    instead of all, for a second forward pass. Nothing in a layer is random, so that the second is the first.
    """

    recompute = False

    def __init__(self, config: UNetConfig, num_layers: int, mlp_ratio: int) -> None:
        super().__init__(TransformerLayer(config, mlp_ratio) for _ in range(num_layers))

    def forward(
        self,
        x: Tensor,
        angles: Rotary,
        attend_at: Callable[[int], Attend],
        *,
        only: range | None = None,
        remembers: bool = False,
    ) -> Tensor:
        """Run all layers or ``only`` some; ``attend_at(i)`` is layer i's attention (a cache has a memory per layer).

        Args:
            x: [*L, D].
            angles: of the positions.
            attend_at: layer number to attention.
            only: numbers of the layers to run.
            remembers: whether attention writes into a cache, and must not be run again.
        """
        shape = x.shape
        if len(self) and self[0].backend is not None and shape[:-1].numel() >= FEW:
            # Compiled layers take rows [L, D]: what is flat is one program's, whatever it was before.
            x, attend_at = in_rows(x, shape[-1]), _in_shape(attend_at, shape[:-1])
            angles = Rotary(*(varies(in_rows(part.expand(*shape[:-1], 1, -1), 1, part.shape[-1])) for part in angles))
        again = self.recompute and torch.is_grad_enabled() and not remembers
        for i in range(len(self)) if only is None else only:
            if again:
                x = checkpoint(self[i], x, angles, attend_at(i), use_reentrant=False, preserve_rng_state=False)
            else:
                x = self[i](x, angles, attend_at(i))
        return x if x.shape == shape else x.view(shape)


def _in_shape(attend_at: Callable[[int], Attend], shape: torch.Size) -> Callable[[int], Attend]:
    """Attention for heads [L, H, C] that sees them as [*shape, H, C]."""

    def at(layer: int) -> Attend:
        attend = attend_at(layer)
        return lambda *heads: attend(*(one.unflatten(0, shape) for one in heads))

    return at


FEW = 32
"""Fewer positions than this run as they are: a compiled program does not pay, and one alone is another program."""
_SCORES: ContextVar[str | None] = ContextVar("_SCORES", default=None)


@lru_cache
def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """A function compiled when it is first called; models whose programs are more than torch keeps run it as it is.

    Args:
        function: of tensors and modules, the same for all models.
        backend: as ``torch.compile`` names it.
    """
    return torch.compile(function, backend=backend)


def varies(x: Tensor, *dims: int) -> Tensor:
    """A tensor, marked as one whose sizes in ``dims`` are another in every batch: one program is made for all of them.

    Args:
        x: any tensor, not a view of another.
        dims: counted from the beginning or the end; none is the first. Those that ``x`` has not, and those of size 1,
            are passed over.
    """
    for dim in dims or (0,):
        if -x.dim() <= dim < x.dim() and x.shape[dim] > 1:
            torch._dynamo.maybe_mark_dynamic(x, dim % x.dim())
    return x


def in_rows(x: Tensor, *last: int) -> Tensor:
    """[*L, ...] as [L, *last] in memory of its own: of a view, programs would also depend on what it is a view of.

    Args:
        x: any tensor.
        last: sizes of the dimensions behind the first.
    """
    rows = x.reshape(-1, *last)
    return rows.clone() if rows._is_view() else rows


@contextmanager
def compiled_scores(backend: str) -> Iterator[None]:
    """Within the block, capped attention turns scores into weights by a compiled function."""
    before = _SCORES.set(backend)
    try:
        yield
    finally:
        _SCORES.reset(before)


def scores_backend() -> str | None:
    """What scores are compiled with here; None where they are not."""
    return _SCORES.get()
