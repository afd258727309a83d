"""Several seeds of a comparison in one page, from committed runs whose losses are moved by known amounts."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rltok_rl.experiments.commands import report
from rltok_rl.experiments.reports import seeds_page
from rltok_rl.experiments.reports.seed_table import SeedTable
from rltok_rl.experiments.reports.seeds_page import entropy_at_shares, write_seeds_page
from rltok_rl.experiments.runs.folder import read_run

from rltok_rl.viz.difference_figure import SystemDifference

from .results import RESULTS, RUNS, copy_run, rewrite

MOVED = {"learned": (-0.05, -0.06, -0.04), "uniform": (0.0, 0.01, -0.01), "spacebyte": (-0.045, -0.06, -0.04)}
"""Bits per byte of each seed, relative to the committed evenly spaced run."""
RATES = (0.1961, 0.2, 0.2039)
"""Boundaries per byte of the learned policy in each seed, at most 2 % off its target."""
BASE = json.loads((RUNS / "uniform/evaluation.json").read_text())


REACHED = {"from_bytes": 0, "to_bytes": 1, "seconds": 1.0}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three seeds of three systems."""
    for system, moves in MOVED.items():
        for seed, move in enumerate(moves):
            run = copy_run(system, tmp_path / "three" / str(seed) / system, "metrics.csv")
            config = (run / "config.yaml").read_text()
            (run / "config.yaml").write_text(re.sub(r"\nseed: \d+", f"\nseed: {seed}", config))
            nats = [n + move * math.log(2) * c for n, c in zip(BASE["nats"], BASE["counts"], strict=True)]
            rewrite(run / "evaluation.json", nats=nats, corpus_bits_per_byte=BASE["corpus_bits_per_byte"] + move)
            if system == "learned":
                rewrite(run / "evaluation.json", rate=RATES[seed])
            rewrite(run / "summary.json", tried_flops=0.0)
    return tmp_path / "three"


@pytest.fixture
def no_figure(monkeypatch):
    for name in ("draw_loss_against_flops", "draw_differences"):
        monkeypatch.setattr(seeds_page, name, lambda *_, **__: None)


def cells(page: Path, system: str) -> dict[str, str]:
    """The row of a system, by column without what follows a colon or a bracket."""
    lines = page.read_text().splitlines()
    header = next(line for line in lines if line.startswith("| system |"))
    (row,) = [line for line in lines if re.match(rf"\| {system}( \*)? \|", line)]
    names, values = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (header, row))
    return {re.sub(r"^.*: | \(.*", "", name): value for name, value in zip(names, values, strict=True)}


def differences_of(folder: Path) -> list[SystemDifference]:
    return SeedTable(json.loads((folder / "compare-seeds.json").read_text())).differences()


def bold(page: Path) -> set[str]:
    return {system for system in MOVED if cells(page, system)["bits per byte"].startswith("**")}


