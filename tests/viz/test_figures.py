"""Figures: what is in them, and what they refuse."""

from __future__ import annotations

import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rltok_rl.viz import style as look
from rltok_rl.viz.comparison import draw_comparison, draw_loss_against_flops
from rltok_rl.viz.curves import draw_curves, draw_loss_flops
from rltok_rl.viz.over_time import Snapshot, draw_over_time, visible_part
from rltok_rl.viz.series import look_of
from rltok_rl.viz.text_figures import one_glyph

HISTORY = {
    "bytes": [1e6 * n for n in range(1, 50)],
    "flops": [1e12 * n for n in range(1, 50)],
    "bits_per_byte": [1 + 5 / n for n in range(1, 50)],
    "early_bits_per_byte": [1 + 6 / n for n in range(1, 50)],
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
    "held_out_rate": [0.5, 0.3, 0.2],
}


def lines(axes):
    return {one.get_label(): [list(x) for x in one.get_data()] for one in axes.lines}


def test_curves_hold_training_and_held_out_text(tmp_path, drawn):
    path = draw_curves(HISTORY, tmp_path / "curves.png", target_rate=0.15, held_out=HELD_OUT)
    assert path.stat().st_size > 10_000
    panels = {axes.get_title(loc="left"): axes for axes in drawn["curves.png"].axes}
    assert len(panels) == 6
    loss = lines(panels["bits per byte"])
    assert set(loss) >= {"early exit", "whole model", "held out"}
    assert loss["held out"] == [[0.0, 2.0, 40.0], [8.0, 4.0, 2.0]]
    assert loss["whole model"][0] == [x / 1e6 for x in HISTORY["bytes"]]
    rate = lines(panels["boundaries per byte"])
    assert rate["target"][1] == [0.15, 0.15] and rate["held out"][1] == [0.5, 0.3, 0.2]
    assert panels["boundaries per byte"].get_ylim()[0] == 0
    assert lines(panels["learning rate"])
    # Nothing at the very top, where it would be cut.
    assert panels["boundaries per byte"].get_ylim()[1] >= 1.05 * 0.5
    assert panels["policy entropy, nats per decision"].get_ylim()[1] >= 1.05 * 0.5


def test_the_early_exit_is_held_out_as_well(tmp_path, drawn):
    looks = {**HELD_OUT, "held_out_early_bits_per_byte": [8.0, 4.5, 2.5]}
    draw_curves(HISTORY, tmp_path / "curves.png", held_out=looks)
    assert lines(drawn["curves.png"].axes[0])["early exit, held out"] == [[0.0, 2.0, 40.0], [8.0, 4.5, 2.5]]
    draw_loss_flops(HISTORY, tmp_path / "flops.png", held_out=looks)
    (axes,) = drawn["flops.png"].axes
    assert lines(axes)["early exit, held out"] == [[2e12, 40e12], [4.5, 2.5]]
    assert [text.get_text() for text in axes.texts] == ["early exit, held out  2.500", "held out  2.000"]


def fitted(lines, points=()):
    """Limits of an axis, and what is written into it."""
    with look.plain_figures() as plt:
        figure, axes = plt.subplots()
        look.fit(axes, lines, points=points)
        plt.close(figure)
        return axes.get_ylim(), [text.get_text() for text in axes.texts]


def test_what_leaves_a_picture_is_said_to():
    (low, high), written = fitted([[3.0, 2.9, 2.5, 2.0]])
    assert low < 2.0 and high > 3.0 and written == []  # all of it can be shown
    steep = [8.0] + [2.0 + 1.0 / n for n in range(1, 40)]
    (low, high), written = fitted([steep], points=[[8.0, 1.8]])
    assert low < 1.8 and high < 4.0 and written == ["\u2191 from 8.0"]


def test_curves_are_drawn_of_what_there_is(tmp_path, drawn):
    few = {"bytes": [1e6], "bits_per_byte": [4.0], "advantage_spread": [0.0], "entropy": [math.nan]}
    draw_curves(few, tmp_path / "few.png")
    shown = [axes.get_title(loc="left") for axes in drawn["few.png"].axes if axes.axison]
    assert shown == ["bits per byte", "advantage spread, nats"]
    five = {key: values for key, values in HISTORY.items() if key != "entropy"}
    draw_curves(five, tmp_path / "five.png")
    labelled = [axes.get_xlabel() != "" for axes in drawn["five.png"].axes]
    assert labelled == [False, False, True, True, True, False]  # the lowest of each column
    with pytest.raises(ValueError, match="history must hold at least one update, got none"):
        draw_curves({"bytes": []}, tmp_path / "none.png")
    with pytest.raises(ValueError, match="history must hold at least one update, got none"):
        draw_loss_flops({}, tmp_path / "none.png")
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        look.smooth([1.0], 0)


