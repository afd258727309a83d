"""Several seeds in one line: mean, spread, and what is left out."""

from __future__ import annotations

import random
from statistics import fmean, stdev

import pytest

from rltok_rl.viz.comparison import draw_comparison, draw_loss_against_flops
from rltok_rl.viz.seeds import mean_line, seed_groups, widths
from rltok_rl.viz.series import look_of


def history(level: float, updates: int = 20) -> dict[str, list[float]]:
    each = [float(n) for n in range(1, updates + 1)]
    return {
        "bytes": [1e6 * n for n in each],
        "flops": [(1e12 + level * 1e10) * n for n in each],
        "bits_per_byte": [level + 1 / n for n in each],
        "rate": [0.2 + 0.01 * level] * updates,
        "entropy": [0.5 - 0.01 * level] * updates,
        "advantage_spread": [level] * updates,
    }


def looks(level: float) -> dict[str, list[float]]:
    return {
        "bytes": [0, 10e6, 20e6],
        "flops": [0.0, 10e12, 20e12],
        "held_out_bits_per_byte": [8.0, level + 0.2, level],
        "held_out_rate": [0.2, 0.2, 0.2],
    }


RUNS = {
    f"{name}-{seed}": (history(level + seed), looks(level + seed))
    for name, level in (("a", 2), ("b", 4))
    for seed in (0, 1)
}
GROUPS = {"a": ["a-0", "a-1"], "b": ["b-0", "b-1"]}


def test_a_mean_is_taken_value_by_value():
    """Against a loop; a line that is behind is left out, one that is a little shorter ends all."""
    dice = random.Random(0)
    lines = [
        ([n + dice.random() for n in range(length)], [dice.random() for _ in range(length)])
        for length in (40, 38, 40, 20)
    ]
    found = mean_line(lines)
    assert len(found.x) == len(found.y) == len(found.spread) == 38
    for n in range(38):
        values = [y[n] for _, y in lines[:3]]
        assert found.x[n] == pytest.approx(fmean(x[n] for x, _ in lines[:3]))
        assert found.y[n] == pytest.approx(fmean(values)) and found.spread[n] == pytest.approx(stdev(values))
    assert len(mean_line(lines, share=1.0).y) == 40 and mean_line(lines[:1]).spread == [0.0] * 40
    assert mean_line([]).x == mean_line([([], [])]).y == []


def test_names_without_a_group_stand_alone():
    assert seed_groups(["x", "y"], None) == {"x": ["x"], "y": ["y"]}
    assert seed_groups(RUNS, GROUPS) == GROUPS
    assert widths(2)[0] > widths(2)[1] and min(widths(21)) == 1.2 and max(widths(21)) < 3


def test_a_colour_per_group_with_thin_lines_a_mean_and_a_band(tmp_path, drawn):
    draw_comparison(RUNS, tmp_path / "seeds.png", groups=GROUPS)
    figure = drawn["seeds.png"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    loss, rate, entropy, spread = figure.axes
    colours = [look_of(n).colour for n in range(2)]
    for axes in (loss, rate, entropy, spread):
        assert {one.get_color() for one in axes.lines if len(one.get_xdata()) == 20} == set(colours)
        assert len(axes.collections) >= 2  # a band each
    thin = [one for one in entropy.lines if one.get_linewidth() == 0.6]
    assert len(thin) == 4
    (mean,) = [
        one
        for one in entropy.lines
        if one.get_linewidth() > 1 and one.get_color() == colours[0] and len(one.get_xdata())
    ]
    assert list(mean.get_ydata()) == pytest.approx([(0.48 + 0.47) / 2] * 20)
    band = entropy.collections[0].get_paths()[0].vertices[:, 1]
    apart = stdev([0.48, 0.47])
    assert (min(band), max(band)) == pytest.approx((0.475 - apart, 0.475 + apart))
    apart = draw_comparison(RUNS, tmp_path / "each.png")
    assert len(drawn["each.png"].legends[0].get_texts()) == 4 and apart.is_file()


def test_the_ends_of_groups_are_means_with_their_spread(tmp_path, drawn):
    draw_loss_against_flops(RUNS, tmp_path / "flops.png", groups=GROUPS)
    whole, end = drawn["flops.png"].axes
    sd = stdev([2.0, 3.0])
    assert [text.get_text() for text in end.texts] == [f"a  2.500 ± {sd:.3f}", f"b  4.500 ± {sd:.3f}"]
    low, high = end.get_ylim()
    assert low < 2.5 - sd and high > 4.5 + sd  # bars are in the picture
