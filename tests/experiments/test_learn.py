"""Boundaries are learned where the best ones are known, by the code of the study; and the study saves its results."""

from __future__ import annotations

import json
from typing import Any

import matplotlib.image
import pytest
import torch
from rltok_rl.experiments.studies import learn
from rltok_rl.experiments.studies.learn_runs import SYSTEMS, evaluate, fingerprint, run_config, train_and_evaluate
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rltok_rl.data.languages import Recall
from rltok_rl.models import UNet, preset

# One value of two, due as soon as it is out of sight: learned in seconds.
EASY = (
    "++data.options={values: '01', fillers: a, shortest_gap: 2, mean_gap: 2.0, window: 2}",
    "++model.overrides={window: 2, target_rate: 0.2, width: 32, boundary_scale: 0.25}",
    "data.num_steps=48",
    "optim.total_bytes=200_000",
    "optim.warm_up_bytes=8_000",
    "optim.lr=1.0e-2",
)
TINY = ["data.num_rows=4", "data.num_steps=32", "optim.total_bytes=256", "optim.warm_up_bytes=0"]


def test_the_learned_policy_beats_fixed_boundaries_and_an_inverted_gradient_fails():
    """With the sign of the policy gradient inverted, boundaries go where they are worth least."""

    def train(system: str, *overrides: str) -> dict[str, float]:
        config = run_config("recall", system, seed=0, overrides=[*EASY, *overrides])
        return train_and_evaluate(config, num_evaluations=1, num_rows=32, num_batches=8)["final"]

    learned = train("learned")
    assert learned["hits"] > learned["elsewhere"] + 0.3 and learned["share"] > 0.6, learned
    for system in ("uniform", "random"):
        fixed = train(system, f"actor.rate={learned['rate']:.2f}")
        assert fixed["share"] < learned["share"] - 0.2, (system, fixed, learned)
    inverted = train("learned", "loss.policy=-0.1")
    assert inverted["hits"] < inverted["elsewhere"], inverted


class _Best(nn.Module):
    """Draws after a byte that follows ``#``, and at half of the other places."""

    def forward(self, byte: Tensor, position: Tensor, forced: Tensor) -> Tensor:
        before = torch.nn.functional.pad(byte[:, :-1], (1, 0))
        return ((before == ord("#")) | (position.squeeze(-1) % 2 == 0) | forced).long()


def test_boundaries_are_counted_against_the_best_ones():
    actor: Any = TensorDictModule(_Best(), ["byte", "position", "forced"], ["action"])
    actor.draws_windows, actor.draws_at_random = True, False
    model = UNet(preset("tiny", window=4))
    metrics = evaluate(model, Recall(), actor, num_rows=16, num_steps=64, num_batches=2)
    assert metrics["hits"] == metrics["in_sight"] == 1.0 and 0.4 < metrics["elsewhere"] < 0.6
    assert metrics["elsewhere"] < metrics["rate"] < metrics["elsewhere"] + 0.1 and model.training


@pytest.fixture
def small_evaluation(monkeypatch):
    monkeypatch.setitem(train_and_evaluate.__kwdefaults__, "num_rows", 8)
    monkeypatch.setitem(train_and_evaluate.__kwdefaults__, "num_batches", 2)


@pytest.mark.usefixtures("small_evaluation")
def test_a_finished_run_is_evaluated_on_other_texts():
    result = train_and_evaluate(run_config("recall", "learned", seed=0, overrides=TINY), num_evaluations=2)
    assert [one["bytes"] for one in result["looks"]] == [0, 128, 256] and result["bytes"] == 256
    assert result["cpu_seconds"] > 0 and set(result["sample"]) == {"text", "best", "boundaries", "probabilities"}
    assert result["looks"][-1]["share"] != result["final"]["share"]
    uniform = run_config("recall", "uniform", seed=0, overrides=TINY)
    assert "sample" not in train_and_evaluate(uniform, num_evaluations=1)


def test_systems_differ_in_what_they_name_and_in_nothing_else():
    learned, *others = (run_config("recall", name, seed=1, rate=0.3) for name in SYSTEMS)
    for config in others:
        assert fingerprint(config) != fingerprint(learned)
        assert (config.data, config.optim, config.seed) == (learned.data, learned.optim, learned.seed)
        assert config.model.preset == learned.model.preset
        assert 0.3 == (config.model.overrides["target_rate"] if config.actor.rate is None else config.actor.rate)


