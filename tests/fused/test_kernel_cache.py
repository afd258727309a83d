"""Programs that were compiled in this process, and those that a later process loads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from rltok_rl import fused

pytestmark = pytest.mark.skipif(fused.missing() is not None, reason=f"no fused operations: {fused.missing()}")

HEADS = """
import torch
from rltok_rl import fused
from rltok_rl.models.layers import rotary

x, norm, weight = torch.randn(2, 64, 64), torch.randn(64), torch.randn(192, 64)
with torch.no_grad():
    print(fused.project_heads(x, norm, weight, *rotary(torch.arange(64), 32, 1e4), 1e-5).numpy().tobytes().hex())
"""


def test_kernels_run_without_brgemm(tmp_path):
    """As on other systems than Linux on x86-64."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    results = []
    for address in ("libraries.brgemm_address()", "0"):
        patch = f"from rltok_rl.fused import libraries\naddress = {address}\nlibraries.brgemm_address = lambda: address"
        command = [sys.executable, "-c", f"import torch; torch.manual_seed(0)\n{patch}\n{HEADS}"]
        read = bytes.fromhex(subprocess.check_output(command, env=environment, text=True))
        results.append(torch.frombuffer(bytearray(read), dtype=torch.float32))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-5)


def test_loaded_programs_round_as_compiled_ones_do(tmp_path):
    """A run that is killed in the process that compiled its kernels is resumed in one that loads them."""
    command = [sys.executable, "-c", "import torch; torch.manual_seed(0)" + HEADS]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    compiled, loaded = (subprocess.check_output(command, env=environment) for _ in range(2))
    assert list(tmp_path.rglob("*.nbc")), "nothing was kept"
    assert compiled == loaded
