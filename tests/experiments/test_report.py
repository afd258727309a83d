"""Reports: everything from the folder, at any time, of one run or several."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rltok_rl.experiments import train
from rltok_rl.experiments.reports import comparison
from rltok_rl.experiments.reports import run_report as report
from rltok_rl.experiments.runs import build
from rltok_rl.experiments.runs.folder import read_run

from ..test_project_text import machine_paths
from .test_train import QUICK, configured

FILES = {
    ".lock",
    "alarms.log",
    "config.yaml",
    "environment.json",
    "figures/boundaries.png",
    "figures/curves.png",
    "figures/loss-flops.png",
    "figures/text.png",
    "metrics.csv",
    "model.json",
    "report.md",
    "sample.txt",
    "samples.jsonl",
    "summary.json",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Eight updates with a rate that is far from its target from the first one on."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    overrides = ["optim.total_bytes=1024", "snapshots.num_bytes=120", "model.overrides.target_rate=0.2"]
    config = configured(*QUICK, *overrides, f"out={folder}")
    patience = build.Alarms.__dataclass_fields__["patience"].default
    make = build.Alarms
    try:
        build.Alarms = lambda **options: make(**options, patience=2, least_entropy=9.0)
        train.run(config, f"rltok train out={folder}")
    finally:
        build.Alarms = make
    assert make().patience == patience
    return folder


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "mine"))


def test_a_run_leaves_all_of_its_files(finished):
    found = {p.relative_to(finished).as_posix() for p in finished.rglob("*") if p.is_file()}
    assert {name for name in found if not name.startswith(("checkpoints/", "model/"))} == FILES
    assert any(name.startswith("model/") for name in found)
    assert any(name.startswith("checkpoints/update-00000008/") for name in found)


def test_looks_are_taken_before_during_and_after(finished):
    lines = [json.loads(line) for line in (finished / "samples.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [0, 1, 2, 4, 8] and [line["bytes"] for line in lines][-1] == 1024
    assert len({line["text"] for line in lines}) == 1 and len(lines[0]["text"]) == 120
    summary = json.loads((finished / "summary.json").read_text())
    assert {k: v for k, v in lines[-1].items() if k in summary and k.startswith("held_out")} == {
        k: v for k, v in summary.items() if k.startswith("held_out")
    }
    assert lines[-1]["flops"] == summary["flops"] == read_run(finished).history["flops"][-1]
    marked = (finished / "sample.txt").read_text()
    assert marked.count("|") - lines[-1]["text"].count("|") == lines[-1]["boundaries"].count("1")


def test_a_picture_of_a_run_is_of_its_last_look(finished):
    run = read_run(finished)
    shown, last = comparison.marked_text("mine", run), run.looks[-1]
    assert list(shown.probabilities) == list(last["probabilities"]) != list(run.looks[0]["probabilities"])
    assert shown.note.startswith(f"{last['held_out_bits_per_byte']:.3f} bits per byte, ")


def test_alarms_reach_the_log_and_the_report(finished):
    lines = [json.loads(line) for line in (finished / "alarms.log").read_text().splitlines()]
    assert lines[0]["update"] == 2 and "the policy has stopped exploring" in lines[0]["warning"]
    assert f"- update 2: {lines[0]['warning']}" in (finished / "report.md").read_text()


def test_a_report_says_what_was_trained_and_what_came_of_it(finished):
    page, summary = (finished / "report.md").read_text(), json.loads((finished / "summary.json").read_text())
    assert "Finished: 8 updates, 1.02 kB of 1.02 kB." in page
    assert f"{summary['held_out_bits_per_byte']:.3f} ± {summary['held_out_standard_error']:.3f}" in page
    assert f"{summary['held_out_rate']:.3f} (0.2)" in page
    worth = f"{summary['held_out_early_bits_per_byte'] - summary['held_out_bits_per_byte']:.3f}"
    assert f"| what tokens are worth (early exit less whole model) | {worth} |" in page and worth.strip("-") != "0.000"
    assert f"{json.loads((finished / 'model.json').read_text())['parameters']:,}" in page
    wanted = [
        "`tiny`",
        "`python-docs`",
        "`learned`",
        "`leave_one_out`",
        "gamma 0.95",
        "`reinforce`",
        "`logit_pressure`",
    ]
    assert [text for text in [*wanted, "rltok train out="] if text not in page] == []
    for name in re.findall(r"\]\(([^)]+)\)", page):
        assert (finished / name).is_file(), name
    assert page.count("](figures/") == 4
    assert not machine_paths((finished / "environment.json").read_text() + page)


def test_a_report_is_written_anew_from_the_folder_alone(copied, monkeypatch, tmp_path, capsys):
    page = (copied / "report.md").read_text()
    shutil.rmtree(copied / "figures")
    (copied / "report.md").unlink()
    monkeypatch.chdir(tmp_path)
    assert report.main(["mine"]) == 0
    assert (copied / "report.md").read_text() == page
    assert (copied / "figures" / "boundaries.png").stat().st_size > 5_000
    assert capsys.readouterr().out.strip() == "mine/report.md"


@pytest.mark.parametrize("kept", [["config.yaml"], ["config.yaml", "metrics.csv"], ["config.yaml", "samples.jsonl"]])
def test_an_unfinished_run_has_a_report(finished, tmp_path, kept):
    for name in kept:
        shutil.copy(finished / name, tmp_path / name)
    page = report.write_report(tmp_path).read_text()
    assert "**Unfinished**" in page and "go on with `resume=true`" in page
    assert ("figures/curves.png" in page) == ("metrics.csv" in kept)
    assert ("figures/boundaries.png" in page) == ("samples.jsonl" in kept)


def test_held_out_figures_that_are_older_than_the_run_say_so(copied):
    lines = (copied / "samples.jsonl").read_text().splitlines()
    (copied / "samples.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    (copied / "summary.json").unlink()
    assert " at 512 B |" in report.write_report(copied).read_text()


def test_a_comparison_shows_what_differs_and_only_that(finished, copied, tmp_path):
    config = copied / "config.yaml"
    config.write_text(re.sub(r"gamma: 0.95", "gamma: 1.0", config.read_text()))
    page = report.write_comparison([finished, copied], tmp_path / "both").read_text()
    assert "`estimator.gamma`" in page and "`optim.lr`" not in page and "`out`" not in page
    assert len({row.split("|")[1] for row in page.splitlines() if row.startswith("| ")}) == 3  # names tell them apart
    assert (tmp_path / "both" / "comparison.png").stat().st_size > 10_000
    same = report.write_comparison([finished, finished], tmp_path / "same").read_text()
    assert "All runs have one configuration." in same
    for page_of in ("both", "same"):
        shown = re.findall(r"\]\(([^)]+)\)", (tmp_path / page_of / "report.md").read_text())
        assert shown == ["comparison.png", "loss-flops.png", "texts.png"]
        assert all((tmp_path / page_of / name).stat().st_size > 5_000 for name in shown)


def edit(folder: Path, name: str, *changes: tuple[str, str]) -> None:
    text = (folder / name).read_text()
    for pattern, replacement in changes:
        assert re.search(pattern, text), pattern
        text = re.sub(pattern, replacement, text)
    (folder / name).write_text(text)


def rows_of(page: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if row.startswith("| ")]
    return {row[0]: row for row in cells}


@pytest.fixture
def bare(finished, tmp_path) -> Callable[[str], Path]:
    """Runs of which there are figures, and no pictures to draw."""

    def copy(name: str) -> Path:
        (tmp_path / name).mkdir()
        for one in ("config.yaml", "samples.jsonl", "model.json"):
            shutil.copy(finished / one, tmp_path / name / one)
        return tmp_path / name

    return copy


def test_bold_is_what_a_paired_test_over_seeds_cannot_tell_from_the_best(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "draw_texts", lambda texts, path: path)
    folders = []
    losses = {  # seeds differ by far more than systems: unpaired errors could tell nothing apart
        "near": (2.009, 3.0, 4.012),
        "best": (2.0, 3.002, 4.0),
        "far": (2.1, 3.1, 4.102),
        "oracle": (1.5, 2.5, 3.5),
    }
    for number, (name, values) in enumerate(losses.items()):
        for seed, loss in enumerate(values):
            folder = bare(f"{name}-{seed}")
            lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
            lines[-1] |= {"held_out_bits_per_byte": loss, "held_out_standard_error": 0.01}
            (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            edit(folder, "config.yaml", (r"\nseed: \d+", f"\nseed: {seed}"), (r"gamma: [0-9.]+", f"gamma: 0.{number}"))
            if name == "oracle":
                edit(folder, "config.yaml", (r"(segmenter:\n  name: )learned", r"\1bpe"))
            folders.append(folder)
    page = report.write_comparison(folders, tmp_path / "all").read_text()
    rows = rows_of(page)
    bold = {name for name, row in rows.items() if any(cell.startswith("**") for cell in row)}
    assert bold == {"near", "best"} and "oracle *" in rows
    assert "by a paired test over seeds (95 %)" in page
    assert "An asterisk marks boundaries that depend on bytes to come" in page
    single = report.write_comparison([folder for folder in folders if folder.name.endswith("-0")], tmp_path / "one")
    assert "**" not in single.read_text().split("Nothing is bold")[0]


def test_what_the_text_alone_decides_has_no_target(bare):
    """Also in runs of versions that noted the model's own rate for it."""
    folder = bare("mine")
    assert read_run(folder).target_rate == 0.2
    edit(folder, "config.yaml", (r"(segmenter:\n  name: )learned", r"\1spacebyte"))
    assert read_run(folder).target_rate is None
    assert re.search(r"\| rate \(target\) \| [0-9.]+ \(-\) \|", report.write_report(folder).read_text())


