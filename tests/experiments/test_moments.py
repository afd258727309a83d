"""The study of estimators at several moments of a run."""

from __future__ import annotations

import json

import pytest
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.reports.markdown import rounded
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies import moments
from rltok_rl.experiments.studies.moments import Options, main, read_candidates, split_arguments

TRAINING = ["experiment=recall", "recipe=ours", "compute.threads=1", "optim.total_bytes=20_000"]
BOOK = ["data.source=python-docs", "model.preset=tiny", "recipe=ours", "data.num_steps=64", "data.num_rows=8"]
BOOK += ["optim.total_bytes=20_000", "optim.warm_up_bytes=1000", "compute.threads=1"]
QUICK = ["num_batches=3", "reference_batches=3", "warm_up=1", "estimators=[paper@0.9,critic_td@0.9,token_gain]"]


@pytest.mark.parametrize("order", ["random", "epochs"])
def test_measures_at_its_moments_and_leaves_the_run_as_it_is(tmp_path, monkeypatch, capsys, order):
    training, trainers = TRAINING if order == "random" else [*BOOK, f"data.order={order}"], []

    def remember(config):
        trainer, texts = make_trainer(config)
        trainers.append(trainer)
        return trainer, texts

    monkeypatch.setattr(moments, "make_trainer", remember)
    main([*training, *QUICK, "moments=[0,0.5,1.0]", f"out={tmp_path}"])
    report = json.loads((tmp_path / "moments.json").read_text())
    trainer, texts = make_trainer(compose_config(training))
    assert bool(texts.train.state_dict()) == (order == "epochs")  # the source has a position
    metrics = []
    trainer.run(metrics.append)
    at = [entry["updates"] for entry in report["moments"]]
    assert at[0] == 0 and at[-1] == len(metrics) and trainer.bytes_per_update * at[1] >= 10_000, at
    assert trainer.bytes_per_update * (at[1] - 1) < 10_000
    for entry in report["moments"][1:]:
        assert entry["metrics"]["bits_per_byte"] == rounded(metrics[entry["updates"] - 1]["bits_per_byte"])
    for name, weight in trainer.model.state_dict().items():
        assert weight.equal(trainers[0].model.state_dict()[name]), name
    rows = [{row["name"]: row for row in entry["rows"]} for entry in report["moments"]]
    assert all(set(each) == {"paper@0.9", "critic_td@0.9", "token_gain"} for each in rows)
    assert rows[0]["paper@0.9"]["ratio"] != rows[-1]["paper@0.9"]["ratio"]
    assert all(each["paper@0.9"]["cost"] == 1 < each["token_gain"]["cost"] for each in rows)
    text = capsys.readouterr().out
    assert "## After 0.5 of the run" in text and "untrained" in text and "| `critic_td@0.9` |" in text


def test_moments_within_one_update_share_its_measurement(tmp_path):
    main([*TRAINING, *QUICK, "estimators=[paper]", "moments=[0.98,0.99,1.0]", f"out={tmp_path}"])
    entries = json.loads((tmp_path / "moments.json").read_text())["moments"]
    assert [entry["moment"] for entry in entries] == [0.98, 0.99, 1.0]
    assert entries[0]["rows"] == entries[2]["rows"] and entries[0]["updates"] == entries[2]["updates"]


def test_options_are_separated_from_those_of_the_training():
    options, overrides = split_arguments(["experiment=recall", "moments=[0.5]", "seed=3", "out=there"])
    assert (options.moments, options.out, overrides) == ([0.5], "there", ["experiment=recall", "seed=3"])
    assert read_candidates(Options(estimators=["paper", "token_gain@0.9"])) == {
        "paper": ("paper", 1.0),
        "token_gain@0.9": ("token_gain", 0.9),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moments": []}, r"moments must increase, got \[\]"),
        ({"moments": [0.5, 0.2]}, r"moments must increase, got \[0.5, 0.2\]"),
        ({"moments": [0.5, 1.5]}, r"moments must lie in \[0, 1\], got \[0.5, 1.5\]"),
        ({"estimators": ["best"]}, "estimators must be among .* got 'best'"),
        ({"estimators": ["paper@2"]}, "discount in \\[0, 1\\] after @, got 'paper@2'"),
        ({"estimators": ["paper@x"]}, "discount in \\[0, 1\\] after @, got 'paper@x'"),
        ({"estimators": []}, r"estimators must be different names, at least one, got \[\]"),
        ({"estimators": ["paper", "paper"]}, "estimators must be different names"),
        ({"num_batches": 2}, "num_batches must be at least 3, got 2"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        read_candidates(Options(**options))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["actor=uniform", "actor.warm_start_bytes=0"], "actor and segmenter must be learned, got 'uniform'"),
        (["data.num_rows=6"], "data.num_rows must be a multiple of 4 with these estimators, got 6"),
        (["data.num_rows=12", "estimators=[group_mean_8]"], "must be a multiple of 8 with these estimators, got 12"),
        (
            ["estimator.price=0.1", "changes=[estimator.price]"],
            "estimator.price 0 and actor.rates null, got 'early_exit', 0.1 and None",
        ),
        (["optim.lr=-1"], "optim.lr must"),
    ],
)
def test_a_run_that_cannot_be_measured_is_refused_before_it_begins(tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        main([*TRAINING, *QUICK, *words, f"out={tmp_path / 'out'}"])
    assert not list(tmp_path.iterdir())
