"""A viewer page: one HTML file of a template, a style sheet, scripts, and the texts.

The page fetches nothing, and its security policy forbids the browser to: its script and style sheet are allowed by
their checksums. Texts and names are in a JSON block and are inserted as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rltok_rl.viz.viewer.content import TextView, packed

FORMAT = 1
SCRIPTS = ("bytes.js", "text.js", "card.js", "controls.js", "keys.js")
"""Files of the script, in the order in which they need each other."""
GENERATOR = '<meta name="generator" content="rltok_rl boundary viewer">'
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)


def viewer_page(texts: Sequence[TextView], *, title: str = "Token boundaries") -> str:
    """Make an HTML page, to be written as UTF-8; the first text is shown first.

    Example:
        >>> from rltok_rl.viz.viewer import Segmented, Snapshot
        >>> segmented = Segmented("by hand", [Snapshot("now", [True, False, True, False, False])])
        >>> page = viewer_page([TextView("a line", b"to be", [segmented])])
        >>> page[:15], "https://" in page
        ('<!doctype html>', False)
    """
    if not texts:
        raise ValueError("texts must hold at least one text, got none")
    style = _part("style.css")
    script = "'use strict';\n(() => {\n" + "\n".join(map(_part, SCRIPTS)) + "\n})();\n"
    content = {"format": FORMAT, "title": title, "texts": [packed(view) for view in texts]}
    # Control characters, some of which HTML forbids, become spaces.
    name = "".join(character if character.isprintable() else " " for character in f"{texts[0].name} - {title}")
    parts = {
        "policy": _POLICY.format(script=_checksum(script), style=_checksum(style)),
        "generator": GENERATOR,
        "title": html.escape(name),
        "style": style,
        "content": script_json(content),
        "script": script,
    }
    # One pass over the template: inserted parts are not searched for placeholders.
    first, *rest = _part("page.html").split("{{")
    pieces = [first]
    for piece in rest:
        name, after = piece.split("}}", 1)
        pieces += [parts[name], after]
    return "".join(pieces)


def script_json(value: Any) -> str:
    """Encode JSON for a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # In JSON these characters occur in strings only, where they may be escaped.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def is_viewer_page(path: Path) -> bool:
    """Whether a file is a viewer page, and so may be overwritten by another."""
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(4096)


def _checksum(content: str) -> str:
    """The checksum of an inline script or style sheet, as a security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _part(name: str) -> str:
    return files("rltok_rl.viz.viewer").joinpath(name).read_text(encoding="utf-8")
