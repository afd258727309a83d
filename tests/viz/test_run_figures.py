"""Pictures of runs: their lines, dots, names and ranges."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean, stdev

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rltok_rl.viz.axes import fit, line_widths, mean_line, plain_numbers, seed_groups, smooth, spread_apart
from rltok_rl.viz.grid_figures import draw_grid
from rltok_rl.viz.run_figures import draw_comparison, draw_curves, draw_loss_against_flops, draw_loss_flops
from rltok_rl.viz.style import ALERT, MOST_RUNS, OURS, SERIES, plain_figures, run_style, save_figure, shades

UPDATES = range(1, 50)
HISTORY = {
    "bytes": [1e6 * n for n in UPDATES],
    "flops": [1e12 * n for n in UPDATES],
    "bits_per_byte": [1 + 5 / n for n in UPDATES],
    "early_bits_per_byte": [1 + 6 / n for n in UPDATES],
    "rate": [0.2] * 49,
    "entropy": [0.5] * 49,
    "advantage_spread": [0.0] + [1.0] * 48,
    "grad_norm": [2.0] * 49,
    "lr": [1e-3] * 49,
}
HELD_OUT = {
    "bytes": [0, 2e6, 40e6],
    "flops": [0.0, 2e12, 40e12],
    "held_out_bits_per_byte": [8.0, 4.0, 2.0],
    "held_out_early_bits_per_byte": [8.0, 4.5, 2.5],
    "held_out_rate": [0.5, 0.3, 0.2],
}


def seed_run(level: float):
    """The history of a run whose loss, rate, entropy and spread show its level, and its evaluations."""
    few = {key: HISTORY[key][:20] for key in ("bytes", "flops")}
    constant = {"rate": 0.2 + 0.01 * level, "entropy": 0.5 - 0.01 * level, "advantage_spread": level}
    bits = {"bits_per_byte": [level + 1 / n for n in range(1, 21)]}
    held = {"held_out_bits_per_byte": [8.0, level + 0.2, level], "held_out_rate": [0.2] * 3}
    return {**few, **bits, **{key: [x] * 20 for key, x in constant.items()}}, {**HELD_OUT, **held}


RUNS = {f"{name}-{seed}": seed_run(level + seed) for name, level in (("a", 2), ("b", 4)) for seed in (0, 1)}
GROUPS = {"a": ["a-0", "a-1"], "b": ["b-0", "b-1"]}


def lines(axes):
    return {line.get_label(): [list(x) for x in line.get_data()] for line in axes.lines}


def names(axes):
    return [text.get_text() for text in axes.texts]


def test_curves_hold_training_and_held_out_text(tmp_path, drawn):
    draw_curves(HISTORY, tmp_path / "curves.png", target_rate=0.15, held_out=HELD_OUT)
    panels = {axes.get_title(loc="left"): axes for axes in drawn["curves.png"].axes}
    assert len(panels) == 6 and lines(panels["learning rate"])
    loss, rate = lines(panels["bits per byte"]), lines(panels["boundaries per byte"])
    assert loss["held out"] == [[0.0, 2.0, 40.0], [8.0, 4.0, 2.0]]
    assert loss["early exit, held out"] == [[0.0, 2.0, 40.0], [8.0, 4.5, 2.5]]
    assert "early exit" in loss and loss["whole model"][0] == [x / 1e6 for x in HISTORY["bytes"]]
    assert rate["target"][1] == [0.15, 0.15] and rate["held out"][1] == [0.5, 0.3, 0.2]
    for name in ("boundaries per byte", "policy entropy, nats per decision"):  # nothing is cut at the top
        low, high = panels[name].get_ylim()
        assert low == 0 and high >= 1.05 * 0.5


def test_the_evaluation_at_zero_bytes_is_drawn_whole(tmp_path, drawn):
    draw_curves(HISTORY, tmp_path / "curves.png", held_out=HELD_OUT)
    figure = drawn["curves.png"]
    FigureCanvasAgg(figure).draw()
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    for axes in (panels["bits per byte"], panels["boundaries per byte"]):
        dots = [line for line in axes.lines if line.get_marker() == "o" and line.get_xdata()[0] == 0]
        assert dots
        for line in dots:
            centre = axes.transData.transform((0, line.get_ydata()[0]))[0]
            radius = (line.get_markersize() + line.get_markeredgewidth()) / 2 * figure.dpi / 72
            assert axes.bbox.x0 <= centre - radius and centre - radius < axes.bbox.x0 + 10
        assert axes.get_xticks()[axes.get_xticks() >= axes.get_xlim()[0]][0] == 0


def test_curves_are_drawn_of_the_metrics_that_are_known(tmp_path, drawn):
    few = {"bytes": [1e6], "bits_per_byte": [4.0], "advantage_spread": [0.0], "entropy": [math.nan]}
    draw_curves(few, tmp_path / "few.png")
    shown = [axes.get_title(loc="left") for axes in drawn["few.png"].axes if axes.axison]
    assert shown == ["bits per byte", "advantage spread, nats"]
    draw_curves({key: values for key, values in HISTORY.items() if key != "entropy"}, tmp_path / "five.png")
    labelled = [axes.get_xlabel() != "" for axes in drawn["five.png"].axes]
    assert labelled == [False, False, True, True, True, False]  # the lowest of each column


def test_returns_have_errors_and_a_known_optimum_replaces_the_reference(tmp_path, drawn):
    held = {**HELD_OUT, "held_out_relative_return": [0.0, 1.0, 2.0]}
    held["held_out_relative_return_standard_error"] = [0.5, 0.5, 0.7]
    history = {**HISTORY, "episode_return": [9.0] * 49, "return": [1.0] * 49, "share": [math.nan] * 49}
    relative, total = "return over even spacing, nats per episode", "return, nats per episode"
    for share in (None, [-9.0, 0.5, 0.9]):
        known = {} if share is None else {"held_out_share": share}
        draw_curves(
            {**history, **({"share": [0.5] * 49} if share else {})}, tmp_path / "c.png", held_out={**held, **known}
        )
        draw_comparison({"a": (history, {**held, **known})}, tmp_path / "d.png")
        for name in ("c.png", "d.png"):
            panels = {axes.get_title(loc="left"): axes for axes in drawn[name].axes}
            assert (relative in panels) is (share is None) and total in panels
            assert (next(iter(panels)) == "share of the optimum") is (share is not None)
            if share is None:
                assert [2.0, 40.0] == list(panels[relative].lines[-1].get_xdata())[-2:]
                assert panels[relative].get_ylim()[1] > (2.7 if name == "c.png" else 2.0)
            else:
                assert panels["share of the optimum"].get_ylim() == (-0.05, 1.05)


def test_a_grid_has_a_place_per_number_and_a_colour_per_series(tmp_path, drawn):
    flips = {0.99: [3.0], 0.9: [1.0, 2.0, 3.0]}
    panels = {"share": {"flips": flips, "plain": {0.9: [1.0, 1.0]}}, "bits": {"plain": {1.0: [2.0]}}}
    draw_grid("estimator.gamma", panels, tmp_path / "grid.png")
    share, bits = drawn["grid.png"].axes
    assert share.get_xlabel() == "estimator.gamma" and share.get_title(loc="left") == "share"
    assert [text.get_text() for text in share.get_xticklabels()] == ["0.9", "0.99", "1"]
    first, second = (container[0] for container in share.containers)
    assert list(first.get_ydata()) == [2.0, 3.0] and [round(x) for x in first.get_xdata()] == [0, 1]
    low, high = share.containers[0][2][0].get_segments()[0][:, 1]
    assert (low, high) == (1.0, 3.0) and first.get_color() != second.get_color()
    assert [text.get_text() for text in drawn["grid.png"].legends[0].get_texts()] == ["flips", "plain"]
    assert list(bits.containers[-1][0].get_ydata()) == [2.0]
    with pytest.raises(ValueError, match="panels must hold at least one value"):
        draw_grid("x", {}, tmp_path / "none.png")


def test_loss_over_flops_leaves_out_what_has_no_logarithm(tmp_path, drawn):
    draw_loss_flops(HISTORY, tmp_path / "flops.png", held_out=HELD_OUT)
    (axes,) = drawn["flops.png"].axes
    shown = lines(axes)
    assert shown["held out"] == [[2e12, 40e12], [4.0, 2.0]]
    assert shown["early exit, held out"] == [[2e12, 40e12], [4.5, 2.5]]
    assert shown["whole model, training"][0] == HISTORY["flops"]
    assert names(axes) == ["early exit, held out  2.500", "held out  2.000"]


def test_a_comparison_has_a_colour_per_run(tmp_path, drawn):
    runs = {"a": (HISTORY, HELD_OUT), "b": (HISTORY, {}), "empty": ({}, {})}
    colours = [run_style(number).colour for number in range(2)]
    for b_rate, line_colours in ((0.2, ["#9aa5b1"] * 2), (0.3, colours)):
        draw_comparison(runs, tmp_path / "both.png", target_rates={"a": 0.2, "b": b_rate})
        loss, rate, entropy, spread = drawn["both.png"].axes
        dashed = [line for line in rate.lines if list(line.get_xdata()) == [0, 1]]
        targets = [(line.get_ydata()[0], line.get_color()) for line in dashed]
        assert targets == list(zip([0.2, b_rate], line_colours, strict=True))
    assert [text.get_text() for text in drawn["both.png"].legends[0].get_texts()] == ["a", "b"]
    assert {line.get_color() for line in loss.lines} == set(colours)
    assert [[2.0, 40.0], [4.0, 2.0]] in [[list(x) for x in line.get_data()] for line in loss.lines]
    assert entropy.get_title(loc="left").startswith("policy entropy")
    assert spread.get_title(loc="left") == "advantage spread, nats" and spread.get_yscale() == "log"
    width = {line.get_label(): line.get_linewidth() for line in loss.lines if line.get_label() in runs}
    assert width["a"] > width["b"]  # the same line twice: both are seen
    draw_comparison({"a": ({**HISTORY, "entropy": [0.50, 0.52] + [0.51] * 47}, {})}, tmp_path / "close.png")
    low, high = drawn["close.png"].axes[2].get_ylim()
    assert 0.45 < low < 0.5 and 0.52 < high < 0.55
    draw_comparison({"a": ({**HISTORY, "entropy": [math.nan] * 49}, HELD_OUT)}, tmp_path / "rule.png")
    assert len(drawn["rule.png"].axes) == 3  # a rule has no entropy


def test_names_are_no_mathematics(tmp_path, drawn):
    runs = {name: (HISTORY, HELD_OUT) for name in ("a$^_$b", "c$")}
    draw_comparison(runs, tmp_path / "runs.png")
    draw_loss_against_flops(runs, tmp_path / "flops.png")
    draw_grid("gamma", {"rate": {name: {0.9: [1.0]} for name in runs}}, tmp_path / "grid.png")


def test_the_end_of_loss_against_flops_is_enlarged_with_names_that_do_not_overlap(tmp_path, drawn):
    """Nine runs that end within a hundredth of a bit of each other."""
    runs = {
        f"system {n}": (HISTORY, {**HELD_OUT, "held_out_bits_per_byte": [8.0, 4.0, 2.0 + 0.001 * n]}) for n in range(9)
    }
    draw_loss_against_flops(runs, tmp_path / "flops.png")
    figure = drawn["flops.png"]
    whole, end = figure.axes
    assert end.get_xlim()[0] == pytest.approx(40e12 / 5) and end.get_ylim()[1] < 2.1 < whole.get_ylim()[1]
    assert [2e12, 40e12] in [list(line.get_xdata()) for line in end.lines]  # without the snapshot before training
    FigureCanvasAgg(figure).draw()  # a closed figure has lost its canvas
    boxes = [text.get_window_extent() for text in end.texts]
    assert names(end)[:2] == ["system 0  2.000", "system 1  2.001"]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(0 <= b.x0 and b.x1 <= figure.bbox.x1 and 0 <= b.y0 and b.y1 <= figure.bbox.y1 for b in boxes)


def test_the_end_of_runs_without_held_out_text_and_of_runs_that_stopped(tmp_path, drawn):
    first = {key: values[:1] for key, values in HISTORY.items()}
    early = ({k: v[:3] for k, v in HISTORY.items()}, {key: values[:2] for key, values in HELD_OUT.items()})
    ends = {}
    for name, runs in {
        "none": {"a": (HISTORY, {}), "b": (HISTORY, HELD_OUT)},
        "single update": {"a": (first, {})},
        "stopped": {"a": (HISTORY, HELD_OUT), "stopped": early},
    }.items():
        draw_loss_against_flops(runs, tmp_path / f"{name}.png")
        ends[name] = drawn[f"{name}.png"].axes[1]
    assert len(ends["none"].lines[0].get_xdata()) == 49
    assert ends["none"].get_title(loc="left") == "the end, from 1/5 of the budget on"
    end = ends["stopped"]
    assert end.get_xlim()[0] == pytest.approx(40e12 / 5) and end.get_ylim()[1] < 2.1
    assert names(end) == ["a  2.000", "stopped  4.000 at 2 T"]
    assert len([line for line in end.lines if not line.get_clip_on()]) == 1  # one connection, to the visible end


def test_a_group_has_thin_lines_a_mean_and_a_band(tmp_path, drawn):
    draw_comparison(RUNS, tmp_path / "seeds.png", groups=GROUPS)
    figure = drawn["seeds.png"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    colours = [run_style(n).colour for n in range(2)]
    for axes in figure.axes:
        assert {line.get_color() for line in axes.lines if len(line.get_xdata()) == 20} == set(colours)
        assert len(axes.collections) >= 2  # a band each
    entropy = figure.axes[2]
    assert len([line for line in entropy.lines if line.get_linewidth() == 0.6]) == 4
    means = [line for line in entropy.lines if line.get_linewidth() > 1 and len(line.get_xdata())]
    assert [line.get_color() for line in means] == colours
    assert list(means[0].get_ydata()) == pytest.approx([0.475] * 20)
    band, spread = entropy.collections[0].get_paths()[0].vertices[:, 1], stdev([0.48, 0.47])
    assert (min(band), max(band)) == pytest.approx((0.475 - spread, 0.475 + spread))
    draw_loss_against_flops(RUNS, tmp_path / "flops.png", groups=GROUPS)
    end, sd = drawn["flops.png"].axes[1], stdev([2.0, 3.0])
    assert names(end) == [f"a  2.500 ± {sd:.3f}", f"b  4.500 ± {sd:.3f}"]
    low, high = end.get_ylim()
    assert low < 2.5 - sd and high > 4.5 + sd  # bars are in the picture


def test_a_mean_is_taken_value_by_value():
    """Against a loop; an unfinished line is left out, one that is a little shorter ends all."""
    dice = random.Random(0)
    several = [([dice.random() for _ in range(n)], [dice.random() for _ in range(n)]) for n in (40, 38, 40, 20)]
    mean = mean_line(several)
    assert len(mean.x) == len(mean.y) == len(mean.spread) == 38
    for n in range(38):
        values = [y[n] for _, y in several[:3]]
        assert mean.x[n] == pytest.approx(fmean(x[n] for x, _ in several[:3]))
        assert mean.y[n] == pytest.approx(fmean(values)) and mean.spread[n] == pytest.approx(stdev(values))
    assert len(mean_line(several, share=1.0).y) == 40 and mean_line(several[:1]).spread == [0.0] * 40
    assert mean_line([]).x == mean_line([([], [])]).y == []
    assert seed_groups(["x", "y"], None) == {"x": ["x"], "y": ["y"]} and seed_groups(RUNS, GROUPS) == GROUPS
    assert line_widths(2)[0] > line_widths(2)[1] and min(line_widths(21)) == 1.2 and max(line_widths(21)) < 3


def test_a_smoothed_curve_is_the_mean_of_neighbours():
    """Against a loop; a missing value is left out."""
    values = [float(n * 7 % 13) for n in range(60)]
    values[30] = math.nan
    for window in (1, 2, 5, 40, 1000):
        for n, mean in enumerate(smooth(values, window)):
            half = min(window // 2, n // 4)
            near = [x for x in values[max(0, n - half) : n + half + 1] if not math.isnan(x)]
            assert mean == pytest.approx(sum(near) / len(near)) if near else math.isnan(mean)
    assert smooth([], 3) == []


def test_axes_hold_what_is_drawn_and_have_plain_numbers():
    steep = [8.0] + [2.0 + 1.0 / n for n in range(1, 40)]
    with plain_figures() as plt:
        _, (whole, cut, small, large) = plt.subplots(4)
        fit(whole, [[3.0, 2.9, 2.5, 2.0]])
        assert whole.get_ylim()[0] < 2.0 and whole.get_ylim()[1] > 3.0 and names(whole) == []
        fit(cut, [steep], points=[[8.0, 1.8]])
        assert cut.get_ylim()[0] < 1.8 and cut.get_ylim()[1] < 4.0 and names(cut) == ["\u2191 from 8.0"]
        for axes, values in ((small, [0.3, 3.0]), (large, [1.0, 1e6])):
            axes.plot([1, 2], values)
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
            axes.figure.canvas.draw()
            labels = [label.get_text() for label in axes.get_yticklabels() if label.get_text()]
            assert len(labels) >= 3 and all(math.isfinite(float(label)) for label in labels)
        plt.close("all")


def test_names_are_moved_as_little_as_possible():
    """No feasible neighbour is nearer: any group of neighbours moved together, up or down."""
    dice = random.Random(0)
    for _ in range(20):
        places = [dice.uniform(0, 5) for _ in range(dice.randrange(2, 7))]
        order = np.argsort(places, kind="stable")
        moved, before = np.array(spread_apart(places, 1.0))[order], np.array(places)[order]
        assert (np.diff(moved) >= 1 - 1e-9).all()
        for start, end in itertools.combinations(range(len(places) + 1), 2):
            for step in (-1e-3, 1e-3):
                other = moved.copy()
                other[start:end] += step
                if (np.diff(other) >= 1 - 1e-9).all():
                    assert np.sum((other - before) ** 2) >= np.sum((moved - before) ** 2) - 1e-12
    assert spread_apart([], 1.0) == [] and spread_apart([3.0, 1.0], 1.0) == [3.0, 1.0]


# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it is seen without green and without red cones.
EYES = {
    "all cones": np.eye(3),
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def lab(colour, eyes):
    """CIELAB of a colour as it is seen."""
    from matplotlib.colors import to_rgb

    encoded = np.asarray(to_rgb(colour))
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(EYES[eyes]) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    x, y, z = np.cbrt(np.maximum(np.asarray(to_xyz) @ seen / (0.95047, 1.0, 1.08883), 1e-6))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_and_styles_differ_to_every_eye():
    def difference(first, second, eyes):
        return float(np.linalg.norm(lab(first, eyes) - lab(second, eyes)))

    colours = shades()
    for eyes in EYES:
        assert min(difference(a, b, eyes) for a, b in itertools.combinations(SERIES, 2)) > 18, eyes
        lightness = [lab(colours(n / 10), eyes)[0] for n in range(11)]
        assert all(a - b > 3 for a, b in itertools.pairwise(lightness)), eyes
        assert min(difference(ALERT, colours(p), eyes) for p in (0.0, 1.0)) > 25, eyes  # bars are seen on both
    # A pair that some eyes confuse is found: green and grey.
    assert difference(OURS, "#5c6770", "all cones") > 25 and difference(OURS, "#5c6770", "no green cones") < 3
    styles = [run_style(n) for n in range(MOST_RUNS)]
    assert len(set(map(repr, styles))) == MOST_RUNS == 28
    assert len({style.marker for style in styles[:7]}) == 7  # also without colours


def test_refusals(tmp_path):
    path, none = tmp_path / "none.png", {"empty": ({}, {})}
    many = {str(n): (HISTORY, {}) for n in range(MOST_RUNS + 1)}
    too_many = f"runs must be at most {MOST_RUNS}, the number of distinct styles, got {MOST_RUNS + 1}"
    for words, draw, argument in (
        ("history must hold at least one update, got none", draw_curves, {}),
        ("history must hold at least one update, got none", draw_loss_flops, {}),
        ("runs must hold one with at least one update", draw_comparison, none),
        ("runs must hold one with at least one update", draw_loss_against_flops, none),
        (too_many, draw_comparison, many),
        (too_many, draw_loss_against_flops, many),
        ("window must be at least 1, got 0", lambda values, _: smooth(values, 0), [1.0]),
        (r"path must end in one of \['.png', '.pdf', '.svg'\]", save_figure, None),
    ):
        with pytest.raises(ValueError, match=words):
            draw(argument, path if argument is not None else tmp_path / "figure.gif")