def test_means_and_paired_differences_are_those_of_the_seeds(folder, capsys):
    assert report.main([str(folder)]) == 0
    page = folder / "compare-seeds.md"
    assert capsys.readouterr().out.strip() == str(page) and (folder / "compare-seeds.png").stat().st_size > 2_500
    assert (folder / "differences.png").stat().st_size > 2_500 and "](differences.png)" in page.read_text()
    learned, loss = cells(page, "learned"), BASE["corpus_bits_per_byte"]
    assert learned["total FLOPs"] == "10.5 TFLOPs" and learned["bits per byte"] == f"**{loss - 0.05:.3f} ± 0.010**"
    assert learned["each seed"] == ", ".join(f"{loss + move:.3f}" for move in MOVED["learned"])
    assert learned["over seeds"] == "-0.050 [-0.100, -0.000]"  # -0.05, -0.07, -0.03; 4.303 x 0.02 / sqrt(3)
    assert learned["bootstrap over seeds"] == "[-0.070, -0.030]"  # of 27 resamples, the least and the largest
    assert cells(page, "uniform")["bootstrap over seeds"] == "-"
    differences = {difference.name: difference for difference in differences_of(folder)}
    assert set(differences) == {"learned", "spacebyte"} and all(other.comparable for other in differences.values())
    assert differences["learned"].by_seed == pytest.approx([-0.05, -0.07, -0.03])
    assert differences["learned"].mean == pytest.approx(-0.05)
    assert differences["learned"].half_width == pytest.approx(4.303 * 0.02 / math.sqrt(3), rel=1e-3)
    assert learned["over documents"] == "-0.050 [-0.050, -0.050]"  # every document was moved by the same amount
    assert bold(page) == {"learned", "spacebyte"}
    text = page.read_text()
    assert "learned minus spacebyte: -0.002 [-0.009, +0.006] over seeds (bootstrap [-0.005, +0.000])" in text
    assert "they do not differ significantly" in text and "safer one for 3 to 5 seeds" in text
    # The page needs nothing but its JSON.
    content = json.loads((folder / "compare-seeds.json").read_text())
    assert seeds_page.seeds_page(content, SeedTable(content)) == text


def test_names_of_folders_open_no_tag_in_the_pages(folder, no_figure):
    for seed in range(3):
        (folder / str(seed) / "learned").rename(folder / str(seed) / "<img src=x>")
    assert report.main([str(folder)]) == report.main([str(folder / "0")]) == 0
    for page in (folder / "compare-seeds.md", folder / "0" / "compare.md"):
        assert "<img" not in page.read_text() and "&lt;img src=x>" in page.read_text()


def test_page_names_the_options_that_learned_policies_do_not_share(folder, no_figure):
    for seed in range(3):
        learned, other = (folder / str(seed) / system for system in ("learned", "spacebyte"))
        text = (learned / "config.yaml").read_text()
        (other / "config.yaml").write_text(text.replace("gamma: 0.9\n", "gamma: 0.5\n"))
        shutil.copy(learned / "model.json", other / "model.json")
        rewrite(other / "model.json", window=4)
    page = write_seeds_page(folder).read_text()
    assert "- learned: `estimator.gamma=0.9 model.overrides.window=8`" in page
    assert "- spacebyte: `estimator.gamma=0.5 model.overrides.window=4`" in page
    assert "- uniform:" not in page, "it has no learned policy"
    assert "window" not in page.split("| system")[0] and "target_rate 0.2" in page.split("| system")[0]


def test_nothing_is_bold_at_unequal_budgets(folder, no_figure):
    for seed in range(3):
        rewrite(folder / str(seed) / "learned" / "summary.json", tried_flops=4.3e12)
    page = write_seeds_page(folder)
    assert cells(page, "learned")["total FLOPs"] == "14.8 TFLOPs (29 % trials)"  # trials are part of the total
    assert bold(page) == set()


def test_two_seeds_are_not_bold_beside_three(folder, no_figure):
    """Their test has one degree of freedom, and tells a system that is far behind from none."""
    shutil.rmtree(folder / "2" / "spacebyte")
    assert bold(write_seeds_page(folder)) == {"learned"}
    for system in ("learned", "uniform"):
        shutil.rmtree(folder / "2" / system)
    assert bold(write_seeds_page(folder)) >= {"learned", "spacebyte"}, "where no system has three"


