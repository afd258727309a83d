"""Reports of several runs: seed groups, texts, best rows, notes and loss curves."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments.commands import report
from rltok_rl.experiments.reports import comparison, grid
from rltok_rl.experiments.reports.comparison import CURVES, write_comparison
from rltok_rl.experiments.reports.run_report import results
from rltok_rl.experiments.reports.table import CURVE, loss_curves, seed_groups
from rltok_rl.experiments.runs.folder import read_run

from .configured import QUICK, configured

COLUMNS = ("update", "bytes", "bits_per_byte", "early_bits_per_byte", "rate", "entropy", "advantage_spread", "flops")
Maker = Callable[..., Path]


@pytest.fixture
def drawn(monkeypatch) -> list[dict]:
    """Options of the figures, which are not drawn here."""
    calls: list[dict] = []
    for name in ("draw_texts", "draw_comparison", "draw_loss_against_flops"):
        monkeypatch.setattr(comparison, name, lambda *_, **options: calls.append(options))
    return calls


@pytest.fixture
def make(tmp_path, drawn) -> Maker:
    """Write the folder of a run without training."""

    def write(
        name: str, *options: str, loss=2.0, early=2.5, updates=4, done=True, text="to be", special=0, **more
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = configured(*QUICK, *options, f"out={folder}")
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
        (folder / "model.json").write_text(json.dumps({"num_special": special, "target_rate": 0.2}))
        rows = [(n, 128 * n, loss, early, 0.2, 0.5 - loss / 100, loss / 10, 1e9 * n) for n in range(1, updates + 1)]
        (folder / "metrics.csv").write_text(pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False))
        sample = {"text": text, "boundaries": ("10" * len(text))[: len(text)], "probabilities": [0.5] * len(text)}
        snapshots = [
            {"update": n, "bytes": 128 * n, "flops": 1e9 * n, "held_out_bits_per_byte": value, "held_out_rate": 0.2}
            | {"held_out_early_bits_per_byte": early, "held_out_standard_error": 0.01, **sample, **more}
            for n, value in ((0, 8.0), (updates, loss))
        ]
        (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in snapshots))
        if done:
            (folder / "summary.json").write_text(json.dumps({"updates": updates}))
        return folder

    return write


def page_of(folders: list[Path], tmp_path: Path, **options) -> str:
    return write_comparison(folders, tmp_path / "all", **options).read_text()


def rows_of(page: str) -> list[list[str]]:
    """Cells of the first table, without its header."""
    table = re.search(r"^\| run .*?(?=\n\n)", page, flags=re.S | re.M)
    assert table is not None
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[0].splitlines()[2:]]


def test_runs_that_differ_in_their_seed_alone_share_a_group():
    def groups(rows: dict[str, tuple[int, float]]) -> dict[str, list[str]]:
        options = pd.DataFrame(rows.values(), columns=["seed", "gamma"], index=list(rows), dtype=object)
        names = seed_groups(options)
        return {name: list(members) for name, members in names.groupby(names, sort=False).groups.items()}

    near, far = {"near-0": (0, 0.9), "near-1": (1, 0.9)}, {f"far_seed-{seed}": (seed, 0.99) for seed in (0, 1, 2)}
    assert groups({**near, **far}) == {"near": [*near], "far": [*far]}
    # The same seed twice is no second seed.
    assert groups({**near, "again": (1, 0.9)}) == {"near": [*near], "again": ["again"]}
    assert groups({"near-0": (0, 0.9), "again": (1, 0.9)}) == {"near-0, again": ["near-0", "again"]}
    for names, title in (
        (("ema16-1", "ema16-6"), "ema16"),  # not the 1 of 16
        (("runs1", "runs6"), "runs"),
        (("a/seed=1", "a/seed=6"), "a"),
        (("x_s1", "x_s6"), "x"),
        (("seed-1", "seed-6"), "seed-1, seed-6"),
        (("6", "1"), "6, 1"),
    ):
        seeds = pd.DataFrame({"seed": [1, 6]}, index=list(names))
        assert list(seed_groups(seeds)) == [title] * 2


def test_row_of_several_seeds_has_mean_and_deviation(make, drawn, tmp_path):
    # By seed, far differs from near by 0.03 and 0.00, off by 0.140 and 0.141: by a paired test only off is worse.
    losses = {"near": (2.00, 2.04), "far": (2.03, 2.04), "off": (2.14, 2.181)}
    folders = [
        make(f"{name}-{seed}", f"seed={seed}", f"estimator.gamma={gamma}", loss=losses[name][seed])
        for name, gamma in (("near", 0.9), ("far", 0.99), ("off", 0.5))
        for seed in (0, 1)
    ]
    page = page_of(folders, tmp_path)
    header = next(row for row in page.splitlines() if row.startswith("| run "))
    assert "| `estimator.gamma` | seeds | bits per byte, held out |" in header and "advantage spread" in header
    near, far, off = rows_of(page)
    assert near[:4] == ["near", "0.9", "0, 1", f"**{fmean(losses['near']):.3f} ± {stdev(losses['near']):.3f}**"]
    assert far[3].startswith("**2.035") and off[3] == f"{fmean(losses['off']):.3f} ± {stdev(losses['off']):.3f}"
    below = [row.split("|")[1].strip() for row in page.partition("## Each run")[2].splitlines() if row[:2] == "| "]
    assert below[1:] == [folder.name for folder in folders]
    groups = {name: [f"{name}-0", f"{name}-1"] for name in losses}
    assert [options["groups"] for options in drawn if "groups" in options] == [groups] * 2
    assert "One run per row" not in page and "Thin lines are seeds" in page


def test_bold_is_decided_by_a_paired_test_over_seeds(make, tmp_path):
    # Seeds differ by far more than systems: unpaired errors could tell nothing apart.
    losses = {"near": (2.009, 3.0, 4.012), "best": (2.0, 3.002, 4.0), "far": (2.1, 3.1, 4.102)}
    losses |= {"oracle": (1.5, 2.5, 3.5)}
    folders = []
    for n, (name, values) in enumerate(losses.items()):
        options = [f"estimator.gamma=0.{n}", *(["segmenter.name=bpe"] if name == "oracle" else [])]
        folders += [make(f"{name}-{seed}", f"seed={seed}", *options, loss=loss) for seed, loss in enumerate(values)]
    page = page_of(folders, tmp_path)
    bold = {row[0] for row in rows_of(page) if any(cell.startswith("**") for cell in row)}
    assert bold == {"near", "best"} and "oracle *" in [row[0] for row in rows_of(page)]
    assert "An asterisk marks boundaries that depend on later bytes" in page
    single = page_of([folder for folder in folders if folder.name.endswith("-0")], tmp_path)
    assert "**" not in single.split("Nothing is bold")[0]


def test_known_optimum_leads_and_a_sweep_is_drawn_against_its_number(make, monkeypatch, tmp_path, capsys):
    """Flips have the largest share, though not the fewest bits."""
    monkeypatch.setattr(grid, "draw_grid", lambda number, panels, path: grids.append((number, panels)))
    grids: list = []
    for name, gamma, share in (("plain", 0.9, 0.5), ("plain", 0.99, 0.6), ("flips", 0.9, 0.9), ("flips", 0.99, 0.8)):
        estimator = {"plain": "discounted_return", "flips": "near_flips"}[name]
        for seed in (0, 1):
            options = [f"estimator={estimator}", "baseline=none", f"estimator.gamma={gamma}", f"seed={seed}"]
            more = {"held_out_share": share + seed / 100, "held_out_relative_return": 2.0, "loss": 2.0 + share}
            make(f"{name}-{gamma}-{seed}", *options, **more, held_out_share_standard_error=0.03)
    assert report.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "report.md")]
    page = (tmp_path / "report.md").read_text()
    header = next(row for row in page.splitlines() if row.startswith("| run "))
    assert (
        "| seeds | share of the optimum, held out | bits per byte, held out | return over even spacing, nats |"
        in header
    )
    bold = {row[0]: cell for row in rows_of(page) for cell in row if cell.startswith("**")}
    assert bold == {"flips-0.9": "**0.905 ± 0.007**"}
    assert "0.900 ± 0.030" in page.partition("## Each run")[2] and "](grid.png)" in page
    ((number, panels),) = grids
    shares = panels["share of the optimum, held out"]
    assert number == "estimator.gamma" and [*shares] == ["local_flips", "discounted_return"]
    assert shares["local_flips"] == {0.9: [0.9, 0.91], 0.99: [0.8, 0.81]} and len(panels) == 2
    page = page_of([make("old")], tmp_path)  # without returns
    assert "share" not in page and "even spacing" not in page


def test_each_gives_every_run_a_row(make, tmp_path, capsys):
    folders = [make(f"x-{seed}", f"seed={seed}", loss=2.0 + seed) for seed in (0, 1)]
    for folder in folders:
        (folder / "report.md").write_text("kept")
    assert report.main([*map(str, folders), "--out", str(tmp_path / "all"), "--each"]) == 0
    page = (tmp_path / "all" / "report.md").read_text()
    assert [row[0] for row in rows_of(page)] == ["x-0", "x-1"] and "## Each run" not in page
    assert "One run per row: a difference may be that of seeds." in page and "| `seed` |" in page
    # Pages of finished runs are left alone, and only the new page is printed.
    assert capsys.readouterr().out.split() == [str(tmp_path / "all" / "report.md")]
    assert [(folder / "report.md").read_text() for folder in folders] == ["kept", "kept"]


def test_unfinished_runs_are_marked_and_left_out_of_means(make, tmp_path):
    folders = [make("done", loss=2.5), make("open", "estimator.gamma=0.9", updates=2, done=False)]
    page = page_of(folders, tmp_path)
    done, unfinished = rows_of(page)
    assert done[2] == "2.500 ± 0.010" and unfinished[2] == "2.000 ± 0.010"
    assert "512 B" in done and "256 B of 512 B, not finished" in unfinished and "- Not finished: open. " in page
    folders = [make(f"x-{seed}", f"seed={seed}", loss=2.0 + seed / 10, done=seed < 2) for seed in range(3)]
    (row,) = rows_of(page_of(folders, tmp_path))
    assert row[:2] == ["x", "0, 1 (2 not finished)"] and row[2].strip("*") == f"2.050 ± {stdev([2.0, 2.1]):.3f}"


def test_notes_on_tokens_that_do_not_help_and_on_the_first_batch(make, tmp_path):
    good, bad = make("good"), make("bad", "estimator.gamma=0.9", loss=4.77, early=4.54)
    page = page_of([good, bad], tmp_path)
    assert "**Tokens do not help yet**" in page and "This holds for bad." in page
    helpful, helpless = (results(read_run(folder)) for folder in (good, bad))
    assert "Tokens do not help yet" in helpless and "Tokens do not help yet" not in helpful
    rows = dict(row.strip("| ").split(" | ") for row in helpful.splitlines() if row.startswith("| "))
    assert rows["bits per byte, held out"] == "2.000 ± 0.010 over batches"
    assert rows["bits per byte, held out, before the first update"] == "8.000"
    assert rows["advantage spread, nats"] == "0.200"
    assert re.search(r"± is the standard error over \d+ batches of windows", helpful) and "`rltok eval`" in helpful
    assert "gave 8.000 bits per byte on held-out text and 2.000 on the first batch" in helpful


def test_differing_options_texts_and_vocabularies_are_shown(make, monkeypatch, tmp_path):
    one = make("one")
    page = page_of([one, make("two", "estimator.gamma=1.0")], tmp_path)
    assert "`estimator.gamma`" in page and "`optim.lr`" not in page and "`out`" not in page
    same = page_of([one, one], tmp_path)
    assert "All runs have one configuration." in same and len({row[0] for row in rows_of(same)}) == 2
    page = page_of([one, make("special", special=64)], tmp_path)
    assert "Vocabularies differ (256 bytes; 256 bytes and 64 special ids)" in page and "Not all runs" not in page
    monkeypatch.setattr(comparison, "draw_texts", lambda *_: pytest.fail("one picture of two texts"))
    page = page_of([one, make("other", "data.source=python-code"), make("third", text="or not to be")], tmp_path)
    assert "**Not all runs can be compared**: these have different held-out texts: one; other; third." in page
    assert page.count("## Text ") == 3 and "## Text 2: `python-code`" in page and "**2" not in page


def test_figures_and_loss_curves_of_trained_runs(learned_run, uniform_run, tmp_path):
    out = tmp_path / "both"
    assert report.main([str(learned_run), str(uniform_run), "--out", str(out)]) == 0
    figures = re.findall(r"\]\(([^)]+)\)", (out / "report.md").read_text())
    assert figures[:2] == ["comparison.png", "loss-flops.png"]
    assert all((out / name).stat().st_size > 2_500 for name in figures)
    lines = list(csv.DictReader((out / CURVES).read_text().splitlines()))
    assert tuple(lines[0]) == CURVE
    run, mine = read_run(learned_run), [line for line in lines if line["run"] == "learned"]
    trained, held_out = ([line for line in mine if line["text"] == text] for text in ("training", "held out"))
    assert [int(line["update"]) for line in trained] == [*range(1, 9)] and len(held_out) == len(run.snapshots)
    for last in (trained[-1], held_out[-1]):
        assert float(last["flops"]) == run.summary["flops"] and int(last["bytes"]) == 1024
        assert float(last["padded_flops"]) == run.summary["padded_flops"] > run.summary["flops"]
    assert float(held_out[-1]["bits_per_byte"]) == run.summary["held_out_bits_per_byte"]
    assert trained[0]["standard_error"] == "" and held_out[0]["flops"] == "0.0"
    errors = [line["held_out_standard_error"] for line in run.snapshots]
    assert [float(line["standard_error"]) for line in held_out] == errors
    (tmp_path / "config.yaml").write_text((learned_run / "config.yaml").read_text())
    assert loss_curves({"nothing": read_run(tmp_path)}).empty
