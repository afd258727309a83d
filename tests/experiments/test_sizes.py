"""Leads by size: differences from committed pages, what they grow by, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt
from rltok_rl.experiments.studies import sizes

from rltok_rl.viz import size_figure
from rltok_rl.viz.size_figure import draw_leads
from rltok_rl.viz.style import save_figure

from .results import RESULTS

MAIN = RESULTS / "compare-main"


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write a copy of a committed page whose rows are changed."""
    content = json.loads((MAIN / "compare-seeds.json").read_text())
    for system in content["systems"]:
        for row in system["rows"].values():
            change(row)
    folder.mkdir()
    (folder / "compare-seeds.json").write_text(json.dumps(content))
    return folder


def larger(row: dict[str, Any]) -> None:
    row["flops"] *= 100
    if row["system"] == "ours":
        row["bits_per_byte"] -= 0.06 + 0.01 * row["seed"]


@pytest.fixture
def pages(tmp_path) -> list[str]:
    return [str(changed(tmp_path / "large", larger)), str(MAIN)]


def test_a_lead_is_paired_by_seed_and_grows_per_decade(pages, tmp_path, monkeypatch, capsys):
    figures = []
    monkeypatch.setattr(size_figure, "save_figure", lambda *args: figures.append(args[0]) or save_figure(*args))
    out = tmp_path / "out"
    sizes.main([f"pages=[{','.join(pages)}]", "systems=[ours,spacebyte]", f"out={out}"])
    assert capsys.readouterr().out.strip() == str(out / "sizes.md")
    table = (out / "sizes.md").read_text()
    assert (
        "| ours | 239,232 | 10.5 TFLOPs | -0.041 [-0.051, -0.030] | -0.055, -0.033, -0.037, -0.041, -0.038 |" in table
    )
    # Two decades: (0.06 + 0.01 seed) / 2 over seeds 0 to 4, with a standard deviation of 0.005 sqrt(2.5).
    assert "| ours | -0.040 [-0.050, -0.030] | 10.5 TFLOPs to 1.05 PFLOPs |" in table
    assert "| spacebyte | +0.000 [+0.000, +0.000] |" in table.replace("-0.000", "+0.000")
    leads = json.loads((out / "sizes.json").read_text())["leads"]
    assert [(lead["system"], len(lead["by_seed"])) for lead in leads] == [("ours", 5)] * 2 + [("spacebyte", 5)] * 2
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10.5", "1.05e+03"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ours", "spacebyte"]
    assert not plt.get_fignums()


def test_mistakes_are_named(pages, tmp_path):
    def of_pages(*folders: object, **options: Any) -> None:
        sizes.read_sizes(sizes.Options(pages=[str(folder) for folder in folders], **options))

    def longer(row: dict[str, Any]) -> None:
        larger(row)
        row["counts"] = [1, *row["counts"]]

    with pytest.raises(ValueError, match="pages must be at least two different folders, got"):
        of_pages(MAIN, MAIN)
    with pytest.raises(ValueError, match="pages must have the same held-out text"):
        of_pages(MAIN, changed(tmp_path / "longer", longer))
    with pytest.raises(ValueError, match="pages must differ in total FLOPs"):
        of_pages(MAIN, changed(tmp_path / "equal", lambda row: None))
    with pytest.raises(ValueError, match="systems must be among .*'hnet'.*, got 'horus'"):
        of_pages(*pages, systems=["ours", "horus"])
    with pytest.raises(ValueError, match="pages must have 'uniform'.*compare-fresh-scale has"):
        of_pages(MAIN, RESULTS / "compare-fresh-scale")
    with pytest.raises(ValueError, match="leads must be at least one, got none"):
        draw_leads([], tmp_path / "sizes.png", reference="uniform")
