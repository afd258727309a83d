"""The documentation is whole: names have entries, options and figures are told, links lead somewhere."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from .layout import ROOT, packages

sys.path.insert(0, str(ROOT / "docs"))

from rltok_docs import docstrings, entries, inventories, names  # noqa: E402 - needs the path
from rltok_docs import options as option_page  # noqa: E402
from rltok_rl.agents.segmenters import SEGMENTERS  # noqa: E402
from rltok_rl.experiments.runs import build  # noqa: E402

DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in (*DOCS.rglob("*.md"), *ROOT.glob("*.md"))
    if not {"_build", "api"} & {*path.relative_to(ROOT).parts}
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


# Names


def test_every_package_that_exports_names_has_a_page():
    inner = {name for name in packages() if not name.startswith("rltok_rl.experiments")}
    assert not names.missing_packages(inner), "add them to docs/rltok_docs/names.py, PACKAGES"


def test_every_public_name_says_something():
    silent = [one.full for one in names.public_names() if not one.doc]
    assert not silent, f"public names without a docstring, or a string behind a constant: {silent}"


def test_every_public_name_has_one_entry():
    """An entry is a directive of autodoc, or one of data; several packages that export a name share its entry."""
    written = "\n".join(text for _, text in entries.pages())
    there = re.findall(r"^\.\. auto(?:function|class|exception):: (\S+)$", written, flags=re.M)
    data = re.findall(r"^\.\. py:data:: (\S+)\n   :module: (\S+)$", written, flags=re.M)
    there += [f"{module}.{name}" for name, module in data]
    wanted = {one.entry for one in names.public_names()}
    assert not wanted - set(there), f"no entry in the reference: {sorted(wanted - set(there))}"
    assert len(there) == len(set(there)) >= 250


@pytest.mark.parametrize("name", ["rltok_rl.UNet", "rltok_rl.functional.returns.discounted_return", "rltok_rl.PRESETS"])
def test_names_that_are_known_are_found(name):
    """The walk finds what it should, or everything above would pass on nothing."""
    assert name in {one.full for one in names.public_names()}


def test_a_name_is_found_where_it_is_defined():
    by_name = {one.full: one for one in names.public_names()}
    assert by_name["rltok_rl.UNet"].entry == "rltok_rl.models.UNet"
    assert by_name["rltok_rl.PRESETS"].home == "rltok_rl.models.config"
    assert "Sizes by name" in by_name["rltok_rl.PRESETS"].doc


def test_every_page_of_names_is_in_the_contents():
    contents = (DOCS / "reference" / "index.md").read_text()
    listed = re.findall(r"^api/(\S+)$", contents, flags=re.M)
    below = {name for _, text in entries.pages() for name in re.findall(r"<(rltok_rl\.\S+)>$", text, flags=re.M)}
    missing = {name for name, _ in entries.pages()} - {*listed, *below}
    assert not missing, f"add to docs/reference/index.md: {sorted(missing)}"


WITHOUT_EXTRAS = """
import json, sys
from pathlib import Path
from tests import hiding
hiding.hide({"lm_eval", "numba", "stable_baselines3", "tensorboard", "tokenizers", "transformers", "wandb"})
sys.path.insert(0, "docs")
from rltok_docs import stand_ins
stand_ins.install()
from rltok_docs import entries
Path(sys.argv[1]).write_text(json.dumps(dict(entries.pages())))
"""


def test_the_reference_is_the_same_without_optional_packages(tmp_path):
    """`make docs` installs the extra `docs` only; what this process has imported would hide a missing package."""
    written = tmp_path / "pages.json"
    command = [sys.executable, "-c", WITHOUT_EXTRAS, str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = json.loads(written.read_text())
    assert ".. autoclass:: rltok_rl.evaluation.lm_eval.RltokLM" in pages["rltok_rl.evaluation.lm_eval"]
    assert ".. autoclass:: rltok_rl.envs.SB3VecEnv" in pages["rltok_rl.envs"]
    assert pages == dict(entries.pages())


def test_examples_of_the_marks():
    results = doctest.testmod(docstrings)
    assert results.attempted >= 4 and not results.failed


def test_equations_are_told_from_arguments():
    lines = ["Sum it.", "", "    y = sum_t x_t", "", "    z = y^2", "", "Args:", "    x: [T].", "", "    more of x."]
    marked = docstrings.mark_equations(lines)
    assert [line for line in marked if "code-block" in line] == [".. code-block:: text"]
    assert docstrings.equations("\n".join(lines)) == ["y = sum_t x_t\n\nz = y^2"]
    assert docstrings.mark_equations(["Do:", "", "- one", "", "    of two"])[-1] == "    of two", "no part of a list"


def test_equations_of_the_library_are_found():
    assert "G_t = sum_{k >= 0} gamma^k R_{t+1+k}" in entries.equation_page()


# Pages


def in_contents() -> set[Path]:
    """Pages that a table of contents leads to, Sphinx' way."""
    found = {DOCS / "index.md"}
    for page in PAGES:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.S | re.M):
            for line in filter(None, (line.strip() for line in block.splitlines())):
                if not line.startswith(":"):
                    line = re.sub(r"^.*<(.+)>$", r"\1", line)  # Title <page>
                    base = ROOT if line.startswith("/") else page.parent
                    wanted = (base / line.lstrip("/")).resolve()
                    found |= {other for other in PAGES if fnmatch(str(other.with_suffix("")), str(wanted))}
    return found


def test_every_page_is_in_the_contents():
    missing = sorted(str(page.relative_to(ROOT)) for page in set(PAGES) - in_contents() if page.name != "TODO.md")
    assert not missing, f"in no toctree: {missing}; docs/index.md has them"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.S | re.M)
    broken = []
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:") or path.startswith("api/"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def anchors(page: Path) -> set[str]:
    """Headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_page_of_options_is_fresh():
    assert option_page.PAGE.read_text() == option_page.page(), "run python docs/rltok_docs/options.py"


def test_every_option_says_something_and_every_word_is_told():
    page = option_page.PAGE.read_text()
    for word in (*SEGMENTERS, *build.ESTIMATORS, "checkpoint_every", "experiment=books", "model.preset", "ngram_sizes"):
        assert f"`{word}" in page or f"{word}`" in page, word


# Other sites


def test_inventories_are_fetched_kept_and_done_without(tmp_path):
    site, kept = tmp_path / "site", tmp_path / "kept"
    site.mkdir()
    (site / "objects.inv").write_bytes(b"# Sphinx inventory version 2\nrest")
    there = {"here": f"{site.as_uri()}/", "gone": f"{(tmp_path / 'gone').as_uri()}/"}
    found = inventories.reachable(there, kept)
    assert found == {"here": (there["here"], str(kept / "here.inv"))}
    (site / "objects.inv").unlink()
    assert inventories.reachable(there, kept) == found, "what was fetched once serves without a network"


def test_a_portal_that_answers_for_everything_is_no_inventory(tmp_path):
    (tmp_path / "objects.inv").write_text("<html>log in first</html>")
    assert inventories.reachable({"torch": f"{tmp_path.as_uri()}/"}, tmp_path / "kept") == {}
