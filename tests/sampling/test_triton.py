"""The Triton kernel without a GPU: its own interpreter runs it on CPU tensors, where Triton is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import torch
from rltok_rl.sampling.portable import loop
from rltok_rl.sampling.triton_loop import triton_loop
from tests.sampling.policies import tight_thresholds
torch.manual_seed(0)
for num_lags in (1, 3, 8, 12, 31):  # 31: all bits of the integer
    for num_rows in (1, 5, 40):  # less than a warp, and more than one
        base, lags = torch.randn(num_rows, 60), torch.randn(num_rows, 60, num_lags)
        for thresholds in (torch.logit(torch.rand(num_rows, 60)), tight_thresholds(base, lags)):
            expected = loop(base, lags, thresholds)
            assert torch.equal(triton_loop(base, lags, thresholds), expected), (num_lags, num_rows)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted_kernel_equals_the_loop():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # read when triton is imported: needs a process of its own
    root = Path(__file__).parents[2]  # where tests.sampling is found
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
