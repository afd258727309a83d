"""Old names of modules lead to the modules, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

from rltok_rl.renamed import MODULES


@pytest.mark.parametrize("old", MODULES)
def test_old_module_names_warn_and_work(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    new = importlib.import_module(MODULES[old])
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MODULES[old]}"):
        assert importlib.import_module(old) is new
    assert new.__spec__.name == new.__name__ == MODULES[old]
