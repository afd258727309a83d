"""Every tutorial runs from top to bottom, and so do the examples in the README and on other pages."""

from __future__ import annotations

import re

import pytest
import torch

from .layout import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "clients.md",
    ROOT / "docs" / "evaluation-tasks.md",
    ROOT / "docs" / "objectives.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    assert blocks, f"{page.name} has no python block"
    torch.manual_seed(0)
    # One name space for the page: later blocks use what earlier ones made.
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": page.stem})
    assert capsys.readouterr().out.strip()
