"""The documentation is whole: names have entries, options and figures are told, links lead somewhere."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from .layout import ROOT, packages

sys.path.insert(0, str(ROOT / "docs"))

from rltok_docs import (  # noqa: E402 - needs the path
    api,
    compare_page,
    docstrings,
    estimator_page,
    recipe_page,
)
from rltok_docs import options as option_page  # noqa: E402
from rltok_rl.agents.segmenters import SEGMENTERS  # noqa: E402
from rltok_rl.experiments.runs import build  # noqa: E402
from rltok_rl.experiments.studies.estimator_table import MODELS, read_rows  # noqa: E402
from rltok_rl.experiments.studies.pages import is_clear  # noqa: E402

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
    exporting = {name for name in inner if hasattr(importlib.import_module(name), "__all__")}
    assert not exporting - set(api.PACKAGES), "add them to docs/rltok_docs/api.py, PACKAGES"


def test_every_public_name_says_something_and_has_one_entry():
    names = {f"{name.module}.{name.name}": name for name in api.public_names()}
    silent = [full for full, name in names.items() if not name.doc]
    assert not silent, f"public names without a docstring, or a string behind a constant: {silent}"
    written = "\n".join(text for _, text in api.pages())
    there = re.findall(r"^\.\. auto(?:function|class|exception):: (\S+)$", written, flags=re.M)
    data = re.findall(r"^\.\. py:data:: (\S+)\n   :module: (\S+)$", written, flags=re.M)
    there += [f"{module}.{name}" for name, module in data]
    assert {name.entry for name in names.values()} == set(there) and len(there) == len(set(there)) >= 250
    # A name is found where it is defined.
    assert "rltok_rl.functional.returns.discounted_return" in names
    assert names["rltok_rl.UNet"].entry == "rltok_rl.models.UNet"
    assert names["rltok_rl.PRESETS"].home == "rltok_rl.models.config" and "Sizes" in names["rltok_rl.PRESETS"].doc


def test_every_page_of_names_is_in_the_contents():
    listed = re.findall(r"^api/(\S+)$", (DOCS / "reference" / "index.md").read_text(), flags=re.M)
    below = {name for _, text in api.pages() for name in re.findall(r"<(rltok_rl\.\S+)>$", text, flags=re.M)}
    missing = {name for name, _ in api.pages()} - {*listed, *below}
    assert not missing, f"add to docs/reference/index.md: {sorted(missing)}"


WITHOUT_EXTRAS = """
import json, sys
from pathlib import Path
from tests import hiding
hiding.hide({"lm_eval", "numba", "stable_baselines3", "tensorboard", "tokenizers", "transformers", "wandb"})
sys.path.insert(0, "docs")
from rltok_docs import api
api.replace_optional()
Path(sys.argv[1]).write_text(json.dumps(dict(api.pages())))
"""


def test_the_reference_is_the_same_without_optional_packages(tmp_path):
    """`make docs` installs the extra `docs` only; what this process has imported would hide a missing package."""
    written = tmp_path / "pages.json"
    command = [sys.executable, "-c", WITHOUT_EXTRAS, str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = json.loads(written.read_text())
    assert ".. autoclass:: rltok_rl.evaluation.lm_eval.RltokLM" in pages["rltok_rl.evaluation.lm_eval"]
    assert ".. autoclass:: rltok_rl.envs.SB3VecEnv" in pages["rltok_rl.envs"] and pages == dict(api.pages())


def test_equations_shapes_and_tables_are_marked():
    lines = ["Sum |x| of ``[B]``.", "", "    y = sum_t x_t", "", "    z = y^2", "", "Args:", "    x: [*B, T].", ""]
    marked = docstrings.ready([*lines, "    more of x."])
    assert marked[0] == "Sum ``|x|`` of ``[B]``." and {"    x: ``[*B, T]``.", "    more of x."} < set(marked)
    assert marked.count(".. code-block:: text") == marked.count("   :class: equation") == 1
    assert docstrings.equations("\n".join(lines)) == ["y = sum_t x_t\n\nz = y^2"]
    assert docstrings.ready(["Do:", "", "- one", "", "    of two"])[4] == "    of two", "no part of a list"
    table = docstrings.ready(["### Keys", "| key | of |", "|---|---|", "| a | b |"])
    assert table[:6] == ["**Keys**", "", ".. list-table::", "   :header-rows: 1", "", "   * - key"]
    assert table[6:9] == ["     - of", "   * - a", "     - b"]
    assert "G_t = sum_{k >= 0} gamma^k R_{t+1+k}" in api.equation_page()


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


def broken_links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.S | re.M)
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:") or path.startswith("api/"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            yield f"{page.relative_to(ROOT)}: {link}"


def test_links_lead_somewhere():
    assert [line for page in PAGES for line in broken_links(page)] == []


def test_pages_of_results_have_their_figures():
    """Sphinx reads them, too, and stops at a missing one."""
    pages = sorted((ROOT / "experiments/results").glob("*/*.md"))
    figures = [(page, name) for page in pages for name in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page.read_text())]
    assert len(figures) > 20
    assert [(page, name) for page, name in figures if not (page.parent / name).is_file()] == []


def anchors(page: Path) -> set[str]:
    """Headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_table_of_recipes_is_fresh():
    assert recipe_page.PAGE.read_text() == recipe_page.page(), "run python docs/rltok_docs/recipe_page.py"


def test_the_tables_of_systems_are_fresh():
    for path, text in compare_page.pages().items():
        assert path.read_text() == text, "run python docs/rltok_docs/compare_page.py"


def test_the_tables_of_estimators_are_fresh():
    from scipy.stats import spearmanr

    rows = read_rows(estimator_page.RESULTS)
    page = estimator_page.PAGE.read_text()
    assert page == estimator_page.page(rows), "run python docs/rltok_docs/estimator_page.py"
    apart = [row for row in rows if row.estimator.system != "standard-init"]  # its signal is that of ours
    for some in (apart, [row for row in apart if row.estimator.gamma == 0.9]):
        ranks = []  # of clear early signals with learning: scores in the suite, bits per byte gained on books
        for model in MODELS:
            learned = [row.score if model == "recall" else row.loss and -row.loss.mean for row in some]
            moments = [row.moments[model][0] for row in some]
            pairs = [(m["per_cost"], y) for m, y in zip(moments, learned, strict=True) if y is not None and is_clear(m)]
            ranks.append((spearmanr(*zip(*pairs, strict=True)).statistic, len(pairs)))
        (suite, count), (books, size) = ranks
        numbers = [rf"is {suite:.2f} \({count}( estimators)?\)", rf"{books:.2f} \({size}\)"]
        assert re.search(",? and ".join(numbers), page), numbers


def test_the_page_of_options_is_fresh():
    assert option_page.PAGE.read_text() == option_page.page(), "run python docs/rltok_docs/options.py"


def test_every_option_says_something_and_every_word_is_told():
    page = option_page.PAGE.read_text()
    words = ("checkpoint_every", "experiment=recall", "model.preset", "ngram_sizes")
    for word in (*SEGMENTERS, *build.ESTIMATORS, *words):
        assert f"`{word}" in page or f"{word}`" in page, word
