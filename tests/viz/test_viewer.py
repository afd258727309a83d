"""The page without a browser: what is in it, what cannot be, and numbers that come back as they were."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest

from rltok_rl.viz.viewer import Segmented, Snapshot, TextView, is_viewer_page, viewer_page
from rltok_rl.viz.viewer.content import MISSING, pack_bits, pack_numbers
from rltok_rl.viz.viewer.page import SCRIPTS, script_json

from ..layout import ROOT

NASTY = b"</script><script>alert(1)</script><!-- <![CDATA[ \" ' & \xe2\x80\xa8 \x00 \xff \xf0\x9f\x99\x82 {{title}}"
NAME = NASTY.decode("utf-8", "replace")


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of those that hold any."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.comments = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        self.found.append(("", {}, ""))

    def handle_data(self, data):
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def handle_comment(self, data):
        self.comments += 1

    def text(self, tag: str) -> list[str]:
        return [text for name, _, text in self.found if name == tag]


def view_of(text=b"ab", name="t", segmenters=None, **options) -> TextView:
    snapshot = {"boundaries": [n % 3 == 0 for n in range(len(text))], **options}
    return TextView(name, text, segmenters or [Segmented(name, [Snapshot(name, **snapshot)] * 2, name)], name)


@pytest.fixture(scope="module")
def page() -> str:
    return viewer_page([view_of(NASTY, NAME, numbers={"probability": np.linspace(0, 1, len(NASTY))})], title=NAME)


@pytest.fixture(scope="module")
def elements(page) -> Elements:
    return Elements(page)


def content_of(page: str) -> dict:
    (held,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)
    return json.loads(held)


def test_texts_and_names_are_no_markup_and_come_back_whole(page, elements):
    plain = Elements(viewer_page([view_of()]))
    assert [tag for tag, *_ in elements.found] == [tag for tag, *_ in plain.found]
    assert elements.comments == 0
    assert page.count("<script") == page.count("</script>") == 2
    assert "\0" not in page and "\u2028" not in page and "alert(1)</script>" not in page
    page.encode("utf-8")
    content = content_of(page)
    (view,) = content["texts"]
    (segmenter,) = view["segmenters"]
    assert base64.b64decode(view["data"]) == NASTY and view["size"] == len(NASTY)
    assert {content["title"], view["name"], view["about"], segmenter["name"], segmenter["about"]} == {NAME}
    assert [look["label"] for look in segmenter["looks"]] == [NAME, NAME]
    assert elements.text("title") == [f"{NAME} - {NAME}".replace("\0", " ").replace("\u2028", " ")]


def test_nothing_is_fetched(elements):
    """No element of the page names another file, and the page's own policy forbids all that it does not name."""
    for tag, attributes, _ in elements.found:
        for name in ("src", "href", "action", "data", "poster", "srcset", "formaction", "style", "onclick", "onload"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, name, value)
    shipped = "".join(files("rltok_rl.viz.viewer").joinpath(name).read_text() for name in (*SCRIPTS, "style.css"))
    for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttpRequest", "import(", "innerHTML", "eval("):
        assert word not in shipped, word
    (policy,) = [a["content"] for _, a, _ in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    expected = dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'") | {"img-src": "data:"}
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        text = next(text for text in reversed(elements.text(tag)) if text)
        expected[rule] = f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert rules == expected


def test_what_a_screen_reader_and_a_phone_need(elements):
    by_id = {a["id"]: a for _, a, _ in elements.found if "id" in a}
    assert ("html", {"lang": "en"}) in [element[:2] for element in elements.found]
    assert by_id["text"]["tabindex"] == "0" and by_id["text"]["aria-describedby"] in by_id
    assert by_id["said"]["aria-live"] == "polite" and by_id["slider"]["aria-label"]
    assert all(attributes.get("aria-label") for tag, attributes, _ in elements.found if tag == "button")
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [a for _, a, _ in elements.found]
    for word in ("prefers-color-scheme: dark", '[data-theme="dark"]', "max-width: 640px", ":focus-visible"):
        assert word in elements.text("style")[0]


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_is_readable_on_every_colour(elements):
    """Contrast of at least 4.5 to 1 (WCAG AA), at the full strength of every colour, in both themes."""
    themes = re.findall(r"--paper: [^}]*", elements.text("style")[0])
    assert len(themes) == 3 and themes[1].split() == themes[2].split()  # by the system, and by the button
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", theme))
        pairs = [("ink", name) for name in ("paper", "surface", "seq", "pos", "neg", "odd", "even")]
        for pair in [*pairs, ("pale", "paper"), ("pale", "surface"), ("accent", "paper")]:
            dark, light = sorted(luminance(colours[name]) for name in pair)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (pair, theme)


def unpack_numbers(numbers: dict) -> np.ndarray:
    """Decode :func:`pack_numbers`, as the page's script does."""
    codes = np.frombuffer(base64.b64decode(numbers["data"]), dtype="<u2")
    step = (numbers["high"] - numbers["low"]) / (MISSING - 1)
    return np.where(codes == MISSING, np.nan, numbers["low"] + step * codes)


def test_numbers_and_bits_come_back():
    for values in ([0.0], [1.5, -2.25, 1e-3], [7.0, 7.0], np.linspace(-30, 30, 1000) ** 3):
        held = pack_numbers(np.append(np.asarray(values), math.nan))
        json.dumps(held, allow_nan=False)
        unpacked = unpack_numbers(held)
        assert math.isnan(unpacked[-1])
        step = (max(values) - min(values)) / (MISSING - 1)
        assert np.abs(unpacked[:-1] - values).max() <= step / 2 * (1 + 1e-9)
        assert min(values) == unpacked[:-1].min() and max(values) == pytest.approx(unpacked[:-1].max())
    assert pack_numbers([math.nan, math.nan]) is None
    flags = np.random.default_rng(0).random(77) < 0.3
    bits = np.unpackbits(np.frombuffer(base64.b64decode(pack_bits(flags)), np.uint8), bitorder="little", count=77)
    assert bits.astype(bool).tolist() == flags.tolist()
    value = {"</script>": ["<!--", "a & b", "\u2028", "\x00", 'q"q', "\\", 1.5, None]}
    assert json.loads(script_json(value)) == value
    assert not set("<>&\u2028\0") & set(script_json(value))


def test_a_long_text_stays_small():
    size = 100_000
    numbers = {name: np.random.default_rng(n).random(size) for n, name in enumerate(("reward", "return", "advantage"))}
    numbers |= {name: numbers["reward"] for name in ("probability", "final_bits", "early_bits")}
    looks = [Snapshot("now", np.zeros(size, bool), np.zeros(size, bool), None, numbers)]
    page = viewer_page([view_of(b"x" * size, segmenters=[Segmented(f"{n}", looks) for n in range(3)])])
    assert len(page) < 5_200_000


def test_refusals():
    for views, words in [
        ([], "texts must hold at least one text, got none"),
        ([view_of(b"")], "text of 't' must have at least 1 byte"),
        ([TextView("t", b"a", [])], "segmenters of 't' must be at least one"),
        ([view_of(segmenters=[Segmented("s", [])])], "each with at least one snapshot"),
        ([view_of(boundaries=[1])], "boundaries must have one .* 2, got 1"),
        ([view_of(forced=[1, 0, 1])], "forced must have .* 2, got 3"),
        ([view_of(numbers={"joy": [1, 1]})], r"numbers .*got \['joy'\]"),
        ([view_of(metrics={"joy": 1})], r"metrics .*got \['joy'\]"),
        ([view_of(numbers={"reward": [1.0, -math.inf]})], "values must be finite numbers or NaN, got -inf"),
        ([view_of(metrics={"rate": math.nan})], "not JSON compliant"),
    ]:
        with pytest.raises(ValueError, match=words):
            viewer_page(views)


def test_a_page_knows_its_kind(page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    assert is_viewer_page(tmp_path / "page.html")
    (tmp_path / "other.html").write_text("<!doctype html><p>Dear diary")
    assert not is_viewer_page(tmp_path / "other.html")


def test_the_example_of_the_docs_runs():
    page = (ROOT / "docs" / "viewer.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(block, "viewer.md", "exec"), names)
    look = content_of(names["page"])["texts"][0]["segmenters"][0]["looks"][0]
    assert look["decided"] == len(names["text"]) - 1 and set(look["numbers"]) == {"probability", "reward"}