def test_a_seed_off_its_target_is_marked_and_its_system_is_not_bold(folder, no_figure):
    """Though the mean over seeds is on the target, and though the system has the fewest bits per byte."""
    page = write_seeds_page(folder)
    assert cells(page, "learned")["rate of each seed"] == "0.196, 0.200, 0.204" and "†" not in page.read_text()
    for seed, rate in (("0", 0.1959), ("2", 0.23)):
        rewrite(folder / seed / "learned" / "evaluation.json", rate=rate)
    page = write_seeds_page(folder)
    assert cells(page, "learned")["rate of each seed"] == "0.196 †, 0.200, 0.230 †"
    assert cells(page, "learned")["boundaries per byte"] == "0.209 (0.2)"
    assert bold(page) == {"spacebyte", "uniform"}, "learned is not the best that others are compared with"
    text = page.read_text()
    assert "never bold: learned in seeds 0 (-2.1 %), 2 (+15.0 %).\n" in text
    assert "Without one target rate, so that no rate is marked: spacebyte.\n" in text
    assert cells(page, "spacebyte")["rate of each seed"] == "0.187, 0.187, 0.187"
    assert {difference.name: difference.comparable for difference in differences_of(folder)} == {
        "learned": False,
        "spacebyte": True,
    }
    shutil.rmtree(folder / "0" / "spacebyte")
    shutil.rmtree(folder / "1" / "spacebyte")
    assert "differences.png" not in write_seeds_page(folder).read_text() and differences_of(folder) == []


def test_targets_by_script_mark_no_rate(folder, no_figure):
    for seed in range(3):
        scripts = {"latin": 0.2, "cyrillic": 0.4}
        rewrite(folder / str(seed) / "uniform" / "evaluation.json", rate=0.3, target_rates=scripts)
    text = write_seeds_page(folder).read_text()
    assert "†" not in text and "no rate is marked: spacebyte, uniform.\n" in text


def test_cpu_hours_capabilities_and_revisions_of_all_starts_are_on_the_page(folder, no_figure):
    def begin(seed: int, system: str, *starts: dict[str, object]) -> None:
        (folder / str(seed) / system / "environment.json").write_text(json.dumps([start | REACHED for start in starts]))

    old = write_seeds_page(folder)
    assert {cells(old, system)["CPU hours"] for system in MOVED} == {"-"} and "CPU capabilities" not in old.read_text()
    first, second = ({"revision": letter * 40, "dirty": False} for letter in "ab")
    wide, narrow = ({"git": first, "cpu_capability": name, "cpu_seconds": 1800.0} for name in ("AVX512", "AVX2"))
    for seed in range(3):
        for system in MOVED:
            begin(seed, system, wide)
    page = write_seeds_page(folder)
    assert {cells(page, system)["CPU hours"] for system in MOVED} == {"0.500"}
    assert "Revision: aaaaaaaaaa.\n" in page.read_text()
    assert "CPU capabilities" not in page.read_text() and "Not all runs" not in page.read_text()
    begin(0, "uniform", wide, narrow)  # resumed on another machine
    begin(1, "uniform", narrow | {"git": second}, wide | {"git": second})
    begin(2, "learned", narrow | {"git": first | {"dirty": True}})
    begin(1, "spacebyte", {"git": None})
    page = write_seeds_page(folder)
    hours = {system: cells(page, system)["CPU hours"] for system in MOVED}
    assert hours == {"learned": "0.500", "uniform": "0.833", "spacebyte": "-"}
    text = page.read_text()
    assert (
        "CPU capabilities (vector instructions) differ: AVX2: learned (seed 2); AVX2 and AVX512: uniform (seeds 0, 1); "
        "AVX512: learned (seeds 0, 1), spacebyte (seeds 0, 2), uniform (seed 2).\n"
    ) in text
    assert (
        "Not all runs come from one revision without changes: "
        "aaaaaaaaaa: learned (seeds 0, 1), spacebyte (seeds 0, 2), uniform (seeds 0, 2); "
        "aaaaaaaaaa with uncommitted changes: learned (seed 2); bbbbbbbbbb: uniform (seed 1); "
        "no recorded revision: spacebyte (seed 1).\n"
    ) in text
    for seed in range(3):
        for system in MOVED:
            begin(seed, system, wide | {"git": first | {"dirty": True}})
    text = write_seeds_page(folder).read_text()
    systems = "learned, spacebyte, uniform"
    assert f"one revision without changes: aaaaaaaaaa with uncommitted changes: {systems}.\n" in text
    begin(2, "learned", wide | {"git": first | {"dirty": None}})
    assert "; aaaaaaaaaa with unknown changes: learned (seed 2).\n" in write_seeds_page(folder).read_text()


