"""One HTML file: a template, a style sheet and scripts of this folder, and what they show.

Nothing is fetched, now or later, and the file's own security policy says so to the browser: its script and its style
sheet are known by their checksums. Texts and names reach the page inside a JSON block and are written as text, never as
markup.
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
    """Make the page.

    Args:
        texts: at least one, the one to begin with first.
        title: of the page.

    Returns:
        HTML, to be written as UTF-8.

    Example:
        >>> from rltok_rl.viz.viewer import Look, Segmented
        >>> cut = Segmented("by hand", [Look("now", [True, False, True, False, False])])
        >>> page = viewer_page([TextView("a line", b"to be", [cut])])
        >>> page[:15], "https://" in page
        ('<!doctype html>', False)
    """
    if not texts:
        raise ValueError("texts must hold at least one text, got none")
    style = _part("style.css")
    script = "'use strict';\n(() => {\n" + "\n".join(map(_part, SCRIPTS)) + "\n})();\n"
    content = {"format": FORMAT, "title": title, "texts": [packed(view) for view in texts]}
    parts = {
        "policy": _POLICY.format(script=_checksum(script), style=_checksum(style)),
        "generator": GENERATOR,
        "title": html.escape(_one_line(f"{texts[0].name} - {title}")),
        "style": style,
        "content": script_json(content),
        "script": script,
    }
    # One pass over the template: what is put in is never looked at again.
    first, *rest = _part("page.html").split("{{")
    pieces = [first]
    for piece in rest:
        name, behind = piece.split("}}", 1)
        pieces += [parts[name], behind]
    return "".join(pieces)


def script_json(value: Any) -> str:
    r"""JSON that may stand in a script element: nothing in it ends the element, or begins a comment in it.

    Args:
        value: plain values; numbers are finite.

    Example:
        >>> script_json(["</script><!-- & \u2028"])
        '["\\u003c/script\\u003e\\u003c!-- \\u0026 \\u2028"]'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Where these stand in JSON they stand in strings, which may spell them otherwise.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def is_viewer_page(path: Path) -> bool:
    """Whether a file is such a page, and may be replaced by another.

    Args:
        path: of a file.
    """
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(4096)


def _one_line(name: str) -> str:
    """Without control characters, some of which HTML forbids."""
    return "".join(character if character.isprintable() else " " for character in name)


def _checksum(content: str) -> str:
    """As a security policy names an inline script or style sheet."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _part(name: str) -> str:
    return files("rltok_rl.viz.viewer").joinpath(name).read_text(encoding="utf-8")
