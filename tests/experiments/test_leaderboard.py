"""The leaderboard is what the committed results give, and groups what can be compared."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from rltok_rl.experiments.commands import leaderboard as command
from rltok_rl.experiments.reports import leaderboard

from ..layout import ROOT
from .results import RESULTS, copy_run, rewrite


def sections(page: str) -> dict[str, list[list[str]]]:
    """Rows of the tables, by heading."""
    found = {}
    for part in page.split("\n## ")[1:]:
        rows = [row for row in part.splitlines() if row.startswith("| ")]
        found[part.partition("\n")[0]] = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[1:]]
    return found


def test_the_page_is_what_the_results_give_and_lists_each_run_once():
    page = leaderboard.page(RESULTS, ROOT / "docs")
    assert page == (ROOT / "docs" / "leaderboard.md").read_text(), "run `rltok leaderboard`"
    assert [target for target in re.findall(r"\]\(([^)]+)\)", page) if not (ROOT / "docs" / target).exists()] == []
    folders = [path.parent for path in RESULTS.rglob("summary.json") if (path.parent / "config.yaml").exists()]
    counts = {page.count(f"({Path('..') / folder.relative_to(ROOT) / 'report.md'})") for folder in folders}
    assert folders and counts == {1}


def test_rows_share_text_and_budget(tmp_path):
    results = tmp_path / "results"
    for name in ("learned", "uniform", "spacebyte"):
        copy_run(name, results / "compare" / name)
    for name, pattern, value in (
        ("richer", "total_flops: .*", "total_flops: 2.0e13"),
        ("bytes", "total_flops: .*", "total_flops: null"),
        ("other", ": books", ": poems"),
    ):
        config = copy_run("learned", results / name / "learned") / "config.yaml"
        config.write_text(re.sub(pattern, value, config.read_text()))
    evaluation = copy_run("uniform", results / "fewer" / "uniform") / "evaluation.json"
    documents = json.loads(evaluation.read_text())
    rewrite(evaluation, counts=documents["counts"][:-1], nats=documents["nats"][:-1])
    (copy_run("uniform", results / "begun") / "summary.json").unlink()
    page = leaderboard.page(results, tmp_path)
    assert sorted(sections(page)) == [
        "`books`, 10.5 TFLOPs",
        "`books`, 10.5 TFLOPs, learned with trials on top",
        "`books`, 15.0 MB of training text",
        "`books`, 20.0 TFLOPs",
        "`poems`, 10.5 TFLOPs",
    ]
    assert "begun" not in page and page.count("results/compare/") == 3


def test_the_best_is_bold_but_no_oracle(tmp_path):
    results = tmp_path / "results"
    for name, loss in (("near", 2.0001), ("best", 2.0), ("far", 2.03), ("oracle", 1.0)):
        path = copy_run("uniform", results / name) / "evaluation.json"
        evaluation = json.loads(path.read_text())
        nats = [n * loss / evaluation["corpus_bits_per_byte"] for n in evaluation["nats"]]
        if name == "near":  # documents differ in both directions from those of the best
            nats = [n * (1.02 if place % 2 else 0.98) for place, n in enumerate(nats)]
        rewrite(path, corpus_bits_per_byte=loss, corpus_standard_error=0.015, nats=nats, oracle=name == "oracle")
    page = leaderboard.page(results, tmp_path)
    (rows,) = sections(page).values()
    assert [re.findall(r"\[(\w+)\]", row[0])[0] for row in rows] == ["oracle", "best", "near", "far"]
    assert [row[3].startswith("**") for row in rows] == [False, True, True, False]
    assert rows[0][0].endswith(" *") and "An asterisk marks an oracle" in page
    assert rows[1][4] == "-" and rows[3][4].startswith("0.030 ± ")  # paired with the best


def test_the_command_writes_the_same_bytes_again(tmp_path, capsys):
    run, page = copy_run("learned", tmp_path / "results" / "learned"), tmp_path / "docs" / "page.md"
    arguments = ["--results", str(tmp_path / "results"), "--out", str(page)]
    assert command.main(arguments) == 0
    first = page.read_bytes()
    assert command.main(arguments) == 0 and page.read_bytes() == first
    assert b"[learned](../results/learned/report.md)" in first
    (tmp_path / "file").touch()  # where a folder would have to be
    broken = tmp_path / "broken"
    shutil.copytree(run.parent, broken)
    (broken / "learned" / "summary.json").write_text("{")
    for wrong, message in (
        (["--results", str(tmp_path / "nothing")], "--results must be a folder of results, got "),
        ([*arguments[:2], "--out", str(tmp_path / "file" / "page.md")], "rltok leaderboard: "),
        (["--results", str(broken), *arguments[2:]], "summary.json cannot be read"),
    ):
        assert command.main(wrong) == 2 and message in capsys.readouterr().err, wrong


def test_studies_are_linked(tmp_path):
    for name in ("learn", "estimators"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").touch()
    page = leaderboard.page(tmp_path, tmp_path)
    assert "- [learn](learn/learn.md): " in page and "- [estimators](estimators/estimators.md): " in page


def test_entries_are_checked_before_they_are_added(tmp_path, capsys):
    results = tmp_path / "results"
    for name in ("learned", "uniform"):
        copy_run(name, results / "compare" / name)
    clean = {"git": {"revision": "a" * 40, "dirty": False}, "seconds": 1.0, "from_bytes": 0, "to_bytes": 1}

    def entry(name: str, seed: int, start: dict[str, object] | None = None, **changes: object) -> Path:
        folder = copy_run("uniform", tmp_path / "runs" / name / f"seed-{seed}")
        config = folder / "config.yaml"
        config.write_text(re.sub(r"^seed: \d+", f"seed: {seed}", config.read_text(), flags=re.M))
        (folder / "environment.json").write_text(json.dumps([start or clean]))
        rewrite(folder / "evaluation.json", **{"rate": 0.203} | changes)
        (folder / "checkpoints").mkdir()
        return folder

    def add(*folders: Path) -> int:
        return command.main(["add", *map(str, folders), "--results", str(results), "--out", str(tmp_path / "p.md")])

    good = [entry("good", seed) for seed in range(5)]
    assert add(*good) == 0
    copied = {path.name for path in (results / "good" / "seed-4").iterdir()}
    assert "summary.json" in copied and "checkpoints" not in copied
    assert (tmp_path / "p.md").read_text().count("results/good/") == 5
    capsys.readouterr()
    other = entry("other", 7, {**clean, "git": {"revision": "b" * 40, "dirty": False}})
    begun = entry("begun", 9)
    (begun / "summary.json").unlink()
    dearer = [entry("dearer", seed) for seed in range(5)]
    for folder in dearer:
        flops = json.loads((folder / "summary.json").read_text())["flops"]
        rewrite(folder / "summary.json", flops=1.03 * flops)
    for folders, message in (
        (good, "exists already"),
        ([good[0]] * 5, "runs must be different folders of different names"),
        (good[:4], "5 seeds of one configuration are needed, got 4 runs of 1"),
        ([begun, *good], "seed-9: not finished"),
        ([entry("dirty", 5, {**clean, "git": {"revision": "a" * 40, "dirty": True}})], "from a checkout with changes"),
        (
            [entry("unknown", 5, {**clean, "git": {"revision": "a" * 40, "dirty": None}})],
            "unknown changes, because git",
        ),
        ([entry("nowhere", 5, {**clean, "git": None})], "no commit is recorded"),
        ([*good[:4], other], "must be of one commit"),
        ([entry("fast", 5, rate=0.25)], "rate 0.2500 is more than 5 % off the target 0.2"),
        (dearer, "total FLOPs of"),
        ([entry("fewer", 5, counts=[1], nats=[1.0])], "--new-table starts one"),
    ):
        assert add(*folders) == 2
        assert message in capsys.readouterr().err, message
    assert sorted(path.name for path in results.iterdir()) == ["compare", "good"]
