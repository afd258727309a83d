"""Every tutorial runs from top to bottom, and so do the examples in the README and on other pages.

Of a page, in its order: ``python`` is executed, in one name space; where it begins with ``# name.py`` it is written to
that file, which later blocks import. Lines of ``sh`` are typed, in the folder of the page, trainings with a few updates
(:mod:`.brief`). ``output`` is what the block before it said, where ``...`` stands for anything; ``text`` is what a
training of the length on the page said, and not compared.
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

PAGES = [
    ROOT / "README.md",
    ROOT / "docs/features.md",
    ROOT / "docs" / "clients.md",
    ROOT / "docs" / "distributed.md",
    ROOT / "docs" / "evaluation-tasks.md",
    ROOT / "docs" / "model-options.md",
    ROOT / "docs" / "objectives.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "runs.md",
    ROOT / "docs" / "scaling.md",
    ROOT / "docs" / "segmenters.md",
    ROOT / "docs" / "systems" / "hnet.md",
    ROOT / "docs" / "two-levels.md",
    ROOT / "docs" / "viewer.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
KINDS = ("python", "sh", "output")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loggers, "_MAKERS", dict(loggers._MAKERS))  # what a page registers is the page's
    torch.manual_seed(0)
    before, space, said, spoken = set(sys.modules), {"__name__": page.stem}, "", 0
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    assert any(kind == "python" for kind, _ in blocks), f"{page.name} has no python block"
    try:
        for number, (kind, block) in enumerate(one for one in blocks if one[0] in KINDS):
            if kind == "output":
                assert same(block, said), f"block {number} of {page.name} says, where the page has it:\n{said}"
                continue
            said = python(block, space, f"{page.name}, block {number}") if kind == "python" else shell(block)
            spoken += len(said)
    finally:
        for name in set(sys.modules) - before:  # files of the page, which another page may call the same
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
                del sys.modules[name]
    assert spoken, f"nothing of {page.name} says anything"


def python(block: str, space: dict, name: str) -> str:
    """Execute a block, or write it to its file; what it printed."""
    file = re.match(r"# (\w+\.py)\n", block)
    if file:
        Path(file[1]).write_text(block)
        return ""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(block, name, "exec"), space)
    return said.getvalue()


def shell(block: str) -> str:
    """Type the lines of a block, each in a process of its own; what they printed."""
    said = ""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        words = [path for word in words for path in (sorted(glob.glob(word)) if "*" in word else [word])]
        command, *arguments = words
        if command == "pytest":
            done = run_forked("pytest", *arguments, "-p", "no:cacheprovider")
        else:
            assert command == "rltok", f"{line!r} is no command that this test can type"
            done = run_forked("tests.brief", *arguments)
        assert done.returncode == 0, f"{line}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        said += done.stdout
    return said


def same(shown: str, said: str) -> bool:
    """Whether a page shows what was said; ``...`` stands for anything."""
    pattern = translate("*".join(re.sub(r"([*?\[])", r"[\1]", part) for part in shown.strip().split("...")))
    return re.match(pattern, said.strip()) is not None


def test_what_a_page_shows_is_compared():
    assert same("[1, 2]\na* ... c?", "[1, 2]\na*  b c?\n")
    assert not same("[1, 2]", "1") and not same("a ... c", "a b d")


def test_trainings_are_shortened_and_checked_as_they_stand_there():
    config = TrainConfig()
    config.optim = OptimConfig(total_bytes=1_000_000, warm_up_bytes=100_000)
    shorten(config)
    assert (config.optim.total_bytes, config.optim.warm_up_bytes, config.data.num_rows) == (512, 0, 8)
    config.optim = OptimConfig(total_bytes=400_000, warm_up_bytes=400_000)
    with pytest.raises(ValueError, match="warm_up_bytes must lie in"):
        shorten(config)


def test_a_page_that_lies_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert python("# mine.py\nx = 1\n", {}, "page") == "" and Path("mine.py").is_file()
    assert python("print(1)\n", {}, "page") == "1\n"
    with pytest.raises(AssertionError, match="unexpected|there is no option"):
        shell("rltok train estimator.gama=0.5\n")


def test_no_page_with_code_is_left_out():
    """commands.md needs a run of one's own and a hub."""
    pages = {page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts and "api" not in page.parts}
    assert {page for page in pages if "```python" in page.read_text()} - {*PAGES} == {ROOT / "docs" / "commands.md"}


def test_results_in_the_readme_are_a_table_of_commands():
    results = (ROOT / "README.md").read_text().split("## Results")[1].split("##")[0]
    head, _, *rows = re.findall(r"^\|.*\|$", results, flags=re.M)
    assert (
        head == "| what | method, seeds | total FLOPs | result, and what its error is over | command |"
        and len(rows) >= 6
    )
    assert all(re.search(r"\| `[^|]*`[^|]*\|$", row) for row in rows)
