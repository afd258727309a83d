"""How the documentation is built: `make docs`.

Sources are read from the repository root, so relative links work in the repository and on the site. Warnings are
errors.
"""

from __future__ import annotations

import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sphinx.util import logging

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # rltok_docs

from rltok_docs import api  # noqa: E402 - imports need the path
from rltok_docs.docstrings import ready  # noqa: E402

api.replace_optional()  # before anything imports the library

from rltok_rl import __version__  # noqa: E402

project = "rltok_rl"
author = "The rltok_rl authors"
project_copyright = author
version = release = __version__

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "experiments/results/**.md",
]
exclude_patterns = ["docs/_build", "docs/rltok_docs", ".*", "**/__pycache__"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]

# Markdown: headings are targets of links, as on the pages of a repository.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # README has no top-level title

# Python
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_admonition_for_examples = False

# Other documentations. Sphinx warns if it cannot reach them, which is no mistake: their names are then code, not links.
SITES = {
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "torchrl": "https://docs.pytorch.org/rl/stable/",
    "tensordict": "https://docs.pytorch.org/tensordict/stable/",
    "gymnasium": "https://gymnasium.farama.org/",
}


def _reachable(site: str) -> bool:
    sign = b"# Sphinx inventory version 2"  # a portal may answer with a page of its own
    try:
        with urllib.request.urlopen(f"{site}objects.inv", timeout=5.0) as answer:
            return answer.read(len(sign)) == sign
    except (OSError, ValueError):
        return False


with ThreadPoolExecutor(len(SITES)) as pool:
    intersphinx_mapping = {
        name: (site, None)
        for (name, site), reached in zip(SITES.items(), pool.map(_reachable, SITES.values()), strict=True)
        if reached
    }
intersphinx_disabled_reftypes = ["std:*"]

# Looks
html_theme = "furo"
html_title = f"rltok_rl {version}"
html_static_path = ["_static"]
html_css_files = ["rltok.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r"^(>>> |\.\.\. |\$ )"
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.equation) > div.highlight > pre"

_START = '<!doctype html><meta charset="utf-8"><title>rltok_rl</title><meta http-equiv="refresh" content="0; url={}">\n'


def _ready_docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = ready(lines)


def _give_title(app: Any, docname: str, source: list[str]) -> None:
    """Tables of commands begin with their command; here they are pages, and a page has a title."""
    if docname.startswith("experiments/results/") and not source[0].startswith("# "):
        source[0] = f"# {docname.rpartition('/')[2]}\n\n{source[0]}"


def _write_start(app: Any, error: Exception | None) -> None:
    """Write a start page that redirects to docs/index."""
    if error is None and app.builder.format == "html":
        start = app.builder.get_target_uri(root_doc)
        (Path(app.outdir) / "index.html").write_text(_START.format(start), encoding="utf-8")


def _check_entries(app: Any, env: Any) -> None:
    """Warn about public names without an entry; autodoc skips them silently."""
    there = {entry[0] for entry in env.get_domain("py").get_objects()}
    for missing in sorted({name.entry for name in api.public_names()} - there):
        logging.getLogger(__name__).warning("%s has no entry in the reference", missing)


def setup(app: Any) -> None:
    """Write the pages of the reference, and connect the steps above."""
    api.write_pages(HERE / "reference" / "api")
    app.connect("autodoc-process-docstring", _ready_docstring, priority=400)  # before napoleon, at 500
    app.connect("source-read", _give_title)
    app.connect("env-check-consistency", _check_entries)
    app.connect("build-finished", _write_start)
