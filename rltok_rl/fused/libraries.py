"""Functions of the libraries that torch was built with."""

from __future__ import annotations

import ctypes
import platform
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
    return _address("sgemm_")


def brgemm_address() -> int:
    """Return the address of torch's product of small row-major matrices in float32; 0 if torch does not export it.

    oneDNN generates its code for the processor at hand: 2.4 times as fast as ``sgemm`` on an AMD processor with
    AVX-512, where MKL uses AVX2, and 1.2 times with AVX2. Without AVX2, or with oneDNN off, it calls torch's ``gemm``.
    It keeps a program of 20 to 30 kB for each thread and shape. The function is private, looked up by its mangled C++
    name, so that a torch with another signature does not export it.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return 0
    return _address("_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb")


def _address(name: str) -> int:
    """The address of a function of torch's library; 0 if it does not export it."""
    function = getattr(torch_library(), name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def one_thread_here() -> None:
    """Let matrix products that this thread calls run on this thread alone."""
    function = getattr(torch_library(), "MKL_Set_Num_Threads_Local", None)  # other libraries stay on their own setting
    if function is not None:
        function(1)
