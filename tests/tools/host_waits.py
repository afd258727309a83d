"""Where the host would wait for a GPU, found without one.

The host waits for a GPU wherever it needs a value (``.item()``, ``if tensor``, ``nonzero``) or copies without
``non_blocking``. On the simulated device, tensors say that they are on ``cuda:0`` and lie in main memory. Each
operation that would wait is noted with its line of Python, and goes on. Kernels are those of the CPU: values are close
to a GPU's, times say nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

PRETENDED = torch.device("cuda:0")  # the simulated device
# Operations whose result, or its shape, the host has to know.
_VALUES = {"_local_scalar_dense", "nonzero", "argwhere", "masked_select", "_unique2", "unique_dim", "bincount", "equal"}
_VALUES |= {"unique_consecutive", "unique_dim_consecutive", "_linalg_check_errors", "histc"}
_MASKED = ("index", "index_put", "index_put_", "_index_put_impl_")
_MAKERS = Path(torch.__file__).parent.parent
_NOT_OURS = tuple(f"{_MAKERS / name}/" for name in ("torch", "tensordict", "torchrl", "numpy"))


@dataclass(frozen=True)
class Wait:
    """One operation that makes the host wait, and the innermost function outside torch's packages."""

    operation: str  # of torch (``_local_scalar_dense`` for ``.item()``), ``copy to cpu`` or ``copy to cuda``
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.operation}  {self.function}  ({Path(self.file).name}:{self.line})"


@dataclass
class Waits:
    """The waits so far, and the device to move tensors to."""

    device: torch.device = PRETENDED
    found: list[Wait] = field(default_factory=list)

    def table(self) -> str:
        """A line for each place, with how often the host waited there."""
        return "\n".join(f"{count:5d}  {wait}" for wait, count in Counter(self.found).items())

    def clear(self) -> None:
        self.found.clear()


class PretendedTensor(Tensor):
    """A tensor that lies in main memory and says that it is on a GPU."""

    held: Tensor
    device = property(lambda self: PRETENDED)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, real: Tensor) -> PretendedTensor:
        with unset_fake_temporarily():
            shell = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        made = Tensor._make_subclass(cls, shell, False, device_for_backend_keys=PRETENDED)
        made.held = real
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return self.detach().cpu().numpy()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} was asked of a tensor of host_waits() outside its block")


class _Pretending(TorchDispatchMode):
    """Runs every operation on the CPU; results are on the device of the arguments."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, PretendedTensor)]
        asked = kwargs.get("device")
        asked = None if asked is None else torch.device(asked)
        there = bool(given) if asked is None else asked.type in (PRETENDED.type, "meta")
        name = func.overloadpacket.__name__
        if not given and not there:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        self._check(name, args, kwargs, there=there)
        if name == "_fused_sdp_choice":
            return int(torch.nn.attention.SDPBackend.MATH.value)
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        shells = {id(x.held): x for x in given}
        with unset_fake_temporarily():
            out = func(*_bare(args), **_bare(kwargs))
            if name == "_to_copy" and any(out is x.held for x in given):
                out = out.clone()

        def dressed(x: Tensor) -> Tensor:
            if id(x) in shells:
                shell = shells[id(x)]
                assert shell.shape == x.shape, f"{func} changes the shape of its argument in place"
                return shell
            return PretendedTensor(x) if there else x

        if name == "copy_" and not isinstance(args[0], PretendedTensor):
            return args[0]
        return _mapped(dressed, out)

    def _check(self, name: str, args: Any, kwargs: Any, *, there: bool) -> None:
        """Note an operation that a host would wait in."""
        if name in _VALUES or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self._note(name)
        elif name in _MASKED and any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
            if name != "index" and args[2].numel() == 1 and not any(args[3:]):
                return  # a number is filled in uncounted; a tensor of one element is not, and looks the same
            self._note(f"{name} with a mask")
        elif name in ("_to_copy", "copy_"):
            source = isinstance(args[name == "copy_"], PretendedTensor)
            target = there if name == "_to_copy" else isinstance(args[0], PretendedTensor)
            non_blocking = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
            if source != target and not non_blocking:
                self._note("copy to cuda" if target else "copy to cpu")

    def _note(self, operation: str) -> None:
        frame: FrameType | None = sys._getframe(1)
        skipped = (__file__, "<", *_NOT_OURS)
        while frame is not None and frame.f_code.co_filename.startswith(skipped):
            frame = frame.f_back
        code = None if frame is None else frame.f_code
        place = ("", 0, "") if code is None else (code.co_filename, frame.f_lineno, code.co_name)
        self.waits.found.append(Wait(operation, *place))


def _mapped(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    return tree_map_only(Tensor, change, values)


def _bare(values: Any) -> Any:
    return _mapped(lambda x: x.held if isinstance(x, PretendedTensor) else x, values)


_GENERATOR = torch.Generator


@contextmanager
def host_waits() -> Iterator[Waits]:
    """Note where the host would wait for a GPU, in the block; no GPU is needed, and none is used.

    Move models and data to ``device`` in the block; afterwards they cannot be used. Generators of that device draw the
    CPU's numbers. On a GPU, ``torch.cuda.set_sync_debug_mode("warn")`` reports the same without lines of Python.

    Example:
        >>> with host_waits() as seen:
        ...     x = torch.arange(4.0).to(seen.device, non_blocking=True)
        ...     total = x.sum()  # nothing waits
        ...     list(seen.found), float(total), [wait.operation for wait in seen.found]
        ([], 6.0, ['_local_scalar_dense'])
    """
    waits = Waits()

    def generator(device: Any = "cpu") -> torch.Generator:
        return _GENERATOR("cpu" if torch.device(device).type == PRETENDED.type else device)

    future: Any = torch.__future__
    overwrites = future.get_overwrite_module_params_on_conversion()
    future.set_overwrite_module_params_on_conversion(True)  # a parameter cannot become one of another device in place
    try:
        # The first, which all operations reach last and none gets to, keeps torch from looking for a real device.
        with FakeTensorMode(), _Pretending(waits), mock.patch.object(torch, "Generator", generator):
            yield waits
    finally:
        future.set_overwrite_module_params_on_conversion(overwrites)
