"""Comparisons over seeds: what is put together, what it is called, and what the page says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments.reports import comparison
from rltok_rl.experiments.reports import run_report as report
from rltok_rl.experiments.reports.seeds import Group, over_seeds, seed_groups
from rltok_rl.experiments.runs.folder import read_run

from .configured import QUICK, configured

COLUMNS = ("update", "bytes", "bits_per_byte", "early_bits_per_byte", "rate", "entropy", "advantage_spread", "flops")
DRAWN: list[tuple[tuple, dict]] = []
"""What was to be drawn; that it is, is seen where figures are tested."""


@pytest.fixture
def made(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Folders of runs as trainings leave them, without the trainings."""
    for name in ("draw_texts", "draw_comparison", "draw_loss_against_flops"):
        monkeypatch.setattr(comparison, name, lambda *given, **options: DRAWN.append((given, options)))
    DRAWN.clear()

    def make(
        name: str, *options: str, loss: float = 2.0, early: float = 2.5, updates: int = 4, done: bool = True
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = configured(*QUICK, *options, f"out={folder}")
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
        rows = [(n, 128 * n, loss, early, 0.2, 0.5 - loss / 100, loss / 10, 1e9 * n) for n in range(1, updates + 1)]
        lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        sample = {"text": "to be", "boundaries": "10101", "probabilities": [0.5] * 5}
        looks = [
            {
                "update": n,
                "bytes": 128 * n,
                "flops": 1e9 * n,
                "held_out_bits_per_byte": value,
                "held_out_early_bits_per_byte": early,
                "held_out_rate": 0.2,
                "held_out_standard_error": 0.01,
                **sample,
            }
            for n, value in ((0, 8.0), (updates, loss))
        ]
        (folder / "samples.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))
        if done:
            (folder / "summary.json").write_text(json.dumps({"updates": updates}))
        return folder

    return make


def together(folders: list[Path]) -> dict[str, list[str]]:
    runs = [read_run(folder) for folder in folders]
    options = [{"seed": run.option("seed"), "estimator.gamma": run.option("estimator.gamma")} for run in runs]
    found = seed_groups(runs, options, [run.name for run in runs])
    return {group.name: [run.name for run in group.runs] for group in found}


def table(page: str) -> list[list[str]]:
    """The cells of the first table, without its header."""
    rows = re.search(r"^\| run .*?(?=\n\n)", page, flags=re.S | re.M)
    assert rows is not None
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[0].splitlines()[2:]]


def test_runs_that_differ_in_their_seed_alone_are_together(made):
    a = [made(f"near-{seed}", f"seed={seed}", "estimator.gamma=0.9") for seed in (0, 1)]
    b = [made(f"far/seed-{seed}".replace("/", "_"), f"seed={seed}", "estimator.gamma=0.99") for seed in (0, 1, 2)]
    other = made("again", "seed=1", "estimator.gamma=0.9")
    assert together([*a, *b]) == {"near": ["near-0", "near-1"], "far": ["far_seed-0", "far_seed-1", "far_seed-2"]}
    # The same seed twice is no second seed.
    assert together([*a, other]) == {"near": ["near-0", "near-1"], "again": ["again"]}
    # A name that the seeds do not leave is that of all.
    assert together([a[0], other]) == {"near-0, again": ["near-0", "again"]}


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (("ema16-1", "ema16-6"), "ema16"),  # not the 1 of 16
        (("runs1", "runs6"), "runs"),
        (("a/seed=1", "a/seed=6"), "a"),
        (("x_s1", "x_s6"), "x"),
        (("seed-1", "seed-6"), "seed-1, seed-6"),
        (("6", "1"), "6, 1"),
    ],
)
def test_what_several_seeds_are_called(names, title, made):
    runs = [read_run(made(f"{n}", f"seed={seed}")) for n, seed in enumerate((1, 6))]
    (group,) = seed_groups(runs, [{"seed": 1}, {"seed": 6}], names)
    assert group.name == title