def test_loss_over_flops_leaves_out_what_has_no_logarithm(tmp_path, drawn):
    draw_loss_flops(HISTORY, tmp_path / "flops.png", held_out=HELD_OUT)
    (axes,) = drawn["flops.png"].axes
    found = lines(axes)
    assert found["held out"] == [[2e12, 40e12], [4.0, 2.0]]
    assert found["whole model, training"][0] == HISTORY["flops"]


def test_a_comparison_has_a_colour_per_run(tmp_path, drawn):
    runs = {"a": (HISTORY, HELD_OUT), "b": (HISTORY, {}), "empty": ({}, {})}
    draw_comparison(runs, tmp_path / "both.png", target_rates={"a": 0.2, "b": 0.2})
    loss, rate, entropy, spread = drawn["both.png"].axes
    assert [text.get_text() for text in drawn["both.png"].legends[0].get_texts()] == ["a", "b"]
    assert len({one.get_color() for one in loss.lines}) == 2
    assert [[2.0, 40.0], [4.0, 2.0]] in [[list(x) for x in one.get_data()] for one in loss.lines]
    assert any(list(one.get_ydata()) == [0.2, 0.2] for one in rate.lines)
    assert entropy.get_title(loc="left").startswith("policy entropy")
    assert spread.get_title(loc="left") == "advantage spread, nats" and spread.get_yscale() == "log"
    broad = {one.get_label(): one.get_linewidth() for one in loss.lines if one.get_label() in runs}
    assert broad["a"] > broad["b"]  # the same line twice: both are seen
    close = {"a": ({**HISTORY, "entropy": [0.50, 0.52] + [0.51] * 47}, {})}
    draw_comparison(close, tmp_path / "close.png")
    low, high = drawn["close.png"].axes[2].get_ylim()
    assert 0.45 < low < 0.5 and 0.52 < high < 0.55
    draw_comparison(runs, tmp_path / "apart.png", target_rates={"a": 0.2, "b": 0.3})
    dashed = [one for one in drawn["apart.png"].axes[1].lines if list(one.get_xdata()) == [0, 1]]
    colours = [look_of(number).colour for number in range(2)]
    assert [(one.get_ydata()[0], one.get_color()) for one in dashed] == list(zip([0.2, 0.3], colours, strict=True))
    ruled = {"a": ({**HISTORY, "entropy": [math.nan] * 49}, HELD_OUT)}
    draw_comparison(ruled, tmp_path / "rule.png")
    assert len(drawn["rule.png"].axes) == 3  # a rule has no entropy
    for draw in (draw_comparison, draw_loss_against_flops):
        with pytest.raises(ValueError, match="runs must hold one with at least one update"):
            draw({"empty": ({}, {})}, tmp_path / "none.png")
        with pytest.raises(ValueError, match="runs must be at most 21, so that they can be told apart, got 22"):
            draw({str(n): (HISTORY, {}) for n in range(22)}, tmp_path / "many.png")


def test_the_end_of_loss_against_flops_is_drawn_large_with_names_that_do_not_overlap(tmp_path, drawn):
    """Nine runs that end within a hundredth of a bit of each other."""
    runs = {}
    for n in range(9):
        losses = [8.0, 4.0, 2.0 + 0.001 * n]
        runs[f"system {n}"] = (HISTORY, {**HELD_OUT, "held_out_bits_per_byte": losses})
    path = draw_loss_against_flops(runs, tmp_path / "flops.png")
    figure = drawn["flops.png"]
    whole, end = figure.axes
    assert end.get_xlim()[0] == pytest.approx(40e12 / 5) and end.get_ylim()[1] < 2.1 < whole.get_ylim()[1]
    assert [2e12, 40e12] in [
        list(one.get_xdata()) for one in end.lines
    ]  # the look before the first update is not in it
    FigureCanvasAgg(figure).draw()  # a closed figure has lost its canvas
    boxes = [text.get_window_extent() for text in end.texts]
    assert [text.get_text() for text in end.texts][:2] == ["system 0  2.000", "system 1  2.001"]
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
    assert all(0 <= b.x0 and b.x1 <= figure.bbox.x1 and 0 <= b.y0 and b.y1 <= figure.bbox.y1 for b in boxes)
    size = [int.from_bytes(path.read_bytes()[start : start + 4], "big") for start in (16, 20)]  # as a PNG begins
    assert size == [round(x * 150) for x in figure.get_size_inches()]


def test_without_looks_the_end_is_that_of_training(tmp_path, drawn):
    draw_loss_against_flops({"a": (HISTORY, {}), "b": (HISTORY, HELD_OUT)}, tmp_path / "flops.png")
    whole, end = drawn["flops.png"].axes
    assert len(end.lines[0].get_xdata()) == 49
    assert end.get_title(loc="left") == "the end, from 1/5 of the budget on"
    one = {key: values[:1] for key, values in HISTORY.items()}
    draw_loss_against_flops({"a": (one, {})}, tmp_path / "one.png")  # a single update


