"""Decide whether fused operations run: on plain float32 tensors of a CPU, outside of tracing and transforms."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from rltok_rl.fused.libraries import sgemm_address

VARIABLE = "RLTOK_FUSED"
"""Environment variable that turns fused operations off: ``auto`` (default) or ``off``."""
SWITCH = ("auto", "off")
"""Values of this variable, and of the option ``compute.fused``."""
FEW = 32
"""Fewer rows run in plain torch: steps of generation, which a kernel does not pay for."""
ROWS_PER_WIDTH = 1 / 4
"""Rows fewer than this share of their width run in plain torch, too: kernels transpose whole weights first."""
WIDEST = 512
"""Wider rows run in plain torch, whose matrix products are then most of the time."""
_ON: ContextVar[bool] = ContextVar("_ON", default=True)


@cache
def missing() -> str | None:
    """Return why no fused operation can run on this machine, or None."""
    value = os.environ.get(VARIABLE, "auto")
    if value not in SWITCH:
        raise ValueError(f"{VARIABLE} must be 'auto' or 'off', got {value!r}")
    if value == "off":
        return f"{VARIABLE}=off"
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'rltok_rl[fast]')"
    return None if sgemm_address() else "torch does not show its matrix product (sgemm_)"


def allow_fused(on: bool) -> None:
    """Allow fused operations, or turn them off, from here on in this thread."""
    _ON.set(on)


@contextmanager
def fused(on: bool) -> Iterator[None]:
    """Allow fused operations, or turn them off, inside a ``with`` block.

    Example:
        >>> with fused(False):
        ...     fuses(torch.zeros(64, 8))
        False
    """
    before = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(before)


def fused_state() -> str:
    """Describe in a word or two whether fused operations run: ``"on"``, or why not."""
    return (missing() or "on") if _ON.get() else "off"


def fuses(x: Tensor, *others: Tensor, multiplies: bool = True) -> bool:
    """Whether a fused operation may take rows ``x`` [*L, D] and other tensors, which must be contiguous.

    One that ``multiplies`` matrices may not under autocast, whose products are not in float32.
    """
    if torch.compiler.is_compiling():  # first: compilers trace nothing of the rest
        return False
    return (
        x.shape[-1] <= WIDEST
        and x.numel() >= max(FEW, ROWS_PER_WIDTH * x.shape[-1]) * x.shape[-1] > 0
        and all(y.is_contiguous() for y in others)
        and not (multiplies and torch.is_autocast_enabled("cpu"))
        and takes_kernels(x, *others)
    )


def takes_kernels(*tensors: Tensor, dtypes: Collection[torch.dtype] = (torch.float32,)) -> bool:
    """Whether kernels run on this machine and may read these tensors: plain ones of some types on the CPU."""
    return (
        not torch.compiler.is_compiling()
        and _ON.get()
        and missing() is None
        and all(type(x) in (Tensor, nn.Parameter) and x.dtype in dtypes and x.is_cpu for x in tensors)
        and not traced()
    )


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of a kind, without hooks, bias or another ``forward``, which fused operations skip."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    plain = type(module) is kind and "forward" not in vars(module) and getattr(module, "bias", None) is None
    return plain and not any(hooks)


def traced() -> bool:
    """Whether operations are traced, counted or differentiated by anything else than autograd's backward pass."""
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return True
    modes = range(torch._C._len_torch_dispatch_stack())
    return not all(getattr(torch._C._get_dispatch_stack_at(i), "sees_kernels", False) for i in modes)
