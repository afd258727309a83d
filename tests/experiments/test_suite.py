"""The boundary suite: statistics by their definitions, forfeits, every entry, resuming, and workers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.agents.rules import evenly_spaced
from rltok_rl.agents.segmenters import SegmenterActor, make_segmenter
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies import suite, suite_page
from rltok_rl.experiments.studies.equal_rates import OffsetActor, calibrate_threshold, policy_at_rate
from rltok_rl.experiments.studies.learn_runs import evaluate, sample_boundaries, train_and_evaluate
from rltok_rl.experiments.studies.suite_entries import (
    ESTIMATORS,
    FIXED,
    RECIPES,
    Oracle,
    cell_config,
    drawn_bytes,
    even_rate,
)
from rltok_rl.experiments.studies.suite_figures import entry_styles
from rltok_rl.experiments.studies.suite_scores import (
    improvement_interval,
    interquartile_mean,
    interval,
    probability_of_improvement,
    profile,
    profile_band,
    score_cells,
    signal_correlations,
    strata,
)

from rltok_rl.data.languages import TASKS
from rltok_rl.data.languages.suite_tasks import switched_source
from rltok_rl.models import UNet, preset
from rltok_rl.viz.style import MOST_RUNS

from ..each import each, refused

SMALL = "overrides=data.num_steps=32,data.num_rows=4"
TINY = ["tasks=delay,switch", "grades=1", "seeds=1", "flops=3e8", "workers=1", SMALL]


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    monkeypatch.setattr(suite, "EVALUATION_BYTES", 256)


def test_statistics_are_their_definitions():
    draws = np.random.default_rng(0)
    sizes = {("delay", 1): 5, ("delay", 3): 3, ("pair", 1): 4}
    scores, others = ({key: draws.normal(size=n).round(1).tolist() for key, n in sizes.items()} for _ in range(2))
    pooled = sorted(itertools.chain(*scores.values()))  # 12 runs: 3 are cut off at either end
    assert interquartile_mean(pooled) == pytest.approx(sum(pooled[3:-3]) / 6)
    wins = [sum((x > y) + (x == y) / 2 for x in scores[key] for y in others[key]) / n**2 for key, n in sizes.items()]
    assert probability_of_improvement(scores, others) == pytest.approx(sum(wins) / 3)
    chances = []
    for _ in range(4_000):
        drawn = [{k: draws.choice(group, len(group)).tolist() for k, group in s.items()} for s in (scores, others)]
        chances.append(probability_of_improvement(*drawn))
    limits = improvement_interval(scores, others, resamples=20_000)
    assert limits == pytest.approx(np.quantile(chances, [0.025, 0.975]).tolist(), abs=0.02)
    assert limits == improvement_interval(scores, others, resamples=20_000)
    assert improvement_interval({**scores, ("pair", 9): [1.0]}, others) is not None  # without a counterpart
    for unusable in ({}, {("delay", 1): [1.0]}):
        assert improvement_interval(unusable, others) is None
    assert profile(scores, [-9.0, pooled[6], 9.0]) == [1.0, sum(x >= pooled[6] for x in pooled) / 12, 0.0]
    resampled = []
    for _ in range(20_000):
        parts = [draws.choice(group, len(group)) for group in scores.values()]
        middle = np.sort(np.concatenate(parts))[3:-3]
        resampled.append(middle.mean())
    limits = interval(scores, resamples=20_000)
    assert limits == pytest.approx(np.quantile(resampled, [0.025, 0.975]).tolist(), abs=0.02)
    assert limits == interval(scores, resamples=20_000) and interval({("delay", 1): [1.0]}) is None


def test_profiles_have_bands_and_signals_rank_cells():
    scores = {("delay", 1): [0.0, 1.0, 0.5, 0.2], ("pair", 1): [0.9, 0.4, 0.1]}
    levels = [-1.0, 0.45, 0.95]
    low, high = profile_band(scores, levels)
    for place, level in enumerate(levels):
        alone = interval(scores, lambda values, axis, level=level: np.mean(values >= level, axis=axis))
        assert (low[place], high[place]) == pytest.approx(alone, abs=0.15)
    assert low[0] == high[0] == 1 and profile_band({("delay", 1): [1.0]}, levels) is None
    cells = [one | {"looks": [{"signal": 1.0 + place}, {}]} for place, one in enumerate(CELLS[:15])]  # `delay`
    rows = score_cells(cells)
    assert rows.forfeited.sum() == 3 and not score_cells(CELLS).signal.notna().any()
    kept = rows[~rows.forfeited & ~rows.entry.isin(["uniform"])]  # no ties
    ranks = [kept[name].rank() for name in ("signal", "score")]
    assert signal_correlations(kept) == {("delay", 1): pytest.approx(np.corrcoef(*ranks)[0, 1])}
    assert "ranks cells as their scores do" in suite_page.read_signal(rows)[0]
    assert not suite_page.read_signal(score_cells(CELLS))


def test_measuring_the_signal_leaves_a_run_as_it_was():
    def train(entry: str, batches: int) -> dict[str, Any]:
        config = cell_config("delay", 1, entry, flops=3e8, overrides=["data.num_steps=32", "data.num_rows=4"])
        found = train_and_evaluate(config, num_evaluations=2, num_rows=4, num_batches=2, signal_batches=batches)
        signals = [look.pop("signal", None) for look in found["looks"]]
        assert all((value is not None) == bool(batches and entry != "uniform") for value in signals)
        return {"final": found["final"], "shares": [look["share"] for look in found["looks"]]}

    for entry in ("running_mean@0.9", "local_flips@0.9", "uniform"):
        assert train(entry, 3) == train(entry, 0), entry


SIZES: Any = {"num_rows": 64, "num_steps": 64, "num_batches": 8, "seed": 5}


def test_policies_are_evaluated_at_their_targets():
    """An offset of the logits, one for all bytes, and a threshold, which other segmenters do not have."""
    torch.manual_seed(0)
    model, language = UNet(preset("tiny", target_rate=0.1)), TASKS["delay"].language(1)
    torch.nn.init.normal_(model.boundary_head.projection.weight)
    drawn = []
    for actor in (LearnedBoundaryActor(model), OffsetActor(model)):
        env = ByteBoundaryEnv(model, language, num_steps=64, batch_size=(64,), seed=0)
        drawn.append(env.parallel_rollout(actor, generator=torch.Generator().manual_seed(1))["action"])
    assert torch.equal(*drawn)
    before = evaluate(model, language, None, **{**SIZES, "seed": 6})["rate"]
    state = torch.get_rng_state()
    policy = policy_at_rate(model, language, 0.25, **SIZES)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    errors = [
        evaluate(model, language, actor, **{**SIZES, "seed": seed})["rate"] / 0.25 - 1
        for seed, actor in ((5, policy), (6, policy), (6, OffsetActor(model, policy.offset + 0.2)))
    ]
    assert abs(before / 0.25 - 1) > 0.5 and abs(errors[0]) < 0.05 and abs(errors[1]) < 0.05 and errors[2] > 0.08
    assert [round(policy_at_rate(model, language, rate, **SIZES).offset, 3) for rate in (0.0, 1.0)] == [-8, 8]
    rule = make_segmenter("entropy-threshold", model, predictor="early_exit")
    calibrate_threshold(rule, model, language, 0.25, **SIZES)
    actor = SegmenterActor(rule)
    assert abs(evaluate(model, language, actor, **{**SIZES, "seed": 6})["rate"] / 0.25 - 1) < 0.08
    calibrate_threshold(None, model, language, 0.25, **SIZES)


def test_cells_are_evaluated_at_equal_rates_on_texts_of_their_seed(tmp_path):
    options = suite.read_suite_options([*TINY[:2], "seeds=2", "flops=3e8", SMALL, "entries=random", f"out={tmp_path}"])
    cells = {}
    for job in suite.suite_jobs(options):
        if job.cell.task == "delay":
            cells[job.cell.entry, job.cell.seed] = suite.train_cell(job)
    assert len(cells) == 6 and not any("offset" in cell for cell in cells.values())  # nothing is learned
    assert cells["random", 0]["final"]["rate"] != cells["random", 1]["final"]["rate"]
    options = suite.read_suite_options([*TINY, "estimator=batch_mean", f"out={tmp_path}"])
    learned = next(job for job in suite.suite_jobs(options) if job.cell.entry == "batch_mean@0.9")
    assert "offset" in suite.train_cell(learned)


def _cell(task: str, entry: str, seed: int, share: float, rate: float = 0.1) -> dict[str, Any]:
    look = {"total_flops": 1e9, "cpu_seconds": 1.0, "share": share}
    times = {"cpu_seconds": 1.0, "total_flops": 1e9, "machine": "a machine", "target_rate": 0.1}
    final = {"share": share, "rate": rate}
    return {"task": task, "grade": 1, "entry": entry, "seed": seed, "final": final, "looks": [look, look], **times}


CELLS = [
    _cell(task, entry, seed, share + 0.01 * seed, rate)
    for task in ("delay", "pair")
    for seed in range(3)
    for entry, share, rate in (
        ("oracle", 0.9 if task == "delay" else 0.55, 0.2),
        ("uniform", 0.5, 0.12),
        ("good", 0.81 + 0.002 * seed, 0.104),
        ("bad", 0.6, 0.096),
        ("fast", 0.9, 0.106),
    )
]


def test_scores_forfeits_and_cells_that_are_not_learnable():
    rows = score_cells(CELLS)
    assert {*rows[rows.forfeited].entry} == {"fast"} and (rows[rows.forfeited].score == 0).all()
    assert {*rows[~rows.learnable].task} == {"pair"}
    assert strata(rows, "good") == {("delay", 1): pytest.approx([0.75, 0.78, 0.81])}
    assert sum(strata(rows, "oracle")["delay", 1]) == pytest.approx(3)
    assert sum(strata(rows, "uniform")["delay", 1]) == pytest.approx(0)


def test_the_page_states_what_paired_tests_support(tmp_path):
    page = suite_page.write_page(CELLS, tmp_path, "rltok suite", missing=2)
    for words in (
        "`delay` (credit over time): `good` 0.78 is best, ahead of `bad` by 0.53 ± 0.01.",
        " Better than evenly spaced: `good`, `bad`.",
        "left out of all scores: `pair` grade 1.",
        "`pair` (joint decisions): not learnable at this budget.",
        "**Cells of this command that are missing: 2.** The same",
        "| `fast` | 0.00× | - |",
        "| `good` | **0.78** | - |",
    ):
        assert words in page, page
    for name in ("tasks", "intervals", "profiles", "curves", "cost"):
        assert f"({name}.png)" in page and matplotlib.image.imread(tmp_path / f"{name}.png").shape[1] > 300
    saved = json.loads((tmp_path / "suite.json").read_text())
    assert len(saved["cells"]["data"]) == len(CELLS) and saved["summary"]["fast"]["forfeited"] == 3
    alone = suite_page.write_page([_cell("delay", "good", 0, 0.5)], tmp_path, "rltok suite")
    assert "not learnable" in alone


@each(entry=[*FIXED, *(f"{name}@0.9" for name in ESTIMATORS)])
def test_every_entry_trains_with_the_sizes_and_the_rate_of_its_task(entry):
    config = cell_config("nest", 3, entry, flops=1e9, overrides=["data.num_steps=64"])
    trainer, texts = make_trainer(config)
    assert np.isfinite(trainer.update()["loss"]) and trainer.total_flops_done > 0
    assert trainer.model.config.target_rate == pytest.approx(TASKS["nest"].rate(3), abs=1e-5)
    assert texts.language is not None and config.data.num_rows == 32
    whole = cell_config("nest", 3, entry, flops=1e9)
    assert whole.data.num_steps == 256 and whole.model.overrides["boundary_cap"] is None
    assert (whole.rate.control, whole.rate.coefficient, whole.rate.options) == ("binomial", 1.0, {})
    assert entry in RECIPES or whole.model.overrides["boundary_scale"] == 1.0  # policies learn at one speed


def test_overrides_reach_recipes_too():
    options = ["model.overrides.num_lags=4", "loss.entropy=0.01", "rate.control=pi"]
    plain, changed = (cell_config("nest", 3, "ours", flops=1e9, overrides=given) for given in ([], options))
    assert (plain.model.overrides["num_lags"], changed.model.overrides["num_lags"]) == (8, 4)
    assert (changed.loss.entropy, changed.rate.control) == (0.01, "pi")
    assert changed.model.overrides["encoder_norm"] is plain.model.overrides["encoder_norm"] is False


def test_bytes_of_every_task_can_be_shown():
    """Fillers of ``noise`` 4 are no ASCII: its cells were trained, and failed at their end."""
    torch.manual_seed(0)
    model = UNet(preset("tiny"))
    for name, task in TASKS.items():
        for grade in (1, 4):
            shown = sample_boundaries(model, task.language(grade))
            assert len(shown["text"]) == len(shown["boundaries"]) == len(shown["best"]), (name, grade)


def test_workers_end_with_a_killed_command(tmp_path):
    """Else they would train the cells that are queued, unseen."""
    (tmp_path / "sleepers.py").write_text(
        "import os, time\n"
        "from rltok_rl.experiments.studies.parallel_jobs import run_jobs\n"
        "def sleep(folder):\n"
        "    open(os.path.join(folder, str(os.getpid())), 'w').close()\n"
        "    time.sleep(600)\n"
        f"if __name__ == '__main__': run_jobs('test', sleep, [{str(tmp_path)!r}] * 4, total=4, workers=2)\n"
    )
    command = subprocess.Popen([sys.executable, str(tmp_path / "sleepers.py")], stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2)
    command.kill()
    command.wait()
    workers = [int(path.name) for path in tmp_path.glob("[0-9]*")]
    wait_for(lambda: not any(map(alive, workers)))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may be kept until its new parent asks for its status."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_no_language_counts_twice():
    """The first grades of two tasks are one language, of which a budget has one."""
    texts = [
        TASKS[task].language(1).draw(2, 99, torch.Generator().manual_seed(0)).byte_ids for task in ("delay", "noise")
    ]
    assert torch.equal(*texts)
    options = suite.read_suite_options(["entries=uniform", "seeds=1"])
    for budget, noise, jobs in (("small", {2, 3}, 2 * 20), ("full", {2, 3, 4}, 2 * 39)):
        cells = [job.cell for job in suite.suite_jobs(replace(options, budget=budget))]
        assert {cell.grade for cell in cells if cell.task == "noise"} == noise and len(cells) == jobs


def test_switch_changes_after_its_share_of_the_run():
    for entry in ("uniform", "group_mean@0.9"):
        config = cell_config("switch", 4, entry, flops=2e9, overrides=["data.num_rows=4", "data.num_steps=64"])
        trainer, _ = make_trainer(config)
        trainer.run()
        source = getattr(trainer.env.source, "source", trainer.env.source)
        assert config.data.options["after"] == pytest.approx(0.75 * drawn_bytes(config), abs=1)
        assert source.drawn == pytest.approx(drawn_bytes(config), rel=0.15)


def test_the_oracle_draws_the_best_boundaries_of_both_languages_and_uniform_meets_the_rate():
    model = UNet(preset("tiny", window=4))
    source = switched_source(3, 200)
    for language in (source.first, source.second):
        byte_ids = language.draw(4, 65, torch.Generator().manual_seed(0)).byte_ids
        drawn = Oracle(model, "switch", 3)(torch.zeros(4, 65, 1), byte_ids).boundaries
        assert (drawn == language.optimal_boundaries(byte_ids)).all()
    for rate, steps in ((0.00758, 512), (0.0833, 128)):
        drawn = evenly_spaced(torch.arange(1, steps)[:, None], rate=even_rate(rate, steps))
        assert abs(int(drawn.sum()) - rate * (steps - 1)) <= 0.5


def test_the_command_trains_missing_cells_and_reports_those_that_fail(tmp_path, capsys, monkeypatch):
    arguments = [*TINY, "entries=random", f"out={tmp_path}"]
    assert suite.main(arguments) == 0
    files = sorted(tmp_path.glob("cells/*.json"))
    assert len(files) == 2 * 3 and all(file.name.startswith("scratch2-") for file in files)
    before = [file.read_bytes() for file in files]
    cell = json.loads(before[0])
    assert cell["total_flops"] >= 3e8 and cell["looks"][-1]["total_flops"] == cell["total_flops"]
    page = (tmp_path / "suite.md").read_text()
    assert page.strip() in capsys.readouterr().out and f"`rltok suite {' '.join(arguments)}`" in page

    train = suite.train_cell

    def broken(job: suite.CellJob) -> dict[str, Any]:
        if job.cell.task == "delay":
            raise RuntimeError("broken on purpose")
        return train(job)

    monkeypatch.setattr(suite, "train_cell", broken)
    assert suite.main([*arguments, "entries=random,paper"]) == 1
    error = capsys.readouterr().err
    assert "2 of 8 cells to train, 1 at a time" in error and "failed: delay-1 paper seed 0: RuntimeError" in error
    assert "are missing: 1, 1 of which failed.**" in (tmp_path / "suite.md").read_text()
    monkeypatch.setattr(suite, "train_cell", None)
    assert suite.main(arguments) == 0, "nothing is missing"
    assert [file.read_bytes() for file in files] == before


def test_every_entry_has_a_style_and_further_ones_repeat_them():
    """A page that cannot be drawn would fail after hours of training."""
    styles = entry_styles([*FIXED, *(f"{name}@0.9" for name in ESTIMATORS)])
    assert len({(style.colour, style.dashes) for style in styles.values()}) == len(styles) > 23  # lines have no markers
    more = entry_styles([f"a:B@{number / 100}" for number in range(1, 60)])
    assert len(more) == 59 and len(set(map(repr, more.values()))) == MOST_RUNS


def test_the_two_best_entries_have_more_seeds(tmp_path, capsys, monkeypatch):
    """By interquartile means of the first seeds; the references have the seeds of the best."""
    shares = {"oracle": 0.9, "uniform": 0.5, "random": 0.4, "paper": 0.7, "ours": 0.8, "batch_mean@0.9": 0.6}
    trained: list[str] = []

    def train(job: suite.CellJob) -> str:
        trained.append(str(job))
        cell = _cell(job.cell.task, job.cell.entry, job.cell.seed, shares[job.cell.entry] + 0.01 * job.cell.seed)
        job.file.parent.mkdir(parents=True, exist_ok=True)
        job.file.write_text(json.dumps(cell))
        return ""

    monkeypatch.setattr(suite, "_train", train)
    first = [*TINY[:2], "seeds=2", "workers=1", "entries=random,paper,ours", "estimator=batch_mean", f"out={tmp_path}"]
    assert suite.main(first) == 0 and len(trained) == 2 * 2 * 6
    trained.clear()
    assert suite.main([*first, "best_seeds=4"]) == 0
    further = {tuple(name.split(" seed ")) for name in trained}
    expected = {(f"{task}-1 {entry}", seed) for task in ("delay", "switch") for entry in shares for seed in "23"}
    assert further == {pair for pair in expected if pair[0].split()[1] not in ("random", "batch_mean@0.9")}
    page = (tmp_path / "suite.md").read_text()
    assert "and 2 seeds." in page and "would be trained per core-hour" in page and "missing" not in page
    assert "| `ours` | 0.763 [0.763, 0.763] |" not in page and "IQM, seeds 0 to 1 | IQM, seeds 2 to 3" in page
    further = page.partition("## Further seeds")[2]
    assert "`ours` minus `paper`: 0.25 ± 0.00." in further and "`random`" not in further
    saved = json.loads((tmp_path / "suite.json").read_text())
    assert {*saved["further"]} == {"oracle", "uniform", "paper", "ours"} and len(saved["cells"]["data"]) == 24 + 16
    assert [saved["summary"][entry]["cells"] for entry in ("ours", "random")] == [4, 4], "equal seeds for all"
    trained.clear()
    assert suite.main([*first, "best_seeds=3", "best=3"]) == 0
    assert trained == [f"{task}-1 batch_mean@0.9 seed 2" for task in ("delay", "switch")]
    next(tmp_path.glob("cells/*delay-1-paper-1*")).unlink()
    monkeypatch.setattr(suite, "_train", None)
    capsys.readouterr()
    assert suite.main([*first, "best_seeds=4"]) == 1
    assert "best_seeds waits for the 1 cells that are missing" in capsys.readouterr().err
    monkeypatch.setattr(suite, "_train", train)
    assert suite.main([*first, "best_seeds=4"]) == 0
    trained.clear()
    assert suite.main([*first, "best_seeds=4"]) == 0 and not trained
    assert suite.main([*first, "best_seeds=2"]) == 2
    assert "best_seeds must be 0 or above seeds=2, got 2" in capsys.readouterr().err


def test_two_workers_write_what_one_writes(tmp_path, monkeypatch):
    monkeypatch.undo()  # workers import the module anew

    def train(workers: int) -> list[Any]:
        out = tmp_path / str(workers)
        options = [*TINY, "tasks=delay", "entries=oracle", f"workers={workers}", f"out={out}"]
        assert suite.main(options) == 0
        cells = [json.loads(file.read_text()) for file in sorted(out.glob("cells/*"))]
        return [cell["final"] | {"shares": [look["share"] for look in cell["looks"]]} for cell in cells]

    assert train(1) == train(2)


def test_options_and_their_errors(tmp_path, capsys, monkeypatch):
    (tmp_path / "my_file.py").write_text("from rltok_rl.objectives import ReturnEstimator as Mine\n")
    monkeypatch.chdir(tmp_path)
    options = suite.read_suite_options(["estimator=local_flips,my_file:Mine", "gamma=0.9,0.99"])
    entries = suite.suite_entries(options)
    assert entries[:3] == ["oracle", "uniform", "local_flips@0.9"] and len(entries) == 6
    assert "my_file:Mine@0.99" in entries
    everything = suite.suite_entries(suite.SuiteOptions())
    assert len(everything) == len(FIXED) + len(ESTIMATORS) and "batch_mean@0.9" in everything
    read = suite.read_suite_options
    chosen = suite.suite_jobs(read([*TINY, "entries=paper", "first_seed=100", "seeds=2"]))
    assert {job.cell.seed for job in chosen} == {job.config.seed for job in chosen} == {100, 101}
    refused(
        (lambda: read(["tasks=toy"]), ValueError, r"tasks must be among .*, got \['toy'\]"),
        (lambda: read(["budget=big"]), ValueError, r"budget must be one of \['small', 'full'\], got 'big'"),
        (lambda: read(["grades=5"]), ValueError, r"grades must be among \[1, 2, 3, 4\], got \[5\]"),
        (lambda: read(["estimator=paper", "gamma=0.8"]), ValueError, r"estimator must be among .*, got 'paper'"),
        (lambda: read(["entries=batch_mean"]), ValueError, "entries must be among .*, got 'batch_mean'"),
        (lambda: read(["gamma=1.5"]), ValueError, r"gamma must lie in \[0, 1\], got '1.5'"),
        (lambda: read(["entries=paper", "gamma=0.5"]), ValueError, r"gamma belongs to estimator, got \[0.5\]"),
        (lambda: read(["seeds=0"]), ValueError, "seeds must be at least 1, got 0"),
        (lambda: read(["flops=0"]), ValueError, "flops must be positive, got 0"),
        (lambda: read(["sedes=1"]), ValueError, "options must be among .*, got 'sedes'; did you mean 'seeds'"),
        (lambda: read(["seeds=x"]), ValueError, "seeds has a value of the wrong type: Value 'x'"),
        (lambda: read(["tasks=dlay"]), ValueError, "did you mean 'delay'"),
        (lambda: read(["estimator=local_flip"]), ValueError, "did you mean 'local_flips'"),
        (lambda: read(["estimator=nope:Nope"]), ImportError, "there is no 'nope'"),
        (lambda: read(["entries=our"]), ValueError, "got 'our'; did you mean 'ours'"),
        *(
            (lambda text=text: read([f"overrides={text}"]), ValueError, f"to the suite.*got '{text[:-2]}'")
            for text in ("estimator.gamma=1", "seed=7", "estimator=x")
        ),
    )
    assert suite.main(["seeds=0"]) == 2 and "rltok suite: seeds" in capsys.readouterr().err
