"""A GPU without values: tensors that have shapes and types only, to count an update of any size anywhere.

Work of the host is real; work of the device is not done. Autocast, fused attention, functions of lists of tensors and
the fused optimizer choose as for a GPU. These need values or a GPU, and have stand-ins:

- a number that the host reads, mostly the number of tokens of the longest row: ``number``;
- the Triton sampler: one launch that reads base, lags and thresholds, and writes a byte per decision;
- RMSNorm: one kernel forward and one backward;
- attention of packed tokens (flex attention): torch's flash attention over rows of equal length, without a cap.

Tensors hold torch's fake tensors of device ``cuda``. Torch's builds for CPUs cannot differentiate those, so C++ code
sees device ``xla``, which is equally absent: autocast treats it like ``cuda``, and the backward pass asks it for no
streams. Its guard is registered once per process, before the first backward pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from rltok_rl.fused import launch
from rltok_rl.models.attention import PackedRows
from rltok_rl.sampling.sampler import METHODS, Method

DEVICE = torch.device("cuda:0")
_INSIDE = torch.device("xla:0")  # to C++ code
_XLA, _PRIVATE = 9, 20  # numbers of device types in c10


class FakeGPUTensor(Tensor):
    """A tensor on ``cuda:0`` without values."""

    held: Tensor  # a fake tensor of device cuda
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)

    @staticmethod
    def __new__(cls, held: Tensor) -> FakeGPUTensor:
        """Wrap a fake tensor."""
        with unset_fake_temporarily():
            shell = torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device="meta")
        tensor = Tensor._make_subclass(cls, shell, False, dispatch_device=True, device_for_backend_keys=DEVICE)
        tensor.held = held
        return tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FakeGPUTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Answer which device this is."""
        if func is torch.ops.prim.device.default:
            return _INSIDE
        raise RuntimeError(f"{func} was called on a tensor of fake_gpu() outside its block")


class _FakeGPU(TorchDispatchMode):
    """Runs operations of the host, and finds shapes and types of those of the device."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return _INSIDE
        kwargs = dict(kwargs or {})
        arguments = {id(x.held): x for x in tree_leaves((args, kwargs)) if isinstance(x, FakeGPUTensor)}
        asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        there = bool(arguments) if asked is None else asked.type in (DEVICE.type, _INSIDE.type)
        if not arguments and not there:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if asked is not None and there:
            kwargs["device"] = DEVICE
        args, kwargs = tree_map_only(FakeGPUTensor, lambda x: x.held, (args, kwargs))
        out = self._run(func, args, kwargs)
        if not there:  # a copy to the host, without values
            with unset_fake_temporarily():
                return tree_map_only(Tensor, lambda x: torch.zeros(x.shape, dtype=x.dtype), out)
        return tree_map_only(Tensor, lambda x: arguments[id(x)] if id(x) in arguments else FakeGPUTensor(x), out)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            return self.number
        if name in ("allclose", "equal", "is_nonzero"):
            return True
        if "generator" in kwargs:  # the host's, in the place of the device's
            kwargs["generator"] = None
        return func(*args, **kwargs)


def _launch(name: str, read: Sequence[Tensor], *written: Tensor) -> None:
    for observer in launch.observers:
        observer(name, read, written)


def _sampler(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """Stand for ``triton_loop``: its copies with time first, and its launch."""
    read = base.t().contiguous(), lags.permute(1, 2, 0).contiguous(), thresholds.t().contiguous()
    drawn = torch.empty(base.shape, dtype=torch.int8, device=base.device)
    _launch("triton::walk", read, drawn)
    return drawn.bool()


class _RMSNorm(torch.autograd.Function):
    """Stand for torch's kernels, which its builds for CPUs lack."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        y, scale = torch.empty_like(x), x.new_empty(x.shape[:-1])
        ctx.save_for_backward(x, weight, scale)
        _launch("aten::_fused_rms_norm", (x, weight), y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        grads = torch.empty_like(x), torch.empty_like(weight)
        _launch("aten::_fused_rms_norm_backward", (grad, x, weight, scale), *grads)
        return grads


def _fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *, is_causal: bool = False
) -> Tensor:
    """Run the kernel that ``scaled_dot_product_attention`` chooses on a GPU."""
    if attn_mask is None and query.dtype in (torch.bfloat16, torch.float16):
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]
    if attn_mask is not None:  # it reads a number for every score
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        shape = (*query.shape[:-1], key.shape[-2])
        attn_mask = torch.where(attn_mask, zero, float("-inf")).expand(shape)
    heads = query, key, value, attn_mask
    return torch.ops.aten._scaled_dot_product_efficient_attention(*heads, True, 0.0, is_causal)[0]


def _packed_attention(rows: PackedRows, **_: Any) -> Any:
    """Stand for the attention of packed rows, [N, H, C] each: as many rows of equal length."""
    length = max(1, rows.room // max(1, len(rows.num_tokens)))

    def attend(*heads: Tensor) -> Tensor:
        q, k, v = (x[: rows.room // length * length].unflatten(0, (-1, length)).transpose(1, 2) for x in heads)
        out = _fused_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1)  # [<= N, H, C]
        return out if len(out) == rows.room else F.pad(out, (0, 0, 0, 0, 0, rows.room - len(out)))

    return attend


@cache
def _register_guard() -> Any:
    """Let C++ code switch to the inner device, by a guard of torch that does nothing."""
    if not hasattr(torch._C, "_acc"):
        raise RuntimeError(f"fake_gpu needs torch 2.9 or newer, got {torch.__version__}")
    accelerators: Any = torch._C._acc

    class Guard(accelerators.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.XLA

    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (_PRIVATE + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guard, before = Guard(), guards[_PRIVATE]
    accelerators.register_python_privateuseone_device_guard(guard)
    guards[_XLA], guards[_PRIVATE] = guards[_PRIVATE], before
    return guard  # kept for the rest of the process


@contextmanager
def fake_gpu(number: int = 1) -> Iterator[torch.device]:
    """Simulate a GPU in the block, in a process of its own; ``number`` is every number that the host reads from it."""
    _register_guard()
    future: Any = torch.__future__
    overwrites, generator = future.get_overwrite_module_params_on_conversion(), torch.Generator
    replaced = {
        "torch.Generator": lambda device="cpu": generator(),
        "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,  # else autocast turns itself off
        "torch.cuda.is_bf16_supported": lambda *_: True,
        "rltok_rl.sampling.sampler.choose_method": lambda device, num_lags: "triton",
        "rltok_rl.models.tokens.packed_attention": _packed_attention,
        "torch.nn.functional.scaled_dot_product_attention": _fused_attention,
        "torch.nn.functional.rms_norm": lambda x, shape, weight, eps: _RMSNorm.apply(x, weight),
        "torch.utils._foreach_utils._foreach_supported_types": [Tensor, FakeGPUTensor],
        "torch.utils._foreach_utils._get_foreach_kernels_supported_devices": lambda: [DEVICE.type, _INSIDE.type],
        "torch.optim.optimizer._foreach_supported_types": [torch.nn.Parameter, FakeGPUTensor],
    }
    future.set_overwrite_module_params_on_conversion(True)  # a parameter cannot become one of another device in place
    try:
        with ExitStack() as stack:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(_FakeGPU(number))
            stack.enter_context(mock.patch.dict(METHODS, triton=Method(_sampler)))
            for name, value in replaced.items():
                stack.enter_context(mock.patch(name, value))
            yield DEVICE
    finally:
        future.set_overwrite_module_params_on_conversion(overwrites)
