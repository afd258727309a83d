"""Every example in a docstring runs, under the name that its module is installed by."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

from .layout import modules

# Modules that only a machine with an optional package imports, and the package.
NEED = {"rltok_rl.sampling.triton_kernel": "triton"}
NAMES = [name for name, _ in modules() if not name.endswith("__main__")]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    if name in NEED:
        pytest.importorskip(NEED[name])
    torch.manual_seed(0)
    module = importlib.import_module(name)
    results = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0, f"{results.failed} of {results.attempted} examples fail; pytest -s shows them"


def test_there_are_examples():
    """The walk finds modules, and modules have examples: an empty walk would pass otherwise."""
    names = [name for name in NAMES if name not in NEED]
    found = sum(len(t.examples) for name in names for t in doctest.DocTestFinder().find(importlib.import_module(name)))
    assert found >= 15