@pytest.mark.usefixtures("small_evaluation")
def test_the_command_resumes_redraws_and_reports_whether_the_goal_was_met(tmp_path, capsys, monkeypatch):
    options = [f"out={tmp_path}", "languages=[recall]", "seeds=2", "other_seeds=1", "looks=1"]
    options += ["systems=[learned,random]", f"overrides=[{','.join(TINY)}]"]
    assert learn.main(options) == 1  # nothing is learned from 256 bytes
    assert "0 of 2 seeds" in capsys.readouterr().out
    first = json.loads((tmp_path / "learn.json").read_text())
    assert [(one["system"], one["seed"]) for one in first["courses"]] == [("learned", 0), ("learned", 1), ("random", 0)]
    assert first["courses"][2]["rate_given"] == learn.matched_rate(first["courses"], "recall")
    assert (tmp_path / "learn.png").stat().st_size > 2_500

    trained = []

    def recorded(config: Any, **options: Any) -> dict[str, Any]:
        trained.append((config.actor.name, config.seed))
        return train_and_evaluate(config, **options)

    monkeypatch.setattr(learn, "train_and_evaluate", recorded)
    first["courses"].pop()
    (tmp_path / "learn.json").write_text(json.dumps(first))
    learn.run(learn.read_learn_options(options), "again")
    assert trained == [("random", 0)]
    trained.clear()
    changed = [*options, "seeds=1", f"overrides=[{','.join([*TINY, 'optim.lr=0.1'])}]"]
    learn.run(learn.read_learn_options(changed), "other options")
    assert trained == [("learned", 0), ("random", 0)]


def test_a_row_of_the_table_and_the_verdict_by_hand():
    metrics = {"share": 0.96, "standard_error": 0.0, "rate": 0.1, "hits": 0.9, "in_sight": 1.0, "elsewhere": 0.05}
    good = {"language": "recall", "system": "learned", "seed": 0, "cpu_seconds": 100.0, "final": metrics}
    results = [good, {**good, "cpu_seconds": 181.0}, {**good, "final": {**metrics, "share": 0.94}}]
    assert [learn.passed(one) for one in results] == [True, False, False]
    assert learn.verdict(results, "recall").startswith("recall: 1 of 3 seeds at or above 0.95")
    assert "| 3 | 0.953 | 0.940 | 0.100 | 0.900 | 1.00 | 0.0500 | 127 (at most 181) |" in learn.table(results)


def test_the_learned_policies_come_first_and_options_are_checked(tmp_path):
    cells = learn.grid(learn.read_learn_options(["seeds=2", "other_seeds=1"]))
    assert [cell[1] for cell in cells].index("uniform") == [cell[1] for cell in cells].count("learned") == 4
    assert len(cells) == len(set(cells)) == 4 + 2 * (len(SYSTEMS) - 1)
    for option, message in (
        ("systems=[mine]", "systems must be among .*, got \\['mine'\\]"),
        ("systems=[random]", "systems must hold 'learned'"),
        ("seeds=0", "seeds must be at least 1, got 0"),
        ("sedes=1", "options must be among .*'other_seeds'.*, got 'sedes'; did you mean 'seeds'"),
    ):
        with pytest.raises(ValueError, match=message):
            learn.read_learn_options([option])
    with pytest.raises(ValueError, match="system must be one of .*, got 'mine'"):
        run_config("recall", "mine", 0)
    with pytest.raises(ValueError, match="results must hold at least one run, got none"):
        learn.draw_learning([], tmp_path / "none.png")


def test_the_legend_stays_within_the_figure(tmp_path):
    evaluations = [{"bytes": done, "share": 0.5} for done in (0, 1000)]
    results = [
        {"language": "recall", "system": system, "seed": seed, "looks": evaluations, "final": {"share": 0.5}}
        | {"sample": {"text": "#5a", "best": "110", "probabilities": [1.0, 0.9, 0.1]}}
        for system in SYSTEMS
        for seed in (0, 1)
    ]
    pixels = matplotlib.image.imread(learn.draw_learning(results, tmp_path / "two.png"))[..., :3]
    legend = pixels[-40:]  # [rows, columns, 3]
    assert legend.min() < 0.5, "there should be a legend at the bottom"
    assert (legend[:, -4:] == 1).all(), "it is cut off at the right edge"
