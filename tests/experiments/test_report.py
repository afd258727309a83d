"""Reports of runs: everything comes from the folder, finished or not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments.commands import check, report
from rltok_rl.experiments.reports.comparison import marked_text
from rltok_rl.experiments.reports.run_report import results, write_report
from rltok_rl.experiments.runs.folder import read_run

from rltok_rl.training.environment import CHANGES

from ..each import each
from ..test_project_text import machine_paths

FILES = {
    *(".lock", "alarms.log", "config.yaml", "environment.json", "metrics.csv", "model.json", "report.md"),
    *("sample.txt", "samples.jsonl", "summary.json", "figures/boundaries.png", "figures/curves.png"),
    *("figures/loss-flops.png", "figures/text.png"),
}


def copy_files(run: Path, folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        shutil.copy(run / name, folder / name)
    return folder


@pytest.fixture
def bare(learned_run, tmp_path) -> Path:
    """A run that has metrics but no figures to draw, save of its last snapshot."""
    folder = copy_files(learned_run, tmp_path / "mine", "config.yaml", "model.json")
    last = (learned_run / "samples.jsonl").read_text().splitlines()[-1]
    (folder / "samples.jsonl").write_text(last + "\n")
    return folder


def test_run_leaves_all_of_its_files_and_snapshots_before_during_and_after(learned_run):
    files = {path.relative_to(learned_run).as_posix() for path in learned_run.rglob("*") if path.is_file()}
    assert {name for name in files if not name.startswith(("checkpoints/", "model/"))} == FILES
    assert {"model/config.json"} <= files and any(name.startswith("checkpoints/update-00000008/") for name in files)
    run, summary = read_run(learned_run), json.loads((learned_run / "summary.json").read_text())
    lines = run.snapshots
    assert [line["update"] for line in lines] == [0, 1, 2, 4, 8] and lines[-1]["bytes"] == 1024
    assert len({line["text"] for line in lines}) == 1 and len(lines[0]["text"]) == 120
    held_out = {name: value for name, value in summary.items() if name.startswith("held_out")}
    assert held_out and {name: lines[-1][name] for name in held_out} == held_out
    assert lines[-1]["flops"] == summary["flops"] == run.history["flops"][-1]
    marked = (learned_run / "sample.txt").read_text()
    assert marked.count("|") - lines[-1]["text"].count("|") == lines[-1]["boundaries"].count("1")
    drawn = marked_text("mine", run)
    assert list(drawn.probabilities) == list(lines[-1]["probabilities"]) != list(lines[0]["probabilities"])
    assert drawn.note.startswith(f"{lines[-1]['held_out_bits_per_byte']:.3f} bits per byte, ")


def test_page_has_options_metrics_and_alarms(learned_run):
    page, summary = (learned_run / "report.md").read_text(), json.loads((learned_run / "summary.json").read_text())
    loss, early = summary["held_out_bits_per_byte"], summary["held_out_early_bits_per_byte"]
    alarm = json.loads((learned_run / "alarms.log").read_text().splitlines()[0])
    assert alarm["update"] == 2 and "the policy has stopped exploring" in alarm["warning"]
    expected = [
        "Finished: 8 updates, 1.02 kB of 1.02 kB.",
        f"{loss:.3f} ± {summary['held_out_standard_error']:.3f} over batches",
        f"{summary['held_out_rate']:.3f} (0.2)",
        f"| what tokens are worth (early exit less whole model) | {early - loss:.3f} |",
        f"{json.loads((learned_run / 'model.json').read_text())['parameters']:,}",
        f"- update 2: {alarm['warning']}",
        *("`tiny`", "`python-docs`", "`learned`", "`leave_one_out`", "gamma 0.5", "`reinforce`", "`logit_pressure`"),
        "\nrltok train 'out=runs/${seed}'\n",
    ]
    assert [text for text in expected if text not in page] == []
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert all((learned_run / name).is_file() for name in links) and page.count("](figures/") == 4
    assert not machine_paths((learned_run / "environment.json").read_text() + page)


def test_page_is_written_again_from_the_folder_alone(learned_run, monkeypatch, tmp_path, capsys):
    copied = tmp_path / "learned"
    shutil.copytree(learned_run, copied, ignore=shutil.ignore_patterns("figures", "model", "report.md"))
    monkeypatch.chdir(tmp_path)
    assert report.main(["learned"]) == 0
    assert (copied / "report.md").read_text() == (learned_run / "report.md").read_text()
    assert (copied / "figures" / "boundaries.png").stat().st_size > 2_500
    assert capsys.readouterr().out.strip() == "learned/report.md"
    # Unfinished, and the last snapshot is older than the last update.
    lines = (copied / "samples.jsonl").read_text().splitlines()
    (copied / "samples.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    (copied / "summary.json").unlink()
    assert " at 512 B |" in results(read_run(copied))


def test_a_budget_of_flops_is_stated_as_such(learned_run, tmp_path):
    copied = copy_files(learned_run, tmp_path / "x", "config.yaml", "metrics.csv", "summary.json")
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace("total_flops: null", "total_flops: 3.0e12"))
    page = write_report(copied).read_text()
    assert re.search(r"Finished: 8 updates, 1\.02 kB, [\d.]+ [MG]FLOPs of 3\.00 TFLOPs\.", page)


def test_unfinished_run_has_a_report(learned_run, tmp_path):
    for more in ([], ["metrics.csv"], ["samples.jsonl"]):
        page = write_report(
            copy_files(learned_run, tmp_path / "-".join([*more, "x"]), "config.yaml", *more)
        ).read_text()
        assert "**Unfinished**" in page and "resume it with `resume=true`" in page
        assert ("figures/curves.png" in page) == ("metrics.csv" in more)
        assert ("figures/boundaries.png" in page) == ("samples.jsonl" in more)


def test_rate_without_a_target_and_figures_in_other_formats(bare, capsys):
    sizes = json.loads((bare / "model.json").read_text())
    (bare / "model.json").write_text(json.dumps({**sizes, "target_rate": None}))
    assert re.search(r"\| rate \(target\) \| [0-9.]+ \(-\) \|", results(read_run(bare)))

    def figures() -> dict[str, bytes]:
        assert report.main([str(bare), "--also", "pdf", "svg"]) == 0
        return {path.name: path.read_bytes() for path in (bare / "figures").iterdir()}

    first = figures()
    assert set(first) == {f"{name}.{suffix}" for name in ("boundaries", "text") for suffix in ("png", "pdf", "svg")}
    assert first["text.pdf"].startswith(b"%PDF") and b"<svg" in first["text.svg"]
    assert figures() == first


def test_unreadable_files_are_named(bare, capsys):
    for name, content, message in (
        ("config.yaml", "- a\n- b\n", "config.yaml cannot be read: it must hold options by name, got list"),
        ("config.yaml", "a: [", "config.yaml cannot be read: "),
        ("metrics.csv", "update,bytes\n1,many\n", "metrics.csv cannot be read: could not convert"),
        ("summary.json", "{", "summary.json cannot be read: "),
        ("environment.json", "{", "environment.json cannot be read: "),
    ):
        before = (bare / name).read_text() if (bare / name).exists() else None
        (bare / name).write_text(content)
        assert report.main([str(bare)]) == 2
        assert f"rltok report: {bare}/{message}" in capsys.readouterr().err
        (bare / name).unlink() if before is None else (bare / name).write_text(before)


def test_names_of_folders_cannot_steer_the_terminal(bare, capsys):
    run = bare.rename(bare.with_name("r\x1b[31m"))
    for command, arguments in ((check, [str(run)]), (report, [str(run)])):
        assert command.main(arguments) == 0
        shown = "".join(capsys.readouterr())
        assert "r\\u001b[31m" in shown and "\x1b" not in shown


def test_a_page_is_replaced_as_a_whole(bare, tmp_path):
    """A kill or a power cut leaves the earlier page: resuming writes only a missing one again."""
    for folders, page in (([bare], bare / "report.md"), ([bare, bare], tmp_path / "both" / "report.md")):
        arguments = [*map(str, folders), *(["--out", str(page.parent)] if len(folders) > 1 else [])]
        page.parent.mkdir(exist_ok=True)
        page.write_text("earlier")
        (tmp_path / page.parent.name).with_suffix(".md").hardlink_to(page)
        assert report.main(arguments) == 0
        assert (tmp_path / page.parent.name).with_suffix(".md").read_text() == "earlier" != page.read_text()


def test_options_of_others_open_no_tag_in_the_page(bare):
    image = "<img src=x onerror=alert(1)>"
    config = OmegaConf.load(bare / "config.yaml")
    config.data.source, config.data.options, config.seed = f"a\n{image}", {"b": f"`{image}"}, image
    OmegaConf.save(config, bare / "config.yaml")
    assert report.main([str(bare)]) == 0
    page = (bare / "report.md").read_text()
    assert f"`a {image}`" in page and page.count("<img") == 1 and page.count("&lt;img") == 3


def test_command_refuses_wrong_arguments(learned_run, tmp_path, capsys):
    run, empty, file = str(learned_run), str(tmp_path), tmp_path / "file"
    file.touch()
    for arguments, message in (
        ([empty], "is not the folder of a run: it must hold config.yaml"),
        ([run, run], "give it with several runs, and only then"),
        ([run, "--out", empty], "give it with several runs, and only then"),
        ([run, "--each"], "--each: belongs to a comparison"),
        ([run, "--also", "gif"], "invalid choice: 'gif'"),
        ([run, run, "--out", run], f"--out: must be a folder without a run, whose page it would replace, got {run}"),
        ([run, run, "--out", str(file)], "rltok report: "),  # a file instead of a folder
    ):
        try:
            status = report.main(arguments)
        except SystemExit as refused:
            status = refused.code
        assert status == 2 and message in capsys.readouterr().err, arguments


@each(dirty=CHANGES)
def test_changes_of_the_checkout_are_named_if_git_knows_them(dirty, learned_run, tmp_path):
    folder = copy_files(learned_run, tmp_path / f"run {dirty}", "config.yaml", "metrics.csv", "environment.json")
    (start,) = json.loads((folder / "environment.json").read_text())
    start["git"] = {"revision": "a" * 40, "dirty": dirty}
    (folder / "environment.json").write_text(json.dumps([start]))
    page = write_report(folder).read_text()
    assert f"| `aaaaaaaaaa`{CHANGES[dirty]} |" in page
    words = {None: "Files may have differed from the revision: git status failed.", True: "Files differed from"}
    assert [key for key, sentence in words.items() if sentence in page] == [dirty] * (dirty is not False)
