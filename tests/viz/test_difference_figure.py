"""The picture of differences: order, colours, and what a reader can tell from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib import colors
from matplotlib import pyplot as plt

from rltok_rl.viz import difference_figure
from rltok_rl.viz.difference_figure import SystemDifference, draw_differences
from rltok_rl.viz.style import ALERT, OURS, QUIET, save_figure

SYSTEMS = [
    SystemDifference("level", [-0.02, 0.03], 0.005, 0.2),
    SystemDifference("worse $x$", [0.04, 0.05], 0.045, 0.01),
    SystemDifference("better", [-0.05, -0.03], -0.04, 0.02, comparable=False),
    SystemDifference("one seed", [-0.01], -0.01, float("inf")),
]


def test_the_best_is_on_top_and_colours_say_what_differs(tmp_path, monkeypatch):
    figures, before = [], plt.get_fignums()

    def save(figure: Any, path: Path) -> Path:
        figures.append(figure)
        return save_figure(figure, path)

    monkeypatch.setattr(difference_figure, "save_figure", save)
    assert draw_differences(SYSTEMS, tmp_path / "differences.png", reference="uniform").stat().st_size > 1000
    (axes,) = figures[0].axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [r"worse \$x\$", "level", "one seed", "better"]  # from below
    means = {names[round(line.get_ydata()[0])]: line for line in axes.lines if line.get_markersize() == 5}
    assert [line.get_color() for line in means.values()] == [ALERT, QUIET, QUIET, OURS]
    faces = [colors.to_hex(line.get_markerfacecolor()) for line in means.values()]
    assert faces == [ALERT, QUIET, QUIET, "#ffffff"]
    intervals = [line for line in axes.lines if line.get_linewidth() == 1.4]
    ends = [end for line in intervals for end in line.get_xdata()]
    assert ends[:4] == pytest.approx([0.035, 0.055, -0.195, 0.205])
    assert axes.get_title(loc="left") == "bits per byte minus uniform: lower is better"
    assert plt.get_fignums() == before


def test_no_system_is_refused(tmp_path):
    with pytest.raises(ValueError, match="systems must be at least one, got none"):
        draw_differences([], tmp_path / "differences.png", reference="uniform")
