"""Functions of the libraries that torch was built with."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

_FILES = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}


@cache
def torch_library() -> ctypes.CDLL | None:
    """Return torch's library of CPU functions; None if it is not where wheels have it."""
    path = Path(torch.__file__).parent / "lib" / _FILES.get(sys.platform, "")
    try:
        return ctypes.CDLL(str(path)) if path.is_file() else None
    except OSError:
        return None


def sgemm_address() -> int:
    """Return the address of BLAS's matrix product; 0 if torch does not show its own."""
    function = getattr(torch_library(), "sgemm_", None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def one_thread_here() -> None:
    """Let matrix products that this thread calls run on this thread alone."""
    function = getattr(torch_library(), "MKL_Set_Num_Threads_Local", None)  # other libraries stay on their own setting
    if function is not None:
        function(1)
