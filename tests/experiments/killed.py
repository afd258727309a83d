"""End a run as a kill does, right after it has written the line of an update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from rltok_rl.training.metrics import MetricsTable


@contextlib.contextmanager
def killed_at(update: int) -> Iterator[None]:
    """Kill the run in the block after the line of ``update``, which it must reach."""
    add = MetricsTable.add

    def add_and_fail(self, number, *rest):
        add(self, number, *rest)
        if number == update:
            raise KeyError("killed")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyError, match="killed"):
        patch.setattr(MetricsTable, "add", add_and_fail)
        yield
