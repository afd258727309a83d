"""Where the host would wait for a GPU, found without one.

A GPU works through a queue that the host fills. The host waits wherever it needs a value from the device (``.item()``,
``if tensor``, ``nonzero``, whose result has as many entries as there are) or copies between the two without
``non_blocking``; the queue runs empty meanwhile. Here a device is made up: its tensors say that they are on ``cuda:0``,
so that all code takes the way that it takes on a GPU, and lie in main memory, so that values are there. Every
operation that would wait is noted, with the line that asked for it, and goes on.

Kernels are those of the CPU: figures are close to a GPU's, times say nothing.
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

PRETENDED = torch.device("cuda:0")
"""The device that is made up."""
_VALUES = (
    "_local_scalar_dense",
    "nonzero",
    "argwhere",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
    "equal",
    "_linalg_check_errors",
    "histc",
)
"""Operations whose result, or its shape, the host has to know."""
_MASKED = ("index", "index_put", "index_put_", "_index_put_impl_")
_MAKERS = Path(torch.__file__).parent.parent
_NOT_OURS = tuple(f"{_MAKERS / name}/" for name in ("torch", "tensordict", "torchrl", "numpy"))


@dataclass(frozen=True)
class Wait:
    """One operation that makes the host wait, and who asked for it."""

    operation: str
    """Of torch, ``_local_scalar_dense`` for ``.item()``, ``bool()``, ``int()``, ``float()``; ``copy to cpu`` and
    ``copy to cuda`` for copies that are not ``non_blocking``."""
    file: str
    line: int
    function: str
    """Innermost of those that belong to no package of torch's."""

    def __str__(self) -> str:
        """As tables have it."""
        return f"{self.operation}  {self.function}  ({Path(self.file).name}:{self.line})"


@dataclass
class Waits:
    """What was seen."""

    device: torch.device = PRETENDED
    """Where to move what is to be looked at."""
    found: list[Wait] = field(default_factory=list)

    def table(self) -> str:
        """A line for each place, with how often the host waited there."""
        counted = Counter(self.found)
        return "\n".join(f"{count:5d}  {wait}" for wait, count in counted.items())

    def clear(self) -> None:
        """Forget what was seen so far."""
        self.found.clear()


class PretendedTensor(Tensor):
    """A tensor that lies in main memory and says that it is on a GPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> PretendedTensor:
        """Put a tensor on the device that is made up."""
        with unset_fake_temporarily():
            shell = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        made = Tensor._make_subclass(cls, shell, False, device_for_backend_keys=PRETENDED)
        made.held = real
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it says that it is; torch itself is told of no device, for want of one."""
        return PRETENDED

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """As ``device`` has it."""
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """As ``device`` has it."""
        return False

    def tolist(self) -> Any:
        """Copied to the host, as on a GPU."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Copied to the host; refused as on a GPU where that is not asked for."""
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return self.detach().cpu().numpy()

    def __repr__(self) -> str:  # type: ignore[override]
        """What lies in memory."""
        return f"PretendedTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} was asked of a tensor of host_waits() outside its block")


class _Pretending(TorchDispatchMode):
    """Runs every operation on the CPU; results are on the device that the arguments were said to be on."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [x for x in _tensors((args, kwargs)) if isinstance(x, PretendedTensor)]
        asked = kwargs.get("device")
        asked = None if asked is None else torch.device(asked)
        there = bool(given) if asked is None else asked.type in (PRETENDED.type, "meta")
        name = func.overloadpacket.__name__
        if not given and not there:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        self._look(name, args, kwargs, there=there)
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

    def _look(self, name: str, args: Any, kwargs: Any, *, there: bool) -> None:
        """Note an operation that a host would wait in."""
        if name in _VALUES:
            self._note(name)
        elif name == "repeat_interleave" and kwargs.get("output_size") is None:
            self._note(name)
        elif name in _MASKED and any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
            if name != "index" and args[2].numel() == 1 and not any(args[3:]):
                return  # a number is filled in uncounted; a tensor of one element is not, and looks the same
            self._note(f"{name} with a mask")
        elif name == "_to_copy":
            source = isinstance(args[0], PretendedTensor)
            if source != there and not kwargs.get("non_blocking", False):
                self._note("copy to cuda" if there else "copy to cpu")
        elif name == "copy_":
            source, target = isinstance(args[1], PretendedTensor), isinstance(args[0], PretendedTensor)
            blocking = not (kwargs.get("non_blocking", False) or (len(args) > 2 and args[2]))
            if source != target and blocking:
                self._note("copy to cuda" if target else "copy to cpu")

    def _note(self, operation: str) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (
            frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith((*_NOT_OURS, "<"))
        ):
            frame = frame.f_back
        if frame is None:
            self.waits.found.append(Wait(operation, "", 0, ""))
            return
        code = frame.f_code
        self.waits.found.append(Wait(operation, code.co_filename, frame.f_lineno, code.co_name))


def _mapped(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Arguments or results of an operation, which are lists at most, with other tensors."""
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, (list, tuple)):
        return type(values)([_mapped(change, x) for x in values])
    return {name: _mapped(change, x) for name, x in values.items()} if isinstance(values, dict) else values


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for x in values.values() if isinstance(values, dict) else values:
            yield from _tensors(x)


def _bare(values: Any) -> Any:
    return _mapped(lambda x: x.held if isinstance(x, PretendedTensor) else x, values)


_GENERATOR = torch.Generator


@contextmanager
def host_waits() -> Iterator[Waits]:
    """Note where the host would wait for a GPU, in the block; no GPU is needed, and none is used.

    What is to be looked at is made or moved in the block, on ``device`` of what is given; it is of no use after it.
    Generators of that device draw the CPU's numbers. On a machine with a GPU
    ``torch.cuda.set_sync_debug_mode("warn")`` says the same of the real one, without the lines of Python.

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
