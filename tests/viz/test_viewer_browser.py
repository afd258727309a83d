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


def look(label: str, seed: int, size: int, *, everything: bool = True, rule: bool = False) -> Snapshot:
    """Figures drawn at random; a boundary after each space, or after every third byte of another seed."""
    random = np.random.default_rng(seed)
    boundaries = np.arange(size) % (3 + seed) == 0
    forced = np.arange(size) == 0
    numbers = {} if rule else {"probability": np.where(forced, np.nan, random.random(size))}
    if everything:
        names = ("early_bits", "final_bits", "reward", "return", "advantage")
        numbers |= {name: random.normal(size=size) for name in names if name != "advantage" or not rule}
    figures = {"bits_per_byte": 2.0 + seed, "early_bits_per_byte": 2.5 + seed, "rate": 0.3, "bytes_per_token": 3.3}
    return Snapshot(label, boundaries, forced, size - 1 if everything else None, numbers, figures)


PLAIN_LOOK = look("as saved", 0, SIZE)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driven = Browser(tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page of these texts, in a window of usual size."""

    def open_(*views: TextView, width: int = 1000, height: int = 800, mobile: bool = False) -> Browser:
        path = tmp_path / "page.html"
        path.write_text(viewer_page(views, title="<b>Boundaries</b>"), encoding="utf-8")
        browser.size(width, height, mobile=mobile)
        browser.prefer("light")
        browser.open(path)
        return browser

    yield open_
    assert browser.complaints() == []
    assert [url.split("/")[0] for url in browser.requests()] == ["file:"]  # the page itself, and nothing else


def plain_view(name: str = "plain") -> TextView:
    early = [look(f"update {n}", n, SIZE, everything=False) for n in range(3)]
    segmenters = [
        Segmented("learned", [PLAIN_LOOK], "A policy."),
        Segmented("rule", [look("as saved", 1, SIZE, rule=True)]),
        Segmented("training", early),
    ]
    return TextView(name, PLAIN.encode(), segmenters)


def card(browser: Browser) -> dict[str, list[str]]:
    """Rows of the card: their first cell, and the others."""
    return dict(
        browser.run(
            "[...document.querySelectorAll('#card tr')]"
            ".map(r => [r.cells[0].textContent, [...r.cells].slice(1).map(c => c.textContent)])"
        )
    )


def chosen(browser: Browser, name: str) -> str:
    return browser.run(f"document.querySelector('input[name={name}]:checked').parentElement.textContent.trim()")


def place(browser: Browser, number: int) -> tuple[float, float]:
    """Where a character is seen."""
    found = browser.run(
        f"(() => {{ const box = document.querySelectorAll('#text span')[{number}].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    return found[0], found[1]


def box(browser: Browser, selector: str) -> dict[str, float]:
    """Where an element is."""
    return browser.run(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")


def test_any_bytes_are_shown_as_text(opened):
    size = len(NASTY)
    browser = opened(TextView("<i>nasty</i>", NASTY, [Segmented("<u>who</u>", [look("<s>when</s>", 0, size)])]))
    shown = browser.run("[...document.querySelectorAll('#text span')].map(s => s.textContent)")
    expected = [NASTY[s:e].decode() if NASTY[s:e] == b"\t" else one for s, e, one in characters(NASTY)]
    assert shown == expected
    assert browser.run("document.title") == "<i>nasty</i> - <b>Boundaries</b>"
    assert (
        browser.run("document.querySelectorAll('#text :not(div, span), header i, #segmenters i, b, u, s').length") == 0
    )
    assert browser.run("document.getElementById('title').textContent") == "<b>Boundaries</b>"


def test_the_pointer_shows_a_character_with_each_of_its_bytes(opened):
    browser = opened(plain_view())
    assert browser.run("document.getElementById('card').hidden")
    at = PLAIN.index("é")
    browser.point(*place(browser, at))
    assert (
        browser.run("document.querySelector('#card .glyph').textContent")
        == f"ébytes {at} to {at + 1}of {SIZE} · U+00E9"
    )
    rows, numbers = card(browser), PLAIN_LOOK.numbers
    assert rows["This byte"] == ["0xc3", "0xa9"]
    assert rows["A boundary after it"] == ["yes" if PLAIN_LOOK.boundaries[n] else "no" for n in (at, at + 1)]
    for label, name in (
        ("probability", "probability"),
        ("early exit, bits", "early_bits"),
        ("whole model, bits", "final_bits"),
        ("reward, nats", "reward"),
        ("return, nats", "return"),
        ("advantage, nats", "advantage"),
    ):
        told = [float(cell.replace("−", "-")) for cell in rows[label]]
        assert told == pytest.approx([numbers[name][n] for n in (at, at + 1)], abs=1.1e-3), name
    gained = [numbers["early_bits"][n] - numbers["final_bits"][n] for n in (at, at + 1)]
    assert [float(c.replace("−", "-")) for c in rows["bits gained"]] == pytest.approx(gained, abs=1.1e-3)
    browser.point(*place(browser, 0))
    assert card(browser)["A boundary after it"] == ["forced"] and card(browser)["probability"] == ["–"]
    browser.point(2, 2)
    assert browser.run("document.getElementById('card').hidden")


def test_a_character_has_the_colour_of_its_last_byte_and_bars_where_boundaries_are(opened):
    browser = opened(plain_view())
    classes = browser.run("[...document.querySelectorAll('#text span')].map(s => s.className.trim().split(/ +/))")
    probabilities = PLAIN_LOOK.numbers["probability"]
    for (start, end, shown), found in zip(characters(PLAIN.encode()), classes, strict=True):
        level = 0 if start == 0 else round(24 * probabilities[end - 1])
        assert (f"s{level}" in found) == (level > 0), shown
        drawn = PLAIN_LOOK.boundaries[start:end].any()
        assert ("bounded" in found, "forced" in found) == (bool(drawn and start), bool(drawn and not start)), shown
    assert (
        browser.run("getComputedStyle(document.querySelectorAll('#text span')[2]).backgroundColor")
        != "rgba(0, 0, 0, 0)"
    )


def test_tokens_are_counted_and_coloured_in_turn(opened):
    """The byte that a boundary is drawn after is the last of its token."""
    browser = opened(plain_view())
    browser.press("t")
    classes = browser.run("[...document.querySelectorAll('#text span')].map(s => s.className.trim().split(/ +/))")
    boundaries = PLAIN_LOOK.boundaries
    for number, ((_, end, shown), found) in enumerate(zip(characters(PLAIN.encode()), classes, strict=True)):
        token = int(boundaries[: end - 1].sum())
        assert ("odd" in found, "even" in found) == (token % 2 == 1, token % 2 == 0), shown
        browser.point(*place(browser, number))
        told = browser.run("document.querySelector('#card .token').textContent")
        assert told.startswith(f"token {token}, "), shown
        if boundaries[end - 1]:
            assert told.endswith(PLAIN[number].replace(" ", "␣").replace("\n", "↵")), shown


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
    view = TextView(
        "colours", text, [Segmented("a", [Snapshot("now", np.arange(len(text)) % 5 == 0, (), None, numbers)])]
    )
    browser = opened(view)
    for theme in ("light", "dark"):
        browser.prefer(theme)
        for key in "ptrb":
            browser.press(key)
            found = browser.run(CONTRAST)
            assert len(found) == len(text) and min(found) >= 4.5, (theme, key, min(found))


def test_keys_move_by_bytes_and_by_boundaries(opened):
    browser = opened(plain_view())
    browser.run("document.getElementById('text').focus()")
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
        for key in keys:
            browser.press(key)
        assert browser.run("document.getElementById('said').textContent").startswith(f"byte {at}, "), keys
    assert card(browser)["This byte"] == ["0xc3", "0xa9"]  # byte by byte, also within a character
    assert browser.run("document.querySelector('#card td.now').textContent") == "0xc3"
    browser.press("ArrowRight", shift=True)
    assert browser.run("document.getElementById('said').textContent").startswith(f"byte {SIZE - 3}, é, boundary yes")
    assert browser.run("document.querySelector('#card td.now').textContent") == "0xa9"
    browser.press("Escape")
    assert browser.run("document.getElementById('card').hidden")


def test_keys_switch_colours_segmenters_times_and_texts(opened):
    browser = opened(plain_view(), plain_view("another"))
    assert (chosen(browser, "mode"), chosen(browser, "segmenter")) == ("Probability", "learned 1")
    for key, mode in (("r", "Reward"), ("a", "Advantage"), ("g", "Bits gained"), ("b", "Bits"), ("t", "Tokens")):
        browser.press(key)
        assert chosen(browser, "mode") == mode
    browser.press("a")
    browser.press("2")  # a rule has no advantages: its tokens are shown, until advantages are there again
    assert (chosen(browser, "segmenter"), chosen(browser, "mode")) == ("rule 2", "Tokens")
    browser.press("[")
    assert (chosen(browser, "segmenter"), chosen(browser, "mode")) == ("learned 1", "Advantage")
    assert browser.run("document.getElementById('steps').hidden")
    browser.press("3")
    assert browser.run("document.getElementById('step').textContent") == "update 2"
    browser.press(",")
    assert browser.run("document.getElementById('step').textContent") == "update 1"
    assert browser.run("document.querySelector('tr.chosen td').textContent") == "3.000"
    assert browser.run("document.getElementById('slider').getAttribute('aria-valuetext')") == "update 1"
    browser.run("document.getElementById('slider').focus()")
    browser.press("ArrowLeft")  # of the slider itself
    assert browser.run("document.getElementById('step').textContent") == "update 0"
    browser.press("n")
    assert browser.run("document.getElementById('subject').textContent") == f"another, {SIZE} bytes"
    browser.press("?")
    assert browser.run("document.getElementById('help').open")
    browser.press("2")  # nothing moves beneath the help
    browser.press("Escape")
    assert not browser.run("document.getElementById('help').open")
    assert chosen(browser, "segmenter") == "learned 1"


def test_switching_stays_at_the_same_time_of_training(opened):
    """By its name where another has it, else as far along; and the table tells each one's figures of that time."""
    named = [Segmented("a", [look(f"update {n}", n, SIZE, everything=False) for n in range(5)])]
    named.append(Segmented("b", [look(f"update {n}", n, SIZE, everything=False) for n in (1, 2, 4)]))
    named.append(Segmented("c", [look(f"update {n}", n, SIZE, everything=False) for n in (0, 7, 9)]))
    browser = opened(TextView("plain", PLAIN.encode(), named))
    step = "document.getElementById('step').textContent"
    told = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[1].textContent)"
    assert browser.run(told) == ["6.000", "6.000", "11.000"]  # each at its end
    for _ in range(2):
        browser.press(",")
    assert browser.run(step) == "update 2"
    assert browser.run(told) == ["4.000", "4.000", "9.000"]
    browser.press("2")
    assert browser.run(step) == "update 2"
    browser.press("3")
    assert browser.run(step) == "update 7"