def test_a_run_that_stopped_early_leaves_the_end_large(tmp_path, drawn):
    """Of its figures the last one is listed, and where that was."""
    early = {key: values[:2] for key, values in HELD_OUT.items()}
    runs = {"a": (HISTORY, HELD_OUT), "stopped": ({k: v[:3] for k, v in HISTORY.items()}, early)}
    draw_loss_against_flops(runs, tmp_path / "flops.png")
    whole, end = drawn["flops.png"].axes
    assert end.get_xlim()[0] == pytest.approx(40e12 / 5) and end.get_ylim()[1] < 2.1
    assert [text.get_text() for text in end.texts] == ["a  2.000", "stopped  4.000 at 2 T"]
    reaches = [one for one in end.lines if not one.get_clip_on()]
    assert len(reaches) == 1  # from the end that is in the picture


def snapshot(text: bytes, label: str = "1 MB", every: int = 3) -> Snapshot:
    return Snapshot(label, text, [n % every == 0 for n in range(len(text))], [0.5] * len(text), ("2.00", "0.33"))


def test_a_line_per_snapshot_with_its_bars(tmp_path, drawn):
    text = b"to be or not to be"
    shots = [snapshot(text, "0 B"), snapshot(text, "1 MB", every=2)]
    draw_over_time(shots, tmp_path / "time.png", columns=18, headings=("bits/byte", "rate"))
    axes = drawn["time.png"].axes[0]
    bars = sorted((line.get_xdata()[0], int(line.get_ydata()[0])) for line in axes.lines)
    expected = [(n + 1, row) for row, every in ((0, 3), (1, 2)) for n in range(18) if n % every == 0]
    assert bars == sorted(expected)
    written = [text.get_text() for text in axes.texts]
    assert written.count("b") == 4 and written.count("2.00") == 2 and "bits/byte" in written and "1 MB" in written
    assert len(axes.images) == 2 and axes.images[0].get_array().tolist() == [[0.5] * 18]


def test_boundaries_inside_a_character_are_shown_after_it(tmp_path, drawn):
    text = "né€".encode()
    boundaries = [False, True, False, False, False, True]
    shots = [Snapshot("", text, boundaries, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])]
    draw_over_time(shots, tmp_path / "time.png")
    axes = drawn["time.png"].axes[0]
    assert sorted(line.get_xdata()[0] for line in axes.lines) == [2, 3]
    assert axes.images[0].get_array().tolist() == [[0.1, 0.3, 0.6]]


def test_every_text_can_be_drawn(tmp_path):
    """Characters that the font lacks, escapes and line breaks: warnings are errors here."""
    text = "日本\n\t🙂 x".encode() + b"\xff"
    draw_over_time([snapshot(text)], tmp_path / "time.png")
    assert [one_glyph(one) for one in ("\n", "\\xff", "日")] == ["\u23ce", "\u00b7", "□"]


def test_snapshots_of_several_texts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="snapshots must be of one text, got 2"):
        draw_over_time([snapshot(b"ab"), snapshot(b"cd")], tmp_path / "time.png")
    with pytest.raises(ValueError, match="snapshots must hold at least one, got none"):
        draw_over_time([], tmp_path / "time.png")


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        (b"to be", 99, "to be"),
        (b"xx to be or", 4, "to b"),
        (b"xx yy\nto be", 5, "to be"),
        (b"xx yy\n\n  to", 4, "yy\n\n"),
        (b"abcdef", 3, "abc"),
    ],
)
def test_a_part_begins_with_a_line_or_a_word(text, columns, shown):
    found = "".join(character for _, _, character in visible_part(text, columns))
    assert found == shown


def test_axes_of_losses_have_plain_numbers():
    with look.plain_figures() as plt:
        for values in ([0.3, 3.0], [1.0, 1e6]):
            figure, axes = plt.subplots()
            axes.plot([1, 2], values)
            axes.set_yscale("log")
            look.plain_numbers(axes.yaxis)
            figure.canvas.draw()
            labels = [label.get_text() for label in axes.get_yticklabels() if label.get_text()]
            assert len(labels) >= 3 and all(math.isfinite(float(label)) for label in labels)
            plt.close(figure)


@pytest.mark.parametrize("window", [1, 2, 5, 40, 1000])
def test_a_smoothed_curve_is_the_mean_of_neighbours(window):
    """Against a loop; a value that is missing is left out."""
    values = [float(n * 7 % 13) for n in range(60)]
    values[30] = math.nan
    for n, found in enumerate(look.smooth(values, window)):
        half = min(window // 2, n // 4)
        near = [x for x in values[max(0, n - half) : n + half + 1] if not math.isnan(x)]
        assert found == pytest.approx(sum(near) / len(near)) if near else math.isnan(found)
    assert look.smooth([], 3) == []