def test_pages_of_earlier_versions_can_be_written_again():
    content = json.loads((RESULTS / "compare-equal-rates" / "compare-seeds.json").read_text())
    text = seeds_page.seeds_page(content, SeedTable(content))
    assert "0.205 †" in text and "CPU capabilities" not in text and "Not all runs" not in text


def test_systems_are_paired_by_the_seeds_they_share_and_no_seed_comes_twice(folder, no_figure):
    for seed in "12":
        shutil.rmtree(folder / seed / "spacebyte")
    # Of seed 0 alone.
    row = cells(write_seeds_page(folder), "spacebyte")
    assert [row["over seeds"], row["over documents"]] == ["-0.045", "-0.045 [-0.045, -0.045]"]
    assert row["bootstrap over seeds"] == "-"
    shutil.copytree(folder / "0", folder / "again")
    with pytest.raises(ValueError, match="seed 0 of 'learned' must be there once, got it twice"):
        write_seeds_page(folder)


def test_seeds_of_an_earlier_page_are_added_and_new_rows_replace_theirs(folder, no_figure):
    whole = write_seeds_page(folder).read_text()
    earlier = folder.parent / "earlier.json"
    shutil.copy(folder / "compare-seeds.json", earlier)
    shutil.rmtree(folder / "0")
    rewrite(folder / "1" / "uniform" / "evaluation.json", corpus_bits_per_byte=9.0)
    assert report.main([str(folder), "--earlier", str(earlier)]) == 0
    text = (folder / "compare-seeds.md").read_text()
    assert "Bits per byte against total FLOPs" in whole and "Bits per byte against total FLOPs" not in text
    rows = {
        system["name"]: system["rows"] for system in json.loads((folder / "compare-seeds.json").read_text())["systems"]
    }
    assert [list(seeds) for seeds in rows.values()] == [["0", "1", "2"]] * 3
    assert rows["uniform"]["1"]["bits_per_byte"] == 9.0 and rows["uniform"]["0"]["bits_per_byte"] < 3
    text = write_seeds_page(folder, earlier=folder / "compare-seeds.json").read_text()
    assert text.splitlines()[0].endswith("3 seeds")


LEARNED = ("learned", "paper", "low")


@pytest.fixture
def policies(folder):
    """A comparison with three learned policies."""
    for seed in "012":
        config = (folder / seed / "learned" / "config.yaml").read_text()
        for name, gamma, weight in (("low", "0.5", "0.3"), ("paper", "0.99", "0.01")):
            shutil.copytree(folder / seed / "learned", folder / seed / name)
            changed = re.sub(r"(\n  gamma: )[\d.]+", rf"\g<1>{gamma}", config)
            changed = re.sub(r"(\n  policy: )[\d.]+", rf"\g<1>{weight}", changed)
            assert changed != config
            (folder / seed / name / "config.yaml").write_text(changed)
    return folder


def table_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((path.parent / "compare-seeds.json").read_text())
    return content


def without(folder: Path, name: str, *systems: str) -> Path:
    """A copy of a comparison without some systems."""
    copy = Path(shutil.copytree(folder, folder.parent / name))
    for path in [copy / seed / system for seed in "012" for system in systems]:
        shutil.rmtree(path)
    return copy


