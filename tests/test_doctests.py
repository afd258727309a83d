"""Every example in a docstring runs, under the name that its module is installed by."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect

import torch

from .layout import modules

NEED = {"rltok_rl.sampling.triton_kernel": "triton"}
"""Modules that only a machine with an optional package imports, and the package."""


class Finder(doctest.DocTestFinder):
    """Finds the examples of decorated functions too, whose globals are those of another module."""

    def _from_module(self, module, object):
        return super()._from_module(module, inspect.unwrap(object))


def test_examples():
    """Failing examples are printed."""
    failed, attempted = [], 0
    for name, _ in modules():
        if name.endswith("__main__") or (name in NEED and importlib.util.find_spec(NEED[name]) is None):
            continue
        torch.manual_seed(0)
        module = importlib.import_module(name)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        for example in Finder(exclude_empty=True).find(module, extraglobs={"torch": torch}):
            runner.run(example)
        attempted += runner.tries
        failed += [name] if runner.failures else []
    assert failed == [] and attempted >= 200
