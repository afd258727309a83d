"""The Triton kernel without a GPU: its own interpreter runs it on CPU tensors, where Triton is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

PROBE = """
import torch
from rltok_rl.sampling.portable import loop
from rltok_rl.sampling.triton_loop import triton_loop
torch.manual_seed(0)
for num_lags in (1, 3, 8, 12):
    for num_rows in (1, 5, 40):  # less than a warp, and more than one
        base, lags = torch.randn(num_rows, 60), torch.randn(num_rows, 60, num_lags)
        thresholds = torch.logit(torch.rand(num_rows, 60))
        assert torch.equal(triton_loop(base, lags, thresholds), loop(base, lags, thresholds)), (num_lags, num_rows)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted_kernel_equals_the_loop():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # read when triton is imported: needs a process of its own
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
