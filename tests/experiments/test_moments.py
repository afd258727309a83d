"""The study of estimators at several moments of a training."""

from __future__ import annotations

import json

import pytest
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies import moments
from rltok_rl.experiments.studies.moments import Options, main, read_candidates, split_arguments

TRAINING = ["experiment=recall", "recipe=ours", "compute.threads=1", "optim.total_bytes=20_000"]
QUICK = ["num_batches=3", "reference_batches=3", "warm_up=1", "estimators=[paper@0.9,critic_td@0.9,token_gain]"]


def test_measures_at_its_moments_and_leaves_the_training_as_it_is(tmp_path, monkeypatch, capsys):
    trainers = []

    def remember(config):
        trainers.append(make_trainer(config)[0])
        return trainers[-1], make_trainer(config)[1]

    monkeypatch.setattr(moments, "make_trainer", remember)
    main([*TRAINING, *QUICK, "moments=[0,0.5,1.0]", f"out={tmp_path}"])
    report = json.loads((tmp_path / "moments.json").read_text())
    trainer = make_trainer(compose_config(TRAINING))[0]
    metrics = []
    trainer.run(metrics.append)
    at = [entry["updates"] for entry in report["moments"]]
    assert at[0] == 0 and at[-1] == len(metrics) and trainer.bytes_per_update * at[1] >= 10_000, at
    assert trainer.bytes_per_update * (at[1] - 1) < 10_000
    for entry in report["moments"][1:]:
        assert entry["metrics"]["bits_per_byte"] == metrics[entry["updates"] - 1]["bits_per_byte"]
    for name, weight in trainer.model.state_dict().items():
        assert weight.equal(trainers[0].model.state_dict()[name]), name
    rows = [{row["name"]: row for row in entry["rows"]} for entry in report["moments"]]
    assert all(set(each) == {"paper@0.9", "critic_td@0.9", "token_gain"} for each in rows)
    assert rows[0]["paper@0.9"]["ratio"] != rows[-1]["paper@0.9"]["ratio"]
    assert all(each["paper@0.9"]["cost"] == 1 < each["token_gain"]["cost"] for each in rows)
    text = capsys.readouterr().out
    assert "## After 50% of the training" in text and "untrained" in text and "| `critic_td@0.9` |" in text


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
        ({"num_batches": 2}, "num_batches must be at least 3, got 2"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        read_candidates(Options(**options))


def test_a_run_without_a_policy_gradient_is_refused(tmp_path):
    for words, message in (
        (["actor=uniform"], "must have a policy that learns from rewards"),
        (["data.num_rows=6"], "data.num_rows must be a multiple of 4, got 6"),
    ):
        with pytest.raises(ValueError, match=message):
            main([*TRAINING, *words, *QUICK, f"out={tmp_path}"])
    assert not list(tmp_path.iterdir())