@pytest.mark.parametrize(
    ("removed", "added", "complete", "known"),
    [
        pytest.param(("low", "spacebyte"), ("paper", "uniform"), True, True, id="a policy in both"),
        pytest.param(("low", "spacebyte"), ("paper", "uniform"), False, True, id="a policy in both, earlier version"),
        pytest.param(("low",), ("learned", "paper"), True, True, id="no policy in both"),
        pytest.param(("uniform",), LEARNED, True, True, id="no further policy"),
        pytest.param(("uniform",), LEARNED, False, False, id="no further policy, earlier version"),
    ],
)
def test_systems_are_added_to_an_earlier_page(policies, no_figure, removed, added, complete, known):
    """They are on one page as if they had been written together; pages once lacked what all policies share."""
    whole = table_of(write_seeds_page(policies))
    first, second = without(policies, "first", *removed), without(policies, "second", *added)
    earlier = write_seeds_page(first).parent / "compare-seeds.json"
    if not complete:
        content = json.loads(earlier.read_text())
        assert len(content.pop("shared_options")) > 50
        earlier.write_text(json.dumps(content))
    merged = table_of(write_seeds_page(second, earlier=earlier))
    by_name = {system["name"]: system for system in merged["systems"]}
    assert [*by_name][-1] == "uniform" and by_name == {system["name"]: system for system in whole["systems"]}
    assert by_name["low"]["options"].keys() == {"estimator.gamma", "loss.policy"}
    assert merged["shared_options"] == (whole["shared_options"] if known else None)
    assert merged["model"] == whole["model"] and merged["data"] == whole["data"]


def test_policies_of_an_earlier_version_alone_are_refused(policies, no_figure):
    earlier = write_seeds_page(without(policies, "first", "low")).parent / "compare-seeds.json"
    content = json.loads(earlier.read_text())
    content.pop("shared_options")
    earlier.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="systems must include a learned policy of .*: learned, paper; got low$"):
        write_seeds_page(without(policies, "second", "learned", "paper"), earlier=earlier)


def test_policies_of_two_pages_must_have_equal_options(policies, no_figure):
    earlier = write_seeds_page(without(policies, "first", "low")).parent / "compare-seeds.json"
    second, before = without(policies, "second", "paper"), json.loads(earlier.read_text())
    for place, option in (("options", "loss.policy"), ("shared_options", "optim.lr")):
        content = json.loads(json.dumps(before))
        of_learned = next(system for system in content["systems"] if system["name"] == "learned")
        (of_learned if place == "options" else content)[place][option] = 7.0
        earlier.write_text(json.dumps(content))
        message = rf"{re.escape(option)} of 'learned' must be equal in .*, got [\d.e-]+ and 7\.0"
        with pytest.raises(ValueError, match=message):
            write_seeds_page(second, earlier=earlier)


def test_options_that_an_earlier_page_lacks_have_their_defaults(policies, no_figure):
    whole = table_of(write_seeds_page(policies))
    earlier = write_seeds_page(without(policies, "first", "low")).parent / "compare-seeds.json"
    content = json.loads(earlier.read_text())
    assert content["shared_options"].pop("actor.warm_start_bytes") == 0
    earlier.write_text(json.dumps(content))
    merged = table_of(write_seeds_page(without(policies, "second", *LEARNED[:2]), earlier=earlier))
    options = [{system["name"]: system["options"] for system in page["systems"]} for page in (merged, whole)]
    assert options[0] == options[1] and merged["shared_options"] == whole["shared_options"]


def test_seeds_of_one_system_have_one_method_and_one_budget(folder, no_figure):
    summary = json.loads((folder / "1" / "uniform" / "summary.json").read_text())
    rewrite(folder / "1" / "uniform" / "summary.json", flops=2 * summary["flops"])
    with pytest.raises(
        ValueError, match="total FLOPs of 'uniform' must be equal in all seeds, got .* in seed 0 and .* 1"
    ):
        write_seeds_page(folder)
    rewrite(folder / "1" / "uniform" / "summary.json", flops=summary["flops"])
    config = folder / "2" / "uniform" / "config.yaml"
    config.write_text(re.sub(r"\n  lr: [\d.]+", "\n  lr: 0.25", config.read_text()))
    with pytest.raises(ValueError, match="optim.lr of 'uniform' must be equal in all seeds, got .*, and 0.25 in .*"):
        write_seeds_page(folder)


