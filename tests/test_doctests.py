"""Every example in a docstring runs, under the name that its module is installed by."""

from __future__ import annotations

import doctest
import importlib
import importlib.util

import torch

from .layout import modules

NEED = {"rltok_rl.sampling.triton_kernel": "triton"}
"""Modules that only a machine with an optional package imports, and the package."""


def test_examples():
    """Failing examples are printed."""
    failed, attempted = [], 0
    for name, _ in modules():
        if name.endswith("__main__") or (name in NEED and importlib.util.find_spec(NEED[name]) is None):
            continue
        torch.manual_seed(0)
        module = importlib.import_module(name)
        results = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE)
        attempted += results.attempted
        failed += [name] if results.failed else []
    assert failed == [] and attempted >= 15
