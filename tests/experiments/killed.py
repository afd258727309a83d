"""A training that ends in the middle, as one that is killed does: its line is written, and nothing after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from rltok_rl.training.metrics import MetricsTable


@contextlib.contextmanager
def killed_at(update: int) -> Iterator[None]:
    """Kill the training in the block as soon as the line of ``update`` is written; it must get so far."""
    add = MetricsTable.add

    def add_and_fail(self, number, *rest):
        add(self, number, *rest)
        if number == update:
            raise KeyError("killed")

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyError, match="killed"):
        patched.setattr(MetricsTable, "add", add_and_fail)
        yield