def test_a_line_of_several_seeds_has_mean_and_deviation(made, tmp_path):
    # By seed, far differs from near by 0.03 and 0.00, off by 0.140 and 0.141: by a paired test only off is worse.
    losses = {"near": (2.00, 2.04), "far": (2.03, 2.04), "off": (2.14, 2.181)}
    folders = [
        made(f"{name}-{seed}", f"seed={seed}", f"estimator.gamma={gamma}", loss=losses[name][seed])
        for name, gamma in (("near", 0.9), ("far", 0.99), ("off", 0.5))
        for seed in (0, 1)
    ]
    page = report.write_comparison(folders, tmp_path / "all").read_text()
    header = next(row for row in page.splitlines() if row.startswith("| run "))
    assert "| `estimator.gamma` | seeds | bits per byte, held out |" in header and "advantage spread" in header
    near, far, off = table(page)
    assert near[:4] == ["near", "0.9", "0, 1", f"**{fmean(losses['near']):.3f} ± {stdev(losses['near']):.3f}**"]
    assert far[3].startswith("**2.035") and off[3] == f"{fmean(losses['off']):.3f} ± {stdev(losses['off']):.3f}"
    below = page[page.index("## Each run") :]
    assert [row.split("|")[1].strip() for row in below.splitlines() if row.startswith("| ")][1:] == [
        "near-0",
        "near-1",
        "far-0",
        "far-1",
        "off-0",
        "off-1",
    ]
    groups = {name: [f"{name}-0", f"{name}-1"] for name in losses}
    assert [options["groups"] for _, options in DRAWN if "groups" in options] == [groups] * 2
    assert (
        "One run per line" not in page
        and "the standard deviation over seeds" in page
        and "Thin lines are seeds" in page
    )
    found = over_seeds(Group("near", tuple(read_run(folder) for folder in folders[:2])))["loss"]
    assert (found.mean, found.spread, found.error) == pytest.approx(
        (2.02, stdev(losses["near"]), stdev(losses["near"]) / sqrt(2))
    )


def test_each_has_them_apart(made, tmp_path, monkeypatch, capsys):
    folders = [made(f"x-{seed}", f"seed={seed}", loss=2.0 + seed) for seed in (0, 1)]
    for folder in folders:
        (folder / "report.md").write_text("kept")
    names = [str(folder) for folder in folders]
    assert report.main([*names, "--out", str(tmp_path / "all"), "--each"]) == 0
    page = (tmp_path / "all" / "report.md").read_text()
    assert [row[0] for row in table(page)] == ["x-0", "x-1"] and "## Each run" not in page
    assert "One run per line: a difference may be that of seeds." in page and "| `seed` |" in page
    # Pages of finished runs are left alone, and only what was written is named.
    assert capsys.readouterr().out.split() == [str(tmp_path / "all" / "report.md")]
    assert [(folder / "report.md").read_text() for folder in folders] == ["kept", "kept"]
    with pytest.raises(SystemExit):
        report.main([names[0], "--each"])
    assert "--each: belongs to a comparison" in capsys.readouterr().err


def test_what_is_not_finished_says_so_and_is_not_bold(made, tmp_path):
    folders = [made("done", loss=2.5), made("under-way", "estimator.gamma=0.9", loss=2.0, updates=2, done=False)]
    page = report.write_comparison(folders, tmp_path / "all").read_text()
    done, under_way = table(page)
    assert done[2] == "2.500 ± 0.010" and under_way[2] == "2.000 ± 0.010 at 256 B" or not page.count("**")
    assert "512 B" in done and "256 B of 512 B, not finished" in under_way
    assert "- Not finished: under-way. " in page


def test_a_seed_that_is_not_finished_is_not_in_the_mean(made, tmp_path):
    folders = [made(f"x-{seed}", f"seed={seed}", loss=2.0 + seed / 10, done=seed < 2) for seed in range(3)]
    (row,) = table(report.write_comparison(folders, tmp_path / "all").read_text())
    assert row[:2] == ["x", "0, 1 (2 not finished)"] and row[2].strip("*") == f"2.050 ± {stdev([2.0, 2.1]):.3f}"


def test_tokens_that_do_not_help_are_told(made, tmp_path):
    good, bad = made("good"), made("bad", "estimator.gamma=0.9", loss=4.77, early=4.54)
    page = report.write_comparison([good, bad], tmp_path / "all").read_text()
    assert "**Tokens do not help yet**" in page and "So it is with bad." in page
    assert "Tokens do not help yet" in report.results(read_run(bad))
    assert "Tokens do not help yet" not in report.results(read_run(good))


def test_a_report_says_what_its_error_is_over_and_where_the_run_began(made):
    found = report.results(read_run(made("mine", loss=2.0)))
    rows = dict(row.strip("| ").split(" | ") for row in found.splitlines() if row.startswith("| "))
    assert rows["bits per byte, held out"] == "2.000 ± 0.010 over batches"
    assert rows["bits per byte, held out, before the first update"] == "8.000"
    assert rows["advantage spread, nats"] == "0.200"
    assert re.search(r"± is the standard error over \d+ batches of windows", found) and "`rltok eval`" in found
    assert "gave 8.000 bits per byte on held-out text and 2.000 on the first batch" in found
