"""Differences by size: from committed pages, what they change by, marks, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rltok_rl.experiments.studies import sizes

from .results import RESULTS

MAIN = RESULTS / "compare-main"
SHOWN = ("uniform", "unscaled", "spacebyte", "bpe")
Rows = dict[str, dict[str, dict[str, Any]]]


def page(folder: Path, change: Callable[[Rows], object]) -> str:
    """Write some systems of a committed page, with changed rows by system and seed."""
    content = json.loads((MAIN / "compare-seeds.json").read_text())
    content["systems"] = [system for system in content["systems"] if system["name"] in SHOWN]
    rows = {system["name"]: system["rows"] for system in content["systems"]}
    change(rows)
    content["systems"] = [system for system in content["systems"] if system["name"] in rows]
    folder.mkdir()
    (folder / "compare-seeds.json").write_text(json.dumps(content))
    return str(folder)


def scaled(rows: Rows, factor: float, **changes: Any) -> None:
    for of_system in rows.values():
        for row in of_system.values():
            row.update({"flops": factor * row["flops"]} | changes)


def middle(rows: Rows) -> None:
    scaled(rows, 10)
    for seed in "1234":
        del rows["unscaled"][seed]
    del rows["spacebyte"]


def large(rows: Rows) -> None:
    scaled(rows, 100)
    rows["uniform"]["2"]["rate"] = 0.21
    for seed, row in rows["unscaled"].items():
        row |= {"bits_per_byte": row["bits_per_byte"] - 0.06 - 0.01 * int(seed), "parameters": 900_000}


def test_differences_are_paired_by_seed_and_change_per_decade(tmp_path, capsys):
    pages = [page(tmp_path / "large", large), str(MAIN), page(tmp_path / "middle", middle)]
    out = tmp_path / "out"
    sizes.main([f"pages=[{','.join(pages)}]", "systems=[unscaled,spacebyte,bpe,hnet]", f"out={out}"])
    assert capsys.readouterr().out.strip() == str(out / "sizes.md")
    table = (out / "sizes.md").read_text()
    for row in (
        "| unscaled | 239,232 | 10.5 TFLOPs | -0.041 [-0.051, -0.030] | -0.055, -0.033, -0.037, -0.041, -0.038 |",
        "| unscaled | 239,232 | 105 TFLOPs | -0.055 | -0.055 |",
        "| unscaled | 900,000 | 1.05 PFLOPs | -0.121 [-0.138, -0.104] | -0.115, -0.103, -0.117 †, -0.131, -0.138 |",
        # Two decades: (0.06 + 0.01 seed) / 2 over seeds 0 to 4, whose standard deviation is 0.005 sqrt(2.5).
        "| unscaled | -0.040 [-0.050, -0.030] | 10.5 TFLOPs to 1.05 PFLOPs, 5 seeds |",
        "| bpe * | 239,232 | 10.5 TFLOPs |",
        "| hnet | - | - |",
    ):
        assert row in table, row
    assert "| spacebyte | 239,232 | 105 TFLOPs |" not in table and table.count("| spacebyte |") == 3
    written = json.loads((out / "sizes.json").read_text())["differences"]
    assert [(row["system"], len(row["by_seed"])) for row in written][:5] == [
        *(("unscaled", count) for count in (5, 1, 5)),
        *[("spacebyte", 5)] * 2,
    ]
    assert (out / "sizes.png").stat().st_size > 1000


def test_mistakes_are_named(tmp_path):
    other = page(tmp_path / "large", large)

    def refused(message: str, *pages: object, **options: Any) -> None:
        with pytest.raises(ValueError, match=message):
            sizes.read_sizes(sizes.Options(pages=[str(folder) for folder in pages], **options))

    refused("pages must be at least two different folders, got", MAIN, MAIN)
    refused("pages must have 'uniform'.*compare-fresh-scale has", MAIN, RESULTS / "compare-fresh-scale")
    changes: dict[str, tuple[Callable[[Rows], object], str]] = {
        "text": (lambda rows: scaled(rows, 10, counts=[1, 2]), "pages must have the same held-out text"),
        "rate": (lambda rows: scaled(rows, 10, target_rate=0.3), "pages must have the same target rate"),
        "close": (lambda rows: scaled(rows, 1.01), "pages must differ by over 2 % in total FLOPs"),
        "uneven": (lambda rows: rows["unscaled"]["1"].update(flops=1e13), "equal total FLOPs in all systems; those of"),
    }
    for name, (change, message) in changes.items():
        refused(message, MAIN, page(tmp_path / name, change))
    for systems in ([], ["unscaled", "horus"], ["unscaled", "unscaled"], ["uniform"]):
        refused("systems must be some of .*'spacebyte'.*, each once, got", MAIN, other, systems=systems)
