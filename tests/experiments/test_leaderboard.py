"""The leaderboard is what the committed results give, and groups what can be compared."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from rltok_rl.experiments.commands import leaderboard as command
from rltok_rl.experiments.reports import leaderboard

from ..layout import ROOT

RESULTS = ROOT / "experiments" / "results"
KEPT = ("config.yaml", "summary.json", "evaluation.json", "model.json", "environment.json")


def copy_run(source: str, target: Path) -> Path:
    """A committed run without what the page does not read."""
    target.mkdir(parents=True)
    for name in KEPT:
        if (RESULTS / source / name).exists():
            shutil.copy(RESULTS / source / name, target / name)
    return target


def rewrite(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def sections(page: str) -> dict[str, list[list[str]]]:
    """Rows of the tables, by heading."""
    found = {}
    for part in page.split("\n## ")[1:]:
        rows = [row for row in part.splitlines() if row.startswith("| ")]
        found[part.partition("\n")[0]] = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[1:]]
    return found


def test_the_page_is_what_the_results_give():
    page = leaderboard.page(RESULTS, ROOT / "docs")
    assert page == (ROOT / "docs" / "leaderboard.md").read_text(), "run `rltok leaderboard`"
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target


def test_every_finished_run_is_listed_once():
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    folders = [path.parent for path in RESULTS.rglob("summary.json") if (path.parent / "config.yaml").exists()]
    assert folders
    for folder in folders:
        assert page.count(f"({Path('..') / folder.relative_to(ROOT) / 'report.md'})") == 1, folder


def test_rows_share_text_and_budget(tmp_path):
    results = tmp_path / "results"
    for name in ("learned", "uniform", "spacebyte"):
        copy_run(f"compare/{name}", results / "compare" / name)
    richer = copy_run("compare/learned", results / "richer" / "learned")
    config = (richer / "config.yaml").read_text()
    (richer / "config.yaml").write_text(re.sub("total_flops: .*", "total_flops: 2.0e13", config))
    other = copy_run("compare/learned", results / "other" / "learned")
    (other / "config.yaml").write_text(config.replace("source: books", "source: poems"))
    fewer = copy_run("compare/uniform", results / "fewer" / "uniform")
    evaluation = json.loads((fewer / "evaluation.json").read_text())
    rewrite(fewer / "evaluation.json", counts=evaluation["counts"][:-1], nats=evaluation["nats"][:-1])
    copy_run("books/learned", results / "books" / "learned")
    shutil.copytree(results / "compare" / "uniform", results / "begun")
    (results / "begun" / "summary.json").unlink()
    found = leaderboard.page(results, tmp_path)
    headings = [line.removeprefix("## ") for line in found.splitlines() if line.startswith("## ")]
    assert sorted(headings) == [
        "`books`, 10.5 TFLOPs",
        "`books`, 10.5 TFLOPs, learned with trials on top",
        "`books`, 12.0 MB of training text",
        "`books`, 20.0 TFLOPs",
        "`poems`, 10.5 TFLOPs",
    ]
    assert "begun" not in found and found.count("results/compare/") == 3


def test_the_best_is_bold_but_no_oracle(tmp_path):
    results = tmp_path / "results"
    for name, loss in (("near", 2.0001), ("best", 2.0), ("far", 2.03), ("oracle", 1.0)):
        folder = copy_run("compare/uniform", results / name)
        evaluation = json.loads((folder / "evaluation.json").read_text())
        nats = [n * loss / evaluation["corpus_bits_per_byte"] for n in evaluation["nats"]]
        if name == "near":  # documents differ in both directions from those of the best
            nats = [n * (1.02 if place % 2 else 0.98) for place, n in enumerate(nats)]
        moved = {"corpus_bits_per_byte": loss, "corpus_standard_error": 0.015, "nats": nats, "oracle": name == "oracle"}
        rewrite(folder / "evaluation.json", **moved)
    page = leaderboard.page(results, tmp_path)
    (rows,) = sections(page).values()
    assert [re.findall(r"\[(\w+)\]", row[0])[0] for row in rows] == ["oracle", "best", "near", "far"]
    assert [row[3].startswith("**") for row in rows] == [False, True, True, False]
    assert rows[0][0].endswith(" *") and "An asterisk marks an oracle" in page
    assert rows[1][4] == "-" and rows[3][4].startswith("0.030 ± ")  # paired with the best


def test_the_command_writes_the_same_bytes_again(tmp_path, capsys):
    copy_run("compare/learned", tmp_path / "results" / "learned")
    arguments = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs" / "page.md")]
    assert command.main(arguments) == 0
    first = (tmp_path / "docs" / "page.md").read_bytes()
    assert command.main(arguments) == 0 and (tmp_path / "docs" / "page.md").read_bytes() == first
    assert b"[learned](../results/learned/report.md)" in first
    assert command.main(["--results", str(tmp_path / "nothing")]) == 2
    assert "--results must be a folder of results, got " in capsys.readouterr().err
    (tmp_path / "file").touch()  # where a folder would have to be
    assert command.main([*arguments[:2], "--out", str(tmp_path / "file" / "page.md")]) == 2
    assert "rltok leaderboard: " in capsys.readouterr().err
    (tmp_path / "results" / "learned" / "summary.json").write_text("{")
    assert command.main(arguments) == 2
    assert "summary.json cannot be read" in capsys.readouterr().err


def test_studies_have_a_table(tmp_path):
    for name in ("learn", "estimators"):
        folder = tmp_path / name / name
        folder.mkdir(parents=True)
        shutil.copy(RESULTS / name / f"{name}.json", folder)
        (rows,) = sections(leaderboard.page(folder, tmp_path)).values()
        assert len(rows) >= 10 and not any("**" in cell for row in rows for cell in row)  # nothing there is paired
    signals = [row[2].strip("*").partition(" ")[0] for row in rows]  # of estimators
    known = [float(value) for value in signals if value != "lost"]
    assert known == sorted(known, reverse=True) and set(signals[len(known) :]) == {"lost"}
