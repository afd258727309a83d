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


@pytest.fixture
def rendered(tmp_path, drawn):
    """Draw texts or snapshots; return axes as they were written, and (faces, cells, bars) of each line of text."""

    def draw(shown, dpi=100, **options):
        function = draw_texts if isinstance(shown[0], MarkedText) else draw_over_time
        function(shown, tmp_path / "text.png", **options)
        figure = drawn["text.png"]
        figure.set_dpi(dpi)
        FigureCanvasAgg(figure).draw()  # a closed figure has lost its canvas
        axes = figure.axes[0]
        pairs = zip(axes.collections[::2], axes.collections[1::2], strict=True)
        lines = [
            (faces.get_facecolor(), [path.get_extents() for path in faces.get_paths()], bars.get_segments())
            for faces, bars in pairs
        ]
        return axes, lines

    return draw


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
    for text, columns, shown in (
        (b"to be", 99, "to be"),
        (b"xx to be or", 4, "to b"),
        (b"xx yy\nto be", 5, "to be"),
        (b"xx yy\n\n  to", 4, "yy⏎⏎"),
        (b"abcdef", 3, "abc"),
    ):
        assert cell_texts(visible_part(text, columns)) == shown, text


def test_characters_have_the_colour_of_their_last_byte_and_bars_of_all(rendered):
    text = "aé€".encode()
    probabilities, boundaries = [0.0, 1.0, 0.25, 0.9, 0.8, 0.5], [False, True, False, False, False, False]
    for shown in (
        MarkedText("mine", text, probabilities, boundaries),
        Snapshot("now", text, boundaries, probabilities),
    ):
        _, ((faces, places, (bar,)),) = rendered([shown])
        assert np.allclose(faces, [shades()(p) for p in (0.0, 0.25, 0.5)])
        assert bar[0][0] == pytest.approx(places[1].x1) == pytest.approx(places[2].x0)  # after é, the bar is inside it
    early, none, late = (boundary_picture("é".encode(), [False] * 2, p) for p in ([1.0, 0.0], [0.0, 0.0], [0.0, 1.0]))
    assert (early == none).all() and (none != late).any()


def test_words_lie_on_their_colours(rendered):
    """Letters are written word by word; each word, however long, is as wide as its cells, in pixels as well."""
    text = b"a considerably long word WWWWWWWWWW iiiiiiiiii " + b"x" * 49
    shares = [0.1] * len(text)
    for drawing, dpi in ((MarkedText("mine", text, shares), 200), (Snapshot("now", text, shares, shares), 150)):
        axes, ((_, places, _),) = rendered([drawing], dpi)
        words = {t.get_text(): t for t in axes.texts if "monospace" in t.get_fontfamily() and t.get_text().strip()}
        assert set(words) == {word.decode() for word in text.split()}
        for word, shown in words.items():
            start = text.decode().index(word)
            box, cell = shown.get_window_extent().transformed(axes.transData.inverted()), places[start].width
            end = places[start + len(word) - 1].x1
            assert places[start].x0 - 0.1 * cell < box.x0 and end - 0.8 * cell < box.x1 < end + 0.3 * cell, word


def test_several_segmenters_are_drawn_under_each_other(rendered):
    """Any text can be drawn: warnings, as of missing glyphs, are errors here."""
    texts = [MarkedText(f"rule {n}", HARD, [0.3 * n] * len(HARD), [True] * len(HARD), "note") for n in range(3)]
    axes, every = rendered(texts)
    tops = [places[0].y0 for _, places, _ in every]
    assert tops == sorted(tops) and len(every) % 3 == 0
    titles = [t.get_position()[1] for t in axes.texts if t.get_text().startswith("rule")]
    assert len(titles) == 3 and titles == sorted(titles)
    assert sum(len(faces) for faces, _, _ in every) == sum(len(bars) for _, _, bars in every) == 3 * len(cells(HARD))
    frame = axes.figure.bbox
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(b.x0 >= 0 and b.x1 <= frame.x1 and b.y0 >= 0 and b.y1 <= frame.y1 for b in boxes)
    rendered([Snapshot("1 MB", HARD, [True] * len(HARD), [0.5] * len(HARD))])


def test_a_line_per_snapshot_with_its_bars(rendered):
    text = b"to be or not to be"
    shots = [
        Snapshot(label, text, [n % every == 0 for n in range(18)], [0.5] * 18, ("2.00", "0.33"))
        for label, every in (("0 B", 3), ("1 MB", 2))
    ]
    axes, every = rendered(shots, headings=("bits/byte", "rate"))
    for (_, places, bars), step in zip(every, (3, 2), strict=True):
        assert [bar[0][0] for bar in bars] == pytest.approx([places[n].x1 for n in range(0, 18, step)])
    written = [text.get_text() for text in axes.texts]
    assert written.count("2.00") == 2 and {"bits/byte", "rate", "0 B", "1 MB", "trained on"} <= set(written)
    assert "".join(written).replace(" ", "").count("tobeornottobe") == 2


def test_the_picture_of_an_environment_shows_probabilities_decisions_or_rewards():
    picture = boundary_picture(HARD, [False] * len(HARD), title="$5", columns=32, least_characters=99)
    assert picture.shape == (26 + 4 * 24 + 30, 32 * 10 + 24, 3) and picture.dtype == np.uint8
    text, boundaries = b"to be", [True, False, True, False, False]
    plain = boundary_picture(text, boundaries, columns=8)
    bar = np.array([int(ALERT[n : n + 2], 16) for n in (1, 3, 5)])
    assert (np.abs(plain[12:36].astype(int) - bar).sum(-1) < 150).any()
    rewards = boundary_picture(text, boundaries, rewards=[float("nan"), -2.0, 0.0, 2.0, 9.0], columns=8)
    centres = [rewards[15, 12 + 10 * n + 5].astype(int) for n in range(5)]
    assert (centres[0] > 250).all() and (centres[2] > 250).all()  # nothing is white
    assert centres[1][1] < 80 < centres[3][1] and (centres[3] == centres[4]).all()  # violet, green, and no more


def test_refusals(tmp_path):
    path = tmp_path / "text.png"
    for draw, argument, words in (
        (draw_texts, [], "texts must hold at least one, got none"),
        (draw_texts, [MarkedText("empty", b"", [])], "text must hold at least one byte, got none for 'empty'"),
        (draw_texts, [MarkedText("short", b"ab", [0.5])], "probabilities must have one .* of text, 2, got 1"),
        (draw_texts, [MarkedText("off", b"a", [1.5])], r"probabilities must lie in \[0, 1\], got 1.5"),
        (draw_texts, [MarkedText("off", b"a", [0.5], [])], "boundaries must have one entry per byte of text, 1, got 0"),
        (draw_texts, [MarkedText("long", b"a" * 20_001, [0.5] * 20_001)], "at most 20,000 bytes together, got 20,001"),
        (draw_over_time, [Snapshot("", t, [1], [0.5]) for t in (b"a", b"b")], "snapshots must be of one text, got 2"),
        (draw_over_time, [], "snapshots must hold at least one, got none"),
        (lambda text, _: wrapped(cells(text), 3), b"\xff", "columns must be at least 4, the width of the widest"),
        (lambda p, _: boundary_picture(b"ab", [1, 0], p), [0.5], "probabilities must have one .* text, 2, got 1"),
        (lambda r, _: boundary_picture(b"ab", [1, 0], rewards=r), [0.5], "rewards must be one per byte, 2, without"),
    ):
        with pytest.raises(ValueError, match=words):
            draw(argument, path)
    assert not path.exists()
