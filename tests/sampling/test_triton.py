"""The Triton kernel without a GPU: Triton's interpreter runs it on CPU tensors, and its compiler builds GPU code."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import torch
from rltok_rl.sampling.solvers import loop
from rltok_rl.sampling.triton_kernel import triton_loop
from tests.sampling.policies import tight_thresholds
torch.manual_seed(0)
for num_lags in (1, 3, 8, 12, 31):  # 31: all bits of the integer
    for num_rows in (1, 5, 40):  # less than a warp, and more than one
        base, lags = torch.randn(num_rows, 60), torch.randn(num_rows, 60, num_lags)
        for thresholds in (torch.logit(torch.rand(num_rows, 60)), tight_thresholds(base, lags)):
            expected = loop(base, lags, thresholds)
            assert torch.equal(triton_loop(base, lags, thresholds), expected), (num_lags, num_rows)
"""


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rltok_rl.sampling.triton_kernel import OPTIONS, walk
architecture = int(sys.argv[1])
for num_lags in (0, 8, 31):
    for dtype in ("fp32", "fp64"):
        signature = {name: f"*{dtype}" for name in ("base", "lags", "thresholds")}
        signature |= {"drawn": "*i8", "num_rows": "i32", "length": "i32", "NUM_LAGS": "constexpr", "ROWS": "constexpr"}
        source = ASTSource(walk, signature, constexprs={"NUM_LAGS": num_lags, "ROWS": 32})
        built = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=OPTIONS)
        print(num_lags, dtype, len(built.asm["cubin"]))
"""
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
ROOT = Path(__file__).parents[2]  # where tests.sampling is found


@needs_triton
def test_interpreted_kernel_equals_the_loop():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # read when triton is imported: needs a process of its own
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, cwd=ROOT)
    if "only 0-dimensional arrays can be converted to Python scalars" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy (Triton 3.3 with NumPy 2.4)")
    assert done.returncode == 0, done.stderr


@needs_triton
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_kernel_compiles(architecture, tmp_path):
    """Triton and its ptxas build machine code for GPUs that are not here: no driver is needed for that."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-W", "error::UserWarning", "-c", COMPILE, str(architecture)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if "is not defined for option 'gpu-name'" in done.stderr:
        pytest.skip(f"the ptxas of this Triton does not know sm_{architecture}")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
