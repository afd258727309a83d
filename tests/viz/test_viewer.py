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
from rltok_rl.viz.viewer.content import MISSING, pack_bits, pack_numbers, unpack_numbers
from rltok_rl.viz.viewer.page import SCRIPTS, script_json

from ..layout import ROOT

NASTY = b"</script><script>alert(1)</script><!-- <![CDATA[ \" ' & \xe2\x80\xa8 \x00 \xff \xf0\x9f\x99\x82 {{title}}"
NAME = NASTY.decode("utf-8", "replace")


def nasty_view() -> TextView:
    size = len(NASTY)
    looks = [
        Snapshot(NAME, [n % 3 == 0 for n in range(size)], numbers={"probability": np.linspace(0, 1, size)})
        for _ in "ab"
    ]
    return TextView(NAME, NASTY, [Segmented(NAME, looks, NAME)], NAME)


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of those that hold any."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.held: dict[int, str] = {}
        self.comments = 0
        self.inside: int | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.inside = len(self.found)
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside is not None:
            self.held[self.inside] = self.held.get(self.inside, "") + data

    def handle_comment(self, data):
        self.comments += 1

    def text(self, tag: str) -> list[str]:
        return [self.held.get(n, "") for n, (name, _) in enumerate(self.found) if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return viewer_page([nasty_view()], title=NAME)


@pytest.fixture(scope="module")
def elements(page) -> Elements:
    return Elements(page)


def content_of(page: str) -> dict:
    (held,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)
    return json.loads(held)


def test_texts_and_names_are_no_markup(page, elements):
    plain = Elements(viewer_page([TextView("a", b"ab", [Segmented("b", [Snapshot("c", [1, 0])])])]))
    assert [tag for tag, _ in elements.found] == [tag for tag, _ in plain.found]
    assert elements.comments == 0
    assert page.count("<script") == page.count("</script>") == 2
    assert "\0" not in page and "\u2028" not in page and "alert(1)</script>" not in page
    page.encode("utf-8")


def test_texts_and_names_come_back_whole(page, elements):
    content = content_of(page)
    (view,) = content["texts"]
    assert base64.b64decode(view["data"]) == NASTY
    assert view["size"] == len(NASTY)
    segmenter = view["segmenters"][0]
    assert {content["title"], view["name"], view["about"], segmenter["name"], segmenter["about"]} == {NAME}
    assert [look["label"] for look in segmenter["looks"]] == [NAME, NAME]
    (title,) = elements.text("title")
    assert title == f"{NAME} - {NAME}".replace("\0", " ").replace("\u2028", " ")


def test_nothing_is_fetched(page, elements):
    """No element of the page names another file, and the page's own policy forbids all that it does not name."""
    for tag, attributes in elements.found:
        for name in ("src", "href", "action", "data", "poster", "srcset", "formaction", "style", "onclick", "onload"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, name, value)
    shipped = "".join(files("rltok_rl.viz.viewer").joinpath(name).read_text() for name in (*SCRIPTS, "style.css"))
    for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttpRequest", "import(", "innerHTML", "eval("):
        assert word not in shipped, word


def test_the_policy_names_this_script_and_this_style_sheet(elements):
    (policy,) = [a["content"] for t, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert set(rules) == {"default-src", "base-uri", "form-action", "img-src", "script-src", "style-src"}
    assert rules["img-src"] == "data:"
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        checksum = base64.b64encode(hashlib.sha256(elements.text(tag)[-1].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{checksum}'"


def test_what_a_screen_reader_and_a_phone_need(elements):
    by_id = {a["id"]: a for _, a in elements.found if "id" in a}
    assert ("html", {"lang": "en"}) in elements.found
    assert by_id["text"]["tabindex"] == "0" and by_id["text"]["aria-describedby"] in by_id
    assert by_id["said"]["aria-live"] == "polite"
    for tag, attributes in elements.found:
        if tag == "button":
            assert attributes.get("aria-label"), attributes
    assert by_id["slider"]["aria-label"]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [a for _, a in elements.found]
    style = elements.text("style")[0]
    for word in ("prefers-color-scheme: dark", '[data-theme="dark"]', "max-width: 640px", ":focus-visible"):
        assert word in style


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
        for above, below in [*pairs, ("pale", "paper"), ("pale", "surface"), ("accent", "paper")]:
            light, dark = sorted((luminance(colours[above]), luminance(colours[below])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (above, below, theme)


@pytest.mark.parametrize("values", [[0.0], [1.5, -2.25, 1e-3], [7.0, 7.0], np.linspace(-30, 30, 1000) ** 3])
def test_numbers_come_back_to_half_a_step(values):
    given = np.append(np.asarray(values), math.nan)
    held = pack_numbers(given)
    assert held is not None
    json.dumps(held, allow_nan=False)
    found = unpack_numbers(held)
    assert math.isnan(found[-1])
    step = (max(values) - min(values)) / (MISSING - 1)
    assert np.abs(found[:-1] - values).max() <= step / 2 * (1 + 1e-9)
    assert min(values) == found[:-1].min() and max(values) == pytest.approx(found[:-1].max())


def test_numbers_that_are_all_missing_are_left_out_and_infinite_ones_refused():
    assert pack_numbers([math.nan, math.nan]) is None
    with pytest.raises(ValueError, match="values must be finite numbers or NaN, got -inf"):
        pack_numbers([1.0, -math.inf])


def test_bits_come_back():
    flags = np.random.default_rng(0).random(77) < 0.3
    found = np.unpackbits(np.frombuffer(base64.b64decode(pack_bits(flags)), np.uint8), bitorder="little", count=77)
    assert found.astype(bool).tolist() == flags.tolist()


def test_a_long_text_stays_small():
    size = 100_000
    numbers = {name: np.random.default_rng(n).random(size) for n, name in enumerate(("reward", "return", "advantage"))}
    numbers |= {name: numbers["reward"] for name in ("probability", "final_bits", "early_bits")}
    looks = [Snapshot("now", np.zeros(size, bool), np.zeros(size, bool), None, numbers)]
    page = viewer_page([TextView("long", b"x" * size, [Segmented(f"{n}", looks) for n in range(3)])])
    assert len(page) < 5_200_000


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (TextView("t", b"", [Segmented("s", [Snapshot("l", [])])]), "text of 't' must have at least 1 byte"),
        (TextView("t", b"a", []), "segmenters of 't' must be at least one"),
        (TextView("t", b"a", [Segmented("s", [])]), "each with at least one snapshot"),
        (TextView("t", b"ab", [Segmented("s", [Snapshot("l", [1])])]), "boundaries must have one .* 2, got 1"),
        (TextView("t", b"a", [Segmented("s", [Snapshot("l", [1], [1, 0])])]), "forced must have .* 1, got 2"),
        (TextView("t", b"a", [Segmented("s", [Snapshot("l", [1], numbers={"joy": [1]})])]), r"numbers .*got \['joy'\]"),
        (TextView("t", b"a", [Segmented("s", [Snapshot("l", [1], metrics={"joy": 1})])]), r"metrics .*got \['joy'\]"),
    ],
)
def test_what_does_not_fit_is_refused(view, message):
    with pytest.raises(ValueError, match=message):
        viewer_page([view])


def test_no_texts_are_refused():
    with pytest.raises(ValueError, match="texts must hold at least one text, got none"):
        viewer_page([])


def test_json_for_scripts_is_json():
    value = {"</script>": ["<!--", "a & b", "\u2028", "\x00", 'q"q', "\\", 1.5, None]}
    assert json.loads(script_json(value)) == value
    assert not set("<>&\u2028\0") & set(script_json(value))
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([math.nan])


def test_a_page_knows_its_kind(page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    assert is_viewer_page(tmp_path / "page.html")
    (tmp_path / "other.html").write_text("<!doctype html><p>Dear diary")
    assert not is_viewer_page(tmp_path / "other.html")


def test_the_example_of_the_docs_runs():
    page = (ROOT / "docs" / "viewer.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    made: dict = {}
    exec(compile(block, "viewer.md", "exec"), made)
    (text,) = content_of(made["page"])["texts"]
    assert text["segmenters"][0]["looks"][0]["decided"] == len(made["text"]) - 1
    assert set(text["segmenters"][0]["looks"][0]["numbers"]) == {"probability", "reward"}
