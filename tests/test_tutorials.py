"""Every tutorial runs from top to bottom, and so do the examples in the README and on other pages.

Blocks of a page are run in its order: ``python`` is executed in one name space (or written to a file if it begins with
``# name.py``), lines of ``sh`` are typed, with runs of a few updates (:mod:`.brief`), and ``output`` must be what
the block before it printed, where ``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import glob
import io
import re
import shlex
import sys
from fnmatch import translate
from pathlib import Path

import pytest
import torch
from rltok_rl.experiments.run_config import OptimConfig, TrainConfig

from rltok_rl.training import loggers

from .brief import shorten
from .forked import run_forked
from .layout import ROOT

NAMES = "features clients distributed evaluation-tasks model-options objectives performance runs scaling segmenters"
NAMES += " recipes systems/hnet two-levels viewer"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES.split()), *TUTORIALS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loggers, "_MAKERS", dict(loggers._MAKERS))  # a page may register loggers
    torch.manual_seed(0)
    before, space, printed, total = set(sys.modules), {"__name__": page.stem}, "", 0
    blocks = re.findall(r"^```(python|sh|output)\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    assert any(kind == "python" for kind, _ in blocks), f"{page.name} has no python block"
    try:
        for number, (kind, block) in enumerate(blocks):
            if kind == "output":
                assert same(block, printed), f"block {number} of {page.name} printed:\n{printed}"
                continue
            printed = python(block, space, f"{page.name}, block {number}") if kind == "python" else shell(block)
            total += len(printed)
    finally:
        for name in set(sys.modules) - before:  # files of the page, whose names another page may use
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
                del sys.modules[name]
    assert total, f"nothing of {page.name} prints anything"


def python(block: str, space: dict, name: str) -> str:
    """Execute a block, or write it to its file; return its output."""
    file = re.match(r"# (\w+\.py)\n", block)
    if file:
        Path(file[1]).write_text(block)
        return ""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(block, name, "exec"), space)
    return output.getvalue()


def shell(block: str) -> str:
    """Type the lines of a block, each in a separate process; return their output."""
    output = ""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        command, *arguments = [path for word in words for path in (sorted(glob.glob(word)) if "*" in word else [word])]
        assert command in ("pytest", "rltok"), f"{line!r} is no command that this test can type"
        module = ("pytest", "-p", "no:cacheprovider") if command == "pytest" else ("tests.brief",)
        done = run_forked(module[0], *arguments, *module[1:])
        assert done.returncode == 0, f"{line}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        output += done.stdout
    return output


def same(shown: str, printed: str) -> bool:
    """Whether a page shows an output; ``...`` stands for anything."""
    pattern = translate("*".join(re.sub(r"([*?\[])", r"[\1]", part) for part in shown.strip().split("...")))
    return re.match(pattern, printed.strip()) is not None


def test_wrong_pages_are_found(tmp_path, monkeypatch):
    assert same("[1, 2]\na* ... c?", "[1, 2]\na*  b c?\n")
    assert not same("[1, 2]", "1") and not same("a ... c", "a b d")
    monkeypatch.chdir(tmp_path)
    assert python("# mine.py\nx = 1\n", {}, "page") == "" and Path("mine.py").is_file()
    assert python("print(1)\n", {}, "page") == "1\n"
    with pytest.raises(AssertionError, match="unexpected|there is no option"):
        shell("rltok train estimator.gama=0.5\n")
    config = TrainConfig()
    config.optim = OptimConfig(total_bytes=1_000_000, warm_up_bytes=100_000)
    shorten(config)
    assert (config.optim.total_bytes, config.optim.warm_up_bytes, config.data.num_rows) == (512, 0, 8)
    config.optim = OptimConfig(total_bytes=400_000, warm_up_bytes=400_000)
    with pytest.raises(ValueError, match="warm_up_bytes must lie in"):
        shorten(config)


def test_no_page_with_code_is_left_out():
    """commands.md needs a finished run and a hub."""
    pages = {page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts and "api" not in page.parts}
    assert {page for page in pages if "```python" in page.read_text()} - {*PAGES} == {ROOT / "docs" / "commands.md"}


def test_results_in_the_readme_have_commands():
    """The first table has one below it, the second one in each row."""
    results = (ROOT / "README.md").read_text().split("## Results")[1].split("##")[0]
    systems, rows = results.split("| what | seeds | total FLOPs | result | command |")
    assert re.search(r"^    rltok train --multirun experiment=compare-main ", systems, flags=re.M)
    rows = re.findall(r"^\| \[.*\|$", rows, flags=re.M)
    assert len(rows) == 4 and all(re.search(r"\| `[^|]*`[^|]*\|$", row) for row in rows)
