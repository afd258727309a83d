"""Entries and cells of the boundary suite: every entry trains, and is evaluated at its target on its own texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.agents.segmenters import SegmenterActor, make_segmenter
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies import suite
from rltok_rl.experiments.studies.equal_rates import OffsetActor, calibrate_threshold, policy_at_rate
from rltok_rl.experiments.studies.learn_runs import evaluate, sample_boundaries, train_and_evaluate
from rltok_rl.experiments.studies.suite_entries import (
    ESTIMATORS,
    FIXED,
    RECIPES,
    Even,
    Oracle,
    cell_config,
    drawn_bytes,
    entry_overrides,
)
from rltok_rl.experiments.studies.suite_options import read_suite_options

from rltok_rl.data.languages import TASKS
from rltok_rl.data.languages.suite_tasks import switched_source
from rltok_rl.models import UNet, preset

from ..each import each
from .suite_cells import SMALL, TINY


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    monkeypatch.setattr(suite, "EVALUATION_BYTES", 256)


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
    options = read_suite_options([*TINY[:2], "seeds=2", "flops=3e8", SMALL, "entries=random", f"out={tmp_path}"])
    cells = {}
    for job in suite.suite_jobs(options):
        if job.cell.task == "delay":
            cells[job.cell.entry, job.cell.seed] = suite.train_cell(job)
    assert len(cells) == 6 and not any("offset" in cell for cell in cells.values())  # nothing is learned
    assert cells["random", 0]["final"]["rate"] != cells["random", 1]["final"]["rate"]
    options = read_suite_options([*TINY, "estimator=batch_mean", f"out={tmp_path}"])
    learned = next(job for job in suite.suite_jobs(options) if job.cell.entry == "batch_mean@0.9")
    assert "offset" in suite.train_cell(learned)


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
    speed = whole.model.overrides["boundary_scale"]
    assert entry.partition("@")[0] in RECIPES or speed == 1.0  # policies learn at one speed


def test_recipes_take_any_discount():
    plain, other = cell_config("nest", 3, "unscaled", flops=1e9), cell_config("nest", 3, "unscaled@0.95", flops=1e9)
    assert (plain.estimator.gamma, other.estimator.gamma) == (0.9, 0.95)
    other.estimator.gamma = 0.9
    assert other == plain == cell_config("nest", 3, "unscaled@0.9", flops=1e9)
    for name in ("ours@1.5", "ours@", "ours@much", "paper@0.9@0.9", "@0.9"):
        with pytest.raises(ValueError, match="entries must be among|gamma must lie in"):
            entry_overrides(name)
    with pytest.raises(ValueError, match="did you mean 'ours@0.95'"):
        entry_overrides("our@0.95")


def test_overrides_reach_recipes_too():
    options = ["model.overrides.num_lags=4", "loss.entropy=0.01", "rate.control=pi"]
    plain, changed = (cell_config("nest", 3, "unscaled", flops=1e9, overrides=given) for given in ([], options))
    assert (plain.model.overrides["num_lags"], changed.model.overrides["num_lags"]) == (8, 4)
    assert (changed.loss.entropy, changed.rate.control) == (0.01, "pi")
    given = cell_config("nest", 3, "unscaled", flops=1e9, overrides=["+baseline.options.num_steps=5"])
    assert given.baseline.options == {"num_steps": 5}  # refused when the run is built: no option of its baseline
    assert changed.model.overrides["encoder_norm"] is plain.model.overrides["encoder_norm"] is False


def test_bytes_of_every_task_can_be_shown():
    """Fillers of ``noise`` 4 are not ASCII: its cells were trained, and failed at their end."""
    torch.manual_seed(0)
    model = UNet(preset("tiny"))
    for name, task in TASKS.items():
        for grade in (1, 4):
            shown = sample_boundaries(model, task.language(grade))
            assert len(shown["text"]) == len(shown["boundaries"]) == len(shown["best"]), (name, grade)


def test_no_language_counts_twice():
    """The first grades of two tasks are one language, of which a budget has one."""
    texts = [
        TASKS[task].language(1).draw(2, 99, torch.Generator().manual_seed(0)).byte_ids for task in ("delay", "noise")
    ]
    assert torch.equal(*texts)
    options = read_suite_options(["entries=uniform", "seeds=1"])
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
    for rate, rows, steps in ((0.00758, 16, 512), (0.0833, 8, 128), (0.002, 4, 64)):
        drawn = Even(model, rate)(torch.zeros(rows, steps, 1), torch.zeros(rows, steps, dtype=torch.long)).boundaries
        counts = drawn[:, 1:].sum(1)
        assert abs(int(counts.sum()) - max(1.0, rate * (steps - 1)) * rows) <= 0.5 and counts.max() - counts.min() <= 1
