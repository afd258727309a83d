"""Pictures of text: every byte is there once, in its place and in its colour."""

from __future__ import annotations

import random

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rltok_rl.viz import boundary_picture
from rltok_rl.viz.style import ALERT, shades
from rltok_rl.viz.text_figures import (
    MarkedText,
    Snapshot,
    cell_texts,
    cells,
    draw_over_time,
    draw_texts,
    one_glyph,
    visible_part,
    wrapped,
)

HARD = "Zoë paid $5 & $6\tfor 日本 🙂; e\u0301, \u200b العربية\x1b[0m\nnext".encode() + b"\xff\xe2\x82"


def rendered(drawn, name="text.png"):
    """Axes as they were written, ready to be measured."""
    FigureCanvasAgg(drawn[name]).draw()  # a closed figure has lost its canvas
    return drawn[name].axes[0]


def lines(axes):
    """(faces, cells, bars) of each line of text."""
    pairs = zip(axes.collections[::2], axes.collections[1::2], strict=True)
    return [
        (faces.get_facecolor(), [path.get_extents() for path in faces.get_paths()], bars.get_segments())
        for faces, bars in pairs
    ]


def test_cells_hold_every_byte_once():
    every = cells(HARD)
    assert [cell.start for cell in every] == [0, *(cell.end for cell in every[:-1])] and every[-1].end == len(HARD)
    boxes = [HARD[cell.start : cell.end].decode() for cell in every if cell.shown == "□"]
    assert boxes == ["日", "本", "🙂", "\u0301", "\u200b"]
    escapes = {cell.shown for cell in every if len(cell.shown) > 1}
    assert escapes == {"\\x09", "\\x1b", "\\xff", "\\xe2", "\\x82"}
    assert {"\u23ce", "ë", "ع"} <= {cell.shown for cell in every}
    assert [one_glyph(shown) for shown in ("\u23ce", "\\xff", "a")] == ["\u23ce", "\u00b7", "a"]