def test_runs_on_different_texts_are_not_compared(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "draw_texts", lambda *_: pytest.fail("one picture of two texts"))
    one, other, third = (bare(name) for name in ("one", "other", "third"))
    edit(other, "config.yaml", (r"source: python-docs", "source: python-code"))
    edit(third, "samples.jsonl", (r'"text": ".', '"text": "#'))  # other files under the same name
    page = report.write_comparison([one, other, third], tmp_path / "all").read_text()
    assert "**Not all runs can be compared**: these were held to different texts: one; other; third." in page
    assert page.count("## Text ") == 3 and "## Text 2: `python-code`" in page
    assert not any(c.startswith("**") for row in rows_of(page).values() for c in row)  # nothing is paired


def test_different_vocabularies_are_named_and_compared_by_the_byte(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "draw_texts", lambda texts, path: path)
    one, other = bare("one"), bare("other")
    edit(other, "model.json", (r'"num_special": 0', '"num_special": 64'))
    page = report.write_comparison([one, other], tmp_path / "all").read_text()
    assert "Vocabularies differ (256 bytes; 256 bytes and 64 special ids)" in page and "Not all runs" not in page


def test_figures_come_in_other_formats_as_well(bare, capsys):
    folder = bare("mine")
    lines = (folder / "samples.jsonl").read_text().splitlines()
    (folder / "samples.jsonl").write_text(lines[-1] + "\n")
    assert report.main([str(folder), "--also", "pdf", "svg"]) == 0
    first = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    assert set(first) == {f"{name}.{suffix}" for name in ("boundaries", "text") for suffix in ("png", "pdf", "svg")}
    assert first["text.pdf"].startswith(b"%PDF") and b"<svg" in first["text.svg"]
    assert report.main([str(folder), "--also", "pdf", "svg"]) == 0
    assert {path.name: path.read_bytes() for path in (folder / "figures").iterdir()} == first  # to the last byte
    with pytest.raises(SystemExit):
        report.main([str(folder), "--also", "gif"])
    assert "invalid choice: 'gif'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.yaml", "- a\n- b\n", "config.yaml cannot be read: it must hold options by name, got list"),
        ("config.yaml", "a: [", "config.yaml cannot be read: "),
        ("metrics.csv", "update,bytes\n1,many\n", "metrics.csv cannot be read: could not convert"),
        ("summary.json", "{", "summary.json cannot be read: "),
        ("environment.json", "{", "environment.json cannot be read: "),
    ],
)
def test_a_file_that_cannot_be_read_is_named(bare, name, content, told, capsys):
    folder = bare("mine")
    (folder / name).write_text(content)
    assert report.main([str(folder)]) == 2
    assert f"rltok report: {folder}/{told}" in capsys.readouterr().err


def test_the_command_refuses_what_it_cannot_do(finished, tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2
    assert "is not the folder of a run: it must hold config.yaml" in capsys.readouterr().err
    for arguments in ([str(finished)] * 2, [str(finished), "--out", str(tmp_path)]):
        with pytest.raises(SystemExit):
            report.main(arguments)
        assert "give it with several runs, and only then" in capsys.readouterr().err
    (tmp_path / "file").touch()  # where a folder would have to be
    assert report.main([str(finished), str(finished), "--out", str(tmp_path / "file")]) == 2
    assert "rltok report: " in capsys.readouterr().err
    both = [str(finished), str(finished), "--out", str(tmp_path / "both")]
    assert report.main(both) == 0 and (tmp_path / "both" / "report.md").is_file()