def test_all_runs_have_one_text(folder, no_figure):
    """The page names a single one, and pairs documents and seeds by it."""
    evaluation = folder / "1" / "uniform" / "evaluation.json"
    counts = json.loads(evaluation.read_text())["counts"]
    rewrite(evaluation, counts=[counts[0] + 1, *counts[1:]])
    with pytest.raises(ValueError, match=r"counts of 'uniform' must be equal in all seeds, got \[.*, and \[.* in .*1"):
        write_seeds_page(folder)
    rewrite(evaluation, counts=counts)
    config = folder / "1" / "learned" / "config.yaml"
    config.write_text(re.sub(r"\n  source: \S+", "\n  source: other", config.read_text()))
    with pytest.raises(ValueError, match="data.source must be equal in all runs, got .*, and 'other' in .*learned"):
        write_seeds_page(folder)


def test_seeds_of_another_comparison_are_refused(folder, no_figure, capsys):
    content = json.loads((write_seeds_page(folder).parent / "compare-seeds.json").read_text())
    before = (folder / "compare-seeds.json").read_bytes()
    shutil.rmtree(folder / "0")

    def refused(message: str, change: Callable[[dict[str, Any]], object] | None, *runs: Path) -> None:
        other = json.loads(json.dumps(content))
        (folder.parent / "earlier.json").write_text(json.dumps(other if change is None or change(other) is None else 0))
        try:
            code = report.main([*map(str, runs or (folder,)), "--earlier", str(folder.parent / "earlier.json")])
        except SystemExit as error:
            code = error.code
        assert code == 2 and re.search(message, capsys.readouterr().err), message
        assert (folder / "compare-seeds.json").read_bytes() == before

    def row(other: dict[str, Any]) -> dict[str, Any]:
        return other["systems"][0]["rows"]["0"]

    refused(r"model\.preset must be equal in .*, got \S+ and small", lambda x: x["model"].update(preset="small"))
    refused("estimator of 'learned' in seed 1 must be equal", lambda x: row(x).update(estimator="another"))
    refused("counts of 'learned' in seed 1 must be equal", lambda x: row(x).update(counts=[1]))
    refused(
        "systems must include a learned policy of .*: another; got learned$",
        lambda x: x.update(shared_options=None) or x["systems"][0].update(name="another"),
    )
    refused("must be the compare-seeds.json of a comparison over seeds", lambda x: x.pop("machines") and None)
    refused("must be the compare-seeds.json of a comparison over seeds", lambda x: 0)
    for runs in (RUNS / "learned", folder / "1"):
        refused("belongs to one folder", None, runs)
    with pytest.raises(FileNotFoundError):
        write_seeds_page(folder, earlier=folder / "missing.json")


def test_entropy_at_shares_of_a_run():
    run = read_run(RUNS / "learned")
    early, *_, late = entropy_at_shares(run)
    assert early > late == pytest.approx(run.final_mean("entropy"))
    assert entropy_at_shares(read_run(RUNS / "uniform")) is None


@pytest.mark.parametrize(
    ("renamed", "reference"),
    [({}, "uniform"), *(({"uniform": name}, name) for name in ("unscaled", "ours")), ({"uniform": "zero"}, "learned")],
)
def test_others_are_compared_with_evenly_spaced_boundaries_or_a_recipe_or_the_first(
    folder, no_figure, renamed, reference
):
    for old, new in renamed.items():
        for path in list(folder.glob(f"*/{old}")):
            path.rename(path.with_name(new))
    page = write_seeds_page(folder)
    assert SeedTable(json.loads((folder / "compare-seeds.json").read_text())).reference == reference
    assert f"minus {reference}: over seeds" in page.read_text()
