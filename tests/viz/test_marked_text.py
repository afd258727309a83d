"""Text coloured by probability: every byte of every text is there once, in its place and in its colour."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rltok_rl.viz import boundary_picture
from rltok_rl.viz.style import shades
from rltok_rl.viz.text_figures import MarkedText, cells, draw_texts, wrapped

HARD = "Zoë paid $5 & $6\tfor 日本 🙂; e\u0301, \u200b العربية\x1b[0m\nnext".encode() + b"\xff\xe2\x82"


@pytest.fixture
def drawn(monkeypatch):
    """Axes as they were written, ready to be measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kept = []
    save = Figure.savefig

    def savefig(figure, *rest, **options):
        kept.append(figure)
        return save(figure, *rest, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def last():
        FigureCanvasAgg(kept[-1]).draw()  # a closed figure has lost its canvas
        return kept[-1].axes[0]

    return last


def test_cells_hold_every_byte_once():
    found = cells(HARD)
    assert [cell.start for cell in found] == [0, *(cell.end for cell in found[:-1])] and found[-1].end == len(HARD)
    shown = {cell.shown: cell.kind for cell in found}
    boxes = {"65E5", "672C", "01F642", "0301", "200B"}
    assert {name for name, kind in shown.items() if kind == "box"} == boxes
    assert {name for name, kind in shown.items() if kind == "escape"} == {"\\x09", "\\x1b", "\\xff", "\\xe2", "\\x82"}
    assert shown["\u23ce"] == "break" and shown["ë"] == "plain"


def test_lines_are_full_whole_and_begin_with_words():
    dice = random.Random(0)
    for _ in range(60):
        text = bytes(dice.choice(b"ab \n\xff") for _ in range(dice.randrange(1, 60)))
        lines = wrapped(cells(text), 12)
        assert [cell for line in lines for cell in line] == cells(text)
        assert all(0 < sum(cell.width for cell in line) <= 12 for line in lines)
        for line, after in zip(lines, lines[1:], strict=False):
            words = sum(cell.width for cell in line[len(line) // 2 :] if cell.shown == " ")
            assert line[-1].kind == "break" or line[-1].shown == " " or not words or after[0].width > 1
    with pytest.raises(ValueError, match="columns must be at least 4, the width of the widest character, got 3"):
        wrapped(cells(b"\xff"), 3)


def test_characters_have_the_colour_of_their_last_byte_and_bars_of_all(tmp_path, drawn):
    text = "aé€".encode()
    one = MarkedText("mine", text, [0.0, 1.0, 0.25, 0.9, 0.8, 0.5], [False, True, False, False, False, False])
    draw_texts([one], tmp_path / "text.png")
    faces, bars = drawn().collections
    assert np.allclose(faces.get_facecolor(), [shades()(p) for p in (0.0, 0.25, 0.5)])
    (bar,) = bars.get_segments()
    edges = [path.get_extents() for path in faces.get_paths()]
    assert bar[0][0] == pytest.approx(edges[1].x1) == pytest.approx(edges[2].x0)  # after the é, within which it was


def test_words_lie_on_their_colours(tmp_path, drawn):
    """Letters are written word by word; each word is as wide as its cells."""
    text = b"a considerably long word 1234567890 WWWWWWWWWW iiiiiiiiii"
    draw_texts([MarkedText("mine", text, [0.1] * len(text))], tmp_path / "text.png")
    axes = drawn()
    edges = [path.get_extents() for path in axes.collections[0].get_paths()]
    words = {t.get_text(): t for t in axes.texts if t.get_fontfamily() == ["monospace"]}
    assert set(words) == {word.decode() for word in text.split()}
    for word, shown in words.items():
        start = text.decode().index(word)
        box = shown.get_window_extent().transformed(axes.transData.inverted())
        cell = edges[start].width
        assert edges[start].x0 - 0.1 * cell < box.x0 and box.x1 < edges[start + len(word) - 1].x1 + 0.3 * cell
        assert box.width > (len(word) - 0.9) * cell


def test_several_segmenters_stand_under_each_other(tmp_path, drawn):
    texts = [
        MarkedText("learned", HARD, [0.5] * len(HARD), [True] * len(HARD), "2.1 bits"),
        MarkedText("$a rule$", HARD, [1.0] * len(HARD)),
    ]
    path = draw_texts(texts, tmp_path / "text.png", columns=40)
    axes = drawn()
    titles = {text.get_text(): text for text in axes.texts if text.get_text() in ("learned", "$a rule$", "2.1 bits")}
    assert len(titles) == 3
    boxes = [text.get_window_extent() for text in titles.values()]
    faces = [one for one in axes.collections if one.get_label() == "text"]
    assert len(faces) == 2
    cover = [path.get_extents(axes.transData) for one in faces for path in one.get_paths()]
    assert not any(box.overlaps(other) for box in boxes for other in cover)
    assert titles["learned"].get_position()[1] < titles["$a rule$"].get_position()[1]
    frame = axes.figure.bbox
    inside = [text.get_window_extent() for text in axes.texts]
    assert all(b.x0 >= 0 and b.x1 <= frame.x1 and b.y0 >= 0 and b.y1 <= frame.y1 for b in inside)
    size = [int.from_bytes(path.read_bytes()[start : start + 4], "big") for start in (16, 20)]  # as a PNG begins
    assert size == pytest.approx([x * 200 for x in axes.figure.get_size_inches()], abs=1)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    path = tmp_path / "text.png"
    for texts, told in (
        ([], "texts must hold at least one, got none"),
        ([MarkedText("empty", b"", [])], "text must hold at least one byte, got none for 'empty'"),
        ([MarkedText("short", b"ab", [0.5])], "probabilities must have one entry per byte of text, 2, got 1"),
        ([MarkedText("off", b"a", [1.5])], r"probabilities must lie in \[0, 1\], got 1.5"),
        ([MarkedText("off", b"a", [0.5], [])], "boundaries must have one entry per byte of text, 1, got 0"),
        ([MarkedText("long", b"a" * 20_001, [0.5] * 20_001)], "at most 20,000 bytes together, got 20,001"),
    ):
        with pytest.raises(ValueError, match=told):
            draw_texts(texts, path)
    assert not path.exists()


def test_the_picture_of_an_environment_can_hold_every_text():
    """Characters that the font lacks warned."""
    assert boundary_picture("日本🙂".encode(), [False] * 10).shape[2] == 3


def test_a_character_in_the_picture_of_an_environment_has_the_colour_of_its_last_byte():
    one, same, other = (boundary_picture("é".encode(), [False] * 2, p) for p in ([1.0, 0.0], [0.0, 0.0], [0.0, 1.0]))
    assert (one == same).all() and (one != other).any()