def test_light_and_dark(opened):
    browser = opened(plain_view())
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(background)
    browser.prefer("dark")
    dark = browser.run(background)
    assert light != dark
    browser.press("d")
    assert browser.run(background) == light
    browser.prefer("light")
    browser.press("d")
    assert browser.run(background) == dark


def test_a_phone_shows_everything_and_touch_brings_the_card(opened):
    long = TextView("long", PLAIN.encode() * 200, [Segmented("a", [look("now", 0, SIZE * 200)])])
    browser = opened(long, width=360, mobile=True)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    browser.touch(*place(browser, 60))
    browser.wait("!document.getElementById('card').hidden")
    sheet = box(browser, "#card")
    assert sheet["left"] >= 0 and sheet["right"] <= 360
    assert place(browser, 60)[1] < sheet["top"]  # what was touched is still to be seen


@pytest.mark.parametrize("height", [800, 600])
def test_the_card_leaves_its_character_to_be_seen(opened, height):
    """Below it, above it or, where the window is too low for either, beside it; always inside the window."""
    view = TextView("a line", b"x" * 70, [Segmented("a", [look("now", 0, 70)])])
    browser = opened(view, height=height)
    for number in (0, 35, 69):
        at = place(browser, number)
        browser.point(*at)
        sheet = box(browser, "#card")
        assert sheet["left"] >= 0 and sheet["right"] <= 1000 and sheet["top"] >= 0 and sheet["bottom"] <= height
        inside = sheet["left"] < at[0] < sheet["right"] and sheet["top"] < at[1] < sheet["bottom"]
        assert not inside, (number, at, sheet)


def test_a_long_text_has_few_elements_and_jumps_to_its_end(opened):
    size = 100_000
    text = (PLAIN.encode() * (size // SIZE + 1))[:size]
    browser = opened(TextView("long", text, [Segmented(str(n), [look("now", n, size)]) for n in range(3)]))
    assert browser.run("document.querySelectorAll('*').length") < 12_000
    assert browser.run("document.getElementById('text').textContent.length") == len(text.decode())
    browser.run("document.getElementById('text').focus()")
    browser.press("End")
    assert browser.run("document.getElementById('said').textContent").startswith(f"byte {size - 1}, ")
    here = box(browser, "#text .here")
    assert here["top"] >= 0 and here["bottom"] <= 800
    browser.wait("document.querySelectorAll('#text span').length < 12000")  # what is far away is plain again


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
