"""What the tests of figures share: a figure as it is when it is written."""

from __future__ import annotations

import pytest


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are when they are written, by file name."""
    from matplotlib.figure import Figure

    kept = {}
    save = Figure.savefig

    def savefig(figure, path, *rest, **options):
        kept[path.name] = figure
        return save(figure, path, *rest, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return kept
