"""The picture of differences by size: lines, bars and ticks."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib import pyplot as plt

from rltok_rl.viz import size_figure
from rltok_rl.viz.size_figure import SizedDifference, draw_sizes
from rltok_rl.viz.style import save_figure

POINTS = [
    SizedDifference("a$", 4e13, [-0.06, -0.08], -0.07, 0.13),
    SizedDifference("a$", 1e13, [-0.03, -0.05], -0.04, 0.02),
    SizedDifference("b", 1e13, [0.01], 0.01, float("inf")),
    SizedDifference("b", 1.2e15, [0.02, 0.04], 0.03, 0.01),
]


def test_lines_are_means_by_size_and_bars_their_intervals(tmp_path, monkeypatch):
    figures: list[Any] = []
    monkeypatch.setattr(size_figure, "save_figure", lambda *args: figures.append(args[0]) or save_figure(*args))
    assert draw_sizes(POINTS, tmp_path / "sizes.png", reference="uniform").stat().st_size > 1000
    (axes,) = figures[0].axes
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert set(lines) == {r"a\$", "b"}
    assert list(lines[r"a\$"].get_ydata()) == [-0.04, -0.07] and list(lines["b"].get_ydata()) == [0.01, 0.03]
    assert list(lines[r"a\$"].get_xdata()) == pytest.approx([0.975e13, 3.9e13])
    bars = [collection.get_segments()[0][:, 1].tolist() for collection in axes.collections]
    assert [pytest.approx(bar) for bar in bars] == [[-0.06, -0.02], [-0.2, 0.06], [0.02, 0.04]]
    dots = [line.get_ydata() for line in axes.lines if line.get_marker() == "."]
    assert [list(values) for values in dots] == [[-0.03, -0.05], [-0.06, -0.08], [0.01], [0.02, 0.04]]
    assert axes.get_xscale() == "log" and axes.get_ylim() == pytest.approx((-0.116, 0.076))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10.0", "40.0", "1,200"]
    assert not plt.get_fignums()


def test_no_point_is_refused(tmp_path):
    with pytest.raises(ValueError, match="points must be at least one, got none"):
        draw_sizes([], tmp_path / "sizes.png", reference="uniform")