def test_lines_are_full_whole_and_begin_with_words():
    dice = random.Random(0)
    for _ in range(60):
        text = bytes(dice.choice(b"ab \n\xff") for _ in range(dice.randrange(1, 60)))
        broken = wrapped(cells(text), 12)
        assert [cell for line in broken for cell in line] == cells(text)
        assert all(0 < len(cell_texts(line)) <= 12 for line in broken)
        for line, after in zip(broken, broken[1:], strict=False):
            spaces = [cell for cell in line[len(line) // 2 :] if cell.shown == " "]
            assert line[-1].shown in ("\u23ce", " ") or not spaces or len(after[0].shown) > 1


def test_a_part_begins_with_a_line_or_a_word():
    for text, columns, shown in (
        (b"to be", 99, "to be"),
        (b"xx to be or", 4, "to b"),
        (b"xx yy\nto be", 5, "to be"),
        (b"xx yy\n\n  to", 4, "yy⏎⏎"),
        (b"abcdef", 3, "abc"),
    ):
        assert cell_texts(visible_part(text, columns)) == shown, text


def test_characters_have_the_colour_of_their_last_byte_and_bars_of_all(tmp_path, drawn):
    text = "aé€".encode()
    probabilities, boundaries = [0.0, 1.0, 0.25, 0.9, 0.8, 0.5], [False, True, False, False, False, False]
    draw_texts([MarkedText("mine", text, probabilities, boundaries)], tmp_path / "text.png")
    draw_over_time([Snapshot("now", text, boundaries, probabilities)], tmp_path / "time.png")
    for name in ("text.png", "time.png"):
        ((faces, places, (bar,)),) = lines(rendered(drawn, name))
        assert np.allclose(faces, [shades()(p) for p in (0.0, 0.25, 0.5)])
        assert bar[0][0] == pytest.approx(places[1].x1) == pytest.approx(places[2].x0)  # after é, the bar is inside it
    with_first, last, other = (
        boundary_picture("é".encode(), [False] * 2, p) for p in ([1.0, 0.0], [0.0, 0.0], [0.0, 1.0])
    )
    assert (with_first == last).all() and (last != other).any()


def test_words_lie_on_their_colours(tmp_path, drawn):
    """Letters are written word by word; each word, however long, is as wide as its cells, in pixels as well."""
    text = b"a considerably long word WWWWWWWWWW iiiiiiiiii " + b"x" * 49
    shares = [0.1] * len(text)
    draw_texts([MarkedText("mine", text, shares)], tmp_path / "text.png")
    draw_over_time([Snapshot("now", text, shares, shares)], tmp_path / "time.png")
    for name, dpi in (("text.png", 200), ("time.png", 150)):
        drawn[name].set_dpi(dpi)
        axes = rendered(drawn, name)
        ((_, places, _),) = lines(axes)
        words = {t.get_text(): t for t in axes.texts if "monospace" in t.get_fontfamily() and t.get_text().strip()}
        assert set(words) == {word.decode() for word in text.split()}
        for word, shown in words.items():
            start = text.decode().index(word)
            box, cell = shown.get_window_extent().transformed(axes.transData.inverted()), places[start].width
            end = places[start + len(word) - 1].x1
            assert places[start].x0 - 0.1 * cell < box.x0 and end - 0.8 * cell < box.x1 < end + 0.3 * cell, word


def test_several_segmenters_are_drawn_under_each_other(tmp_path, drawn):
    texts = [MarkedText(f"rule {n}", HARD, [0.3 * n] * len(HARD), [True] * len(HARD), "note") for n in range(3)]
    path = draw_texts(texts, tmp_path / "text.png", columns=40)
    axes = rendered(drawn)
    every = lines(axes)
    tops = [places[0].y0 for _, places, _ in every]
    assert tops == sorted(tops) and len(every) % 3 == 0
    titles = [t.get_position()[1] for t in axes.texts if t.get_text().startswith("rule")]
    assert len(titles) == 3 and titles == sorted(titles)
    assert sum(len(faces) for faces, _, _ in every) == sum(len(bars) for _, _, bars in every) == 3 * len(cells(HARD))
    frame = axes.figure.bbox
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(b.x0 >= 0 and b.x1 <= frame.x1 and b.y0 >= 0 and b.y1 <= frame.y1 for b in boxes)
    size = [int.from_bytes(path.read_bytes()[start : start + 4], "big") for start in (16, 20)]  # as a PNG begins
    assert size == pytest.approx([x * 200 for x in axes.figure.get_size_inches()], abs=1)


def test_a_line_per_snapshot_with_its_bars(tmp_path, drawn):
    text = b"to be or not to be"
    shots = [
        Snapshot(label, text, [n % every == 0 for n in range(18)], [0.5] * 18, ("2.00", "0.33"))
        for label, every in (("0 B", 3), ("1 MB", 2))
    ]
    draw_over_time(shots, tmp_path / "time.png", columns=18, headings=("bits/byte", "rate"))
    axes = rendered(drawn, "time.png")
    every = lines(axes)
    assert [len(bars) for _, _, bars in every] == [6, 9]
    for (_, places, bars), step in zip(every, (3, 2), strict=True):
        assert [bar[0][0] for bar in bars] == pytest.approx([places[n].x1 for n in range(0, 18, step)])
    written = [text.get_text() for text in axes.texts]
    assert written.count("2.00") == 2 and {"bits/byte", "rate", "0 B", "1 MB", "trained on"} <= set(written)
    assert "".join(written).replace(" ", "").count("tobeornottobe") == 2


def test_every_text_can_be_drawn(tmp_path):
    """Warnings, as of missing glyphs, are errors here."""
    draw_over_time([Snapshot("1 MB", HARD, [True] * len(HARD), [0.5] * len(HARD))], tmp_path / "time.png")
    picture = boundary_picture(HARD, [False] * len(HARD), title="$5", columns=32, least_characters=99)
    assert picture.shape == (26 + 4 * 24 + 30, 32 * 10 + 24, 3) and picture.dtype == np.uint8


def test_the_picture_of_an_environment_shows_probabilities_decisions_or_rewards():
    text, boundaries = b"to be", [True, False, True, False, False]
    plain = boundary_picture(text, boundaries, columns=8)
    bar = np.array([int(ALERT[n : n + 2], 16) for n in (1, 3, 5)])
    assert (np.abs(plain[12:36].astype(int) - bar).sum(-1) < 150).any()
    rewards = boundary_picture(text, boundaries, rewards=[float("nan"), -2.0, 0.0, 2.0, 9.0], columns=8)
    centres = [rewards[15, 12 + 10 * n + 5].astype(int) for n in range(5)]
    assert (centres[0] > 250).all() and (centres[2] > 250).all()  # nothing is white
    assert centres[1][1] < 80 < centres[3][1] and (centres[3] == centres[4]).all()  # violet, green, and no more
    for words, options in (
        ("probabilities must have one entry per byte of text, 5, got 1", {"probabilities": [0.5]}),
        ("rewards must be one per byte, 5, without probabilities, got 1", {"rewards": [0.5]}),
    ):
        with pytest.raises(ValueError, match=words):
            boundary_picture(text, boundaries, **options)


def test_refusals(tmp_path):
    path = tmp_path / "text.png"
    for texts, words in (
        ([], "texts must hold at least one, got none"),
        ([MarkedText("empty", b"", [])], "text must hold at least one byte, got none for 'empty'"),
        ([MarkedText("short", b"ab", [0.5])], "probabilities must have one entry per byte of text, 2, got 1"),
        ([MarkedText("off", b"a", [1.5])], r"probabilities must lie in \[0, 1\], got 1.5"),
        ([MarkedText("off", b"a", [0.5], [])], "boundaries must have one entry per byte of text, 1, got 0"),
        ([MarkedText("long", b"a" * 20_001, [0.5] * 20_001)], "at most 20,000 bytes together, got 20,001"),
    ):
        with pytest.raises(ValueError, match=words):
            draw_texts(texts, path)
    with pytest.raises(ValueError, match="snapshots must be of one text, got 2"):
        draw_over_time([Snapshot("", text, [1], [0.5]) for text in (b"a", b"b")], path)
    with pytest.raises(ValueError, match="snapshots must hold at least one, got none"):
        draw_over_time([], path)
    with pytest.raises(ValueError, match="columns must be at least 4, the width of the widest character, got 3"):
        wrapped(cells(b"\xff"), 3)
    assert not path.exists()
