"""The page in a headless Chromium: what is seen, pressed, pointed at and touched."""

from __future__ import annotations

import numpy as np
import pytest

from rltok_rl.viz.terminal import characters
from rltok_rl.viz.viewer import Segmented, Snapshot, TextView, viewer_page

from .browser import Browser, find_browser

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on PATH: apt-get install chromium, or its like, runs these tests"
)

PLAIN = "It is a café.\n"
NASTY = (
    b"</script><script>document.title='run'</script><!-- <b>bold</b> & \"'\xe2\x80\xa8\x00\x1b[0m\t\r\x7f\xc2\xa0"
    b"\xff\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82 e\xcc\x81 \xe6\x97\xa5\xf0\x9f\x99\x82"
    b"\xe2\x80\xae\xef\xbb\xbf end\xe3\x81"
)
SIZE = len(PLAIN.encode())
SPANS = "[...document.querySelectorAll('#text span')]"
CLASSES = f"{SPANS}.map(s => s.className.trim().split(/ +/))"


def look(label: str, seed: int, size: int, *, everything: bool = True, rule: bool = False) -> Snapshot:
    """Metrics drawn at random; a boundary after every third byte, or fewer for other seeds."""
    random = np.random.default_rng(seed)
    forced = np.arange(size) == 0
    numbers = {} if rule else {"probability": np.where(forced, np.nan, random.random(size))}
    if everything:
        names = ("early_bits", "final_bits", "reward", "return", "advantage")
        numbers |= {name: random.normal(size=size) for name in names if name != "advantage" or not rule}
    metrics = {"bits_per_byte": 2.0 + seed, "early_bits_per_byte": 2.5 + seed, "rate": 0.3, "bytes_per_token": 3.3}
    boundaries = np.arange(size) % (3 + seed) == 0
    return Snapshot(label, boundaries, forced, size - 1 if everything else None, numbers, metrics)


PLAIN_LOOK = look("as saved", 0, SIZE)


def updates(name: str, *numbers: int) -> Segmented:
    return Segmented(name, [look(f"update {n}", n, SIZE, everything=False) for n in numbers])


def plain_view(name: str = "plain") -> TextView:
    rule = Segmented("rule", [look("as saved", 1, SIZE, rule=True)])
    segmenters = [Segmented("learned", [PLAIN_LOOK], "A policy."), rule, updates("training", 0, 1, 2)]
    return TextView(name, PLAIN.encode(), segmenters)


def one_view(text: bytes) -> TextView:
    return TextView("a text", text, [Segmented(str(n), [look("now", n, len(text))]) for n in range(3)])


class Page(Browser):
    """A browser with short names for parts of the page."""

    def text(self, name: str) -> str:
        return self.run(f"document.getElementById('{name}').textContent")

    def is_(self, name: str, state: str = "hidden") -> bool:
        return self.run(f"document.getElementById('{name}').{state}")

    def style(self, element: str) -> str:
        return self.run(f"getComputedStyle({element}).backgroundColor")

    def card(self) -> dict[str, list[str]]:
        """Rows of the card: their first cell, and the others."""
        cells = "[r.cells[0].textContent, [...r.cells].slice(1).map(c => c.textContent)]"
        return dict(self.run(f"[...document.querySelectorAll('#card tr')].map(r => {cells})"))

    def numbers(self, row: str) -> list[float]:
        return [float(cell.replace("−", "-")) for cell in self.card()[row]]

    def chosen(self, name: str) -> str:
        return self.run(f"document.querySelector('input[name={name}]:checked').parentElement.textContent.trim()")

    def box(self, element: str) -> dict[str, float]:
        return self.run(f"{element}.getBoundingClientRect().toJSON()")

    def place(self, number: int) -> tuple[float, float]:
        """The middle of a character."""
        box = self.box(f"document.querySelectorAll('#text span')[{number}]")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driven = Page(tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page of these texts, in a window of usual size."""

    def open_(*views: TextView, width: int = 1000, height: int = 800, mobile: bool = False) -> Page:
        path = tmp_path / "page.html"
        path.write_text(viewer_page(views, title="<b>Boundaries</b>"), encoding="utf-8")
        browser.size(width, height, mobile=mobile)
        browser.prefer("light")
        browser.open(path)
        return browser

    yield open_
    assert browser.complaints() == []
    assert [url.split("/")[0] for url in browser.requests()] == ["file:"]  # the page itself, and nothing else


def test_any_bytes_are_shown_as_text(opened):
    page = opened(TextView("<i>nasty</i>", NASTY, [Segmented("<u>who</u>", [look("<s>when</s>", 0, len(NASTY))])]))
    expected = [NASTY[s:e].decode() if NASTY[s:e] == b"\t" else shown for s, e, shown in characters(NASTY)]
    assert page.run(f"{SPANS}.map(s => s.textContent)") == expected
    assert page.run("document.title") == "<i>nasty</i> - <b>Boundaries</b>"
    markup = "#text :not(div, span), header i, #segmenters i, b, u, s"
    assert page.run(f"document.querySelectorAll('{markup}').length") == 0
    assert page.text("title") == "<b>Boundaries</b>"


def test_the_pointer_shows_a_character_with_each_of_its_bytes(opened):
    page = opened(plain_view())
    assert page.is_("card")
    at = PLAIN.index("é")
    page.point(*page.place(at))
    glyph = page.run("document.querySelector('#card .glyph').textContent")
    assert glyph == f"ébytes {at} to {at + 1}of {SIZE} · U+00E9"
    rows, numbers = page.card(), PLAIN_LOOK.numbers
    assert rows["This byte"] == ["0xc3", "0xa9"]
    assert rows["A boundary after it"] == ["yes" if PLAIN_LOOK.boundaries[n] else "no" for n in (at, at + 1)]
    for label, values in {
        "probability": numbers["probability"],
        "early exit, bits": numbers["early_bits"],
        "whole model, bits": numbers["final_bits"],
        "bits gained": numbers["early_bits"] - numbers["final_bits"],
        "reward, nats": numbers["reward"],
        "return, nats": numbers["return"],
        "advantage, nats": numbers["advantage"],
    }.items():
        assert page.numbers(label) == pytest.approx(list(values[at : at + 2]), abs=1.1e-3), label
    page.point(*page.place(0))
    assert page.card()["A boundary after it"] == ["forced"] and page.card()["probability"] == ["–"]
    page.point(2, 2)
    assert page.is_("card")


def test_colours_bars_and_tokens(opened):
    """A character has the colour of its last byte; the byte before a boundary is the last of its token."""
    page = opened(plain_view())
    boundaries, probabilities = PLAIN_LOOK.boundaries, PLAIN_LOOK.numbers["probability"]
    every = characters(PLAIN.encode())
    for (start, end, shown), classes in zip(every, page.run(CLASSES), strict=True):
        level = 0 if start == 0 else round(24 * probabilities[end - 1])
        assert (f"s{level}" in classes) == (level > 0), shown
        drawn = boundaries[start:end].any()
        assert ("bounded" in classes, "forced" in classes) == (bool(drawn and start), bool(drawn and not start)), shown
    assert page.style(f"{SPANS}[2]") != "rgba(0, 0, 0, 0)"
    page.press("t")
    for number, ((_, end, shown), classes) in enumerate(zip(every, page.run(CLASSES), strict=True)):
        token = int(boundaries[: end - 1].sum())
        assert ("odd" in classes, "even" in classes) == (token % 2 == 1, token % 2 == 0), shown
        page.point(*page.place(number))
        line = page.run("document.querySelector('#card .token').textContent")
        assert line.startswith(f"token {token}, "), shown
        if boundaries[end - 1]:
            assert line.endswith(PLAIN[number].replace(" ", "␣").replace("\n", "↵")), shown


CONTRAST = """(() => {
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (...layers) => {
    for (const colour of layers) { pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...pixel.getImageData(0, 0, 1, 1).data].map(x => x / 255)
      .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  return [...document.querySelectorAll("#text span")].map(span => {
    const behind = luminance(paper, getComputedStyle(span).backgroundColor);
    const sign = getComputedStyle(span, span.classList.contains("sign") ? "::before" : null);
    const ink = luminance(paper, sign.color);
    return sign.opacity * (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
  });
})()"""


def test_escapes_and_signs_can_be_read_on_every_colour(opened):
    """Pale letters on paper would be lost on a full colour: 4.5 to 1, as the browser mixes it, in both themes."""
    text = b"\xff\n\ta" * 60
    shares = np.linspace(0, 1, len(text))
    numbers = {"probability": shares, "reward": 2 * shares - 1, "final_bits": shares}
    snapshot = Snapshot("now", np.arange(len(text)) % 5 == 0, (), None, numbers)
    page = opened(TextView("colours", text, [Segmented("a", [snapshot])]))
    for theme in ("light", "dark"):
        page.prefer(theme)
        for key in "ptrb":
            page.press(key)
            ratios = page.run(CONTRAST)
            assert len(ratios) == len(text) and min(ratios) >= 4.5, (theme, key, min(ratios))


def test_keys_move_by_bytes_and_by_boundaries(opened):
    page = opened(plain_view())
    page.run("document.getElementById('text').focus()")
    for keys, at in (
        (["Home"], 0),
        (["ArrowRight"] * 2, 2),
        (["ArrowLeft"], 1),
        (["ArrowDown"], 3),
        (["ArrowDown"] * 2, 9),
        (["ArrowUp"], 6),
        (["End"], SIZE - 1),
        (["ArrowRight"], SIZE - 1),
        (["ArrowLeft"] * 3, SIZE - 4),
    ):
        page.press(*keys)
        assert page.text("said").startswith(f"byte {at}, "), keys
    now = "document.querySelector('#card td.now').textContent"
    assert page.card()["This byte"] == ["0xc3", "0xa9"] and page.run(now) == "0xc3"  # byte by byte in a character
    page.press("ArrowRight", shift=True)
    assert page.text("said").startswith(f"byte {SIZE - 3}, é, boundary yes") and page.run(now) == "0xa9"
    page.press("Escape")
    assert page.is_("card")


def test_keys_switch_colours_segmenters_times_and_texts(opened):
    page = opened(plain_view(), plain_view("another"))
    assert (page.chosen("mode"), page.chosen("segmenter")) == ("Probability", "learned 1")
    for key, mode in (("r", "Reward"), ("a", "Advantage"), ("g", "Bits gained"), ("b", "Bits"), ("t", "Tokens")):
        page.press(key)
        assert page.chosen("mode") == mode
    page.press("a", "2")  # a rule has no advantages: its tokens are shown, until advantages are there again
    assert (page.chosen("segmenter"), page.chosen("mode")) == ("rule 2", "Tokens")
    page.press("[")
    assert (page.chosen("segmenter"), page.chosen("mode")) == ("learned 1", "Advantage") and page.is_("steps")
    page.press("3")
    assert page.text("step") == "update 2"
    page.press(",")
    assert page.text("step") == "update 1"
    assert page.run("document.querySelector('tr.chosen td').textContent") == "3.000"
    assert page.is_("slider", "getAttribute('aria-valuetext')") == "update 1"
    page.run("document.getElementById('slider').focus()")
    page.press("ArrowLeft")  # of the slider itself
    assert page.text("step") == "update 0"
    page.press("n")
    assert page.text("subject") == f"another, {SIZE} bytes"
    page.press("?")
    assert page.is_("help", "open")
    page.press("2", "Escape")  # nothing moves beneath the help
    assert not page.is_("help", "open") and page.chosen("segmenter") == "learned 1"


def test_switching_stays_at_the_same_time_of_training(opened):
    """By its label if the other has it, else as far along; the table shows each one's metrics of that time."""
    named = [updates("a", *range(5)), updates("b", 1, 2, 4), updates("c", 0, 7, 9)]
    page = opened(TextView("plain", PLAIN.encode(), named))
    bits = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[1].textContent)"
    assert page.run(bits) == ["6.000", "6.000", "11.000"]  # each at its end
    page.press(",", ",")
    assert page.text("step") == "update 2" and page.run(bits) == ["4.000", "4.000", "9.000"]
    page.press("2")
    assert page.text("step") == "update 2"
    page.press("3")
    assert page.text("step") == "update 7"


def test_light_and_dark(opened):
    page = opened(plain_view())
    colours = [page.style("document.body")]
    for scheme, key in (("dark", ""), ("dark", "d"), ("light", "d")):
        page.prefer(scheme)
        page.press(*key)
        colours.append(page.style("document.body"))
    light, dark = colours[:2]
    assert light != dark and colours == [light, dark, light, dark]


def test_a_phone_shows_everything_and_touch_brings_the_card(opened):
    page = opened(one_view(PLAIN.encode() * 200), width=360, mobile=True)
    assert page.run("document.documentElement.scrollWidth") <= 360
    page.touch(*page.place(60))
    page.wait("!document.getElementById('card').hidden")
    sheet = page.box("document.getElementById('card')")
    assert sheet["left"] >= 0 and sheet["right"] <= 360
    assert page.place(60)[1] < sheet["top"]  # what was touched is still to be seen


@pytest.mark.parametrize("height", [800, 600])
def test_the_card_leaves_its_character_to_be_seen(opened, height):
    """Below it, above it or, where the window is too low for either, beside it; always inside the window."""
    page = opened(one_view(b"x" * 70), height=height)
    for number in (0, 35, 69):
        x, y = page.place(number)
        page.point(x, y)
        sheet = page.box("document.getElementById('card')")
        assert sheet["left"] >= 0 and sheet["right"] <= 1000 and sheet["top"] >= 0 and sheet["bottom"] <= height
        assert not (sheet["left"] < x < sheet["right"] and sheet["top"] < y < sheet["bottom"]), (number, sheet)


def test_a_long_text_has_few_elements_and_jumps_to_its_end(opened):
    size = 100_000
    text = (PLAIN.encode() * (size // SIZE + 1))[:size]
    page = opened(one_view(text))
    assert page.run("document.querySelectorAll('*').length") < 12_000
    assert page.run("document.getElementById('text').textContent.length") == len(text.decode())
    page.run("document.getElementById('text').focus()")
    page.press("End")
    assert page.text("said").startswith(f"byte {size - 1}, ")
    here = page.box("document.querySelector('#text .here')")
    assert here["top"] >= 0 and here["bottom"] <= 800
    page.wait("document.querySelectorAll('#text span').length < 12000")  # what is far away is plain again


def test_scripts_that_are_not_the_pages_own_do_not_run(browser, tmp_path):
    """The policy at work: a page that was tampered with."""
    page = viewer_page([plain_view()])
    planted = page.replace("<body>", "<body><script>document.title='run'</script><img src='http://127.0.0.1:9/x.png'>")
    path = tmp_path / "page.html"
    path.write_text(planted, encoding="utf-8")
    browser.open(path)
    assert browser.run("document.title") == "plain - Token boundaries"
    complaints = " ".join(browser.complaints())
    assert "script-src" in complaints and "img-src" in complaints
