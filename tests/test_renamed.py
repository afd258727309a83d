"""Old names of modules, functions, classes and option words work, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from rltok_rl.agents import RolloutPolicy
from rltok_rl.experiments.commands.overrides import HYPHENS, current_overrides, read_command_line
from rltok_rl.experiments.commands.schema import choices
from rltok_rl.experiments.run_config import GROUPS, WHOLE
from rltok_rl.experiments.studies.candidates import CANDIDATES
from tensordict import TensorDict

from rltok_rl import objectives
from rltok_rl.foreign import read_config_file
from rltok_rl.functional import baselines, scripts
from rltok_rl.objectives import BASELINE_NAMES, ESTIMATORS, estimators
from rltok_rl.renamed import MODULES, WORDS, RenamedKeys, current_word, renamed_word

from .each import each


@each(old=MODULES)
def test_old_module_names_warn_and_work(old):
    sys.modules.pop(old, None)
    new = importlib.import_module(MODULES[old])
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MODULES[old]}"):
        assert importlib.import_module(old) is new
    assert new.__spec__.name == new.__name__ == MODULES[old]


def test_every_old_word_has_a_new_one_that_is_used():
    current = {"baseline": BASELINE_NAMES, "estimator": ESTIMATORS, "candidate": CANDIDATES}
    for kind, words in WORDS.items():
        assert set(words.values()) <= set(current[kind]) and not set(words) & set(current[kind])
        for old, new in words.items():
            assert current_word(kind, old) == current_word(kind, new) == new
            with pytest.warns(DeprecationWarning, match=f"{kind} '{old}' is now '{new}'") as warned:
                assert renamed_word(kind, old) == torch.no_grad()(renamed_word)(kind, old) == new
            assert [warning.filename for warning in warned] == [__file__] * 2
        assert renamed_word(kind, "none") == "none"  # without a warning


def test_old_words_on_the_command_line_are_replaced_with_one_line(capsys):
    old = ["estimator=return,flips", "baseline.name=siblings", "+baseline=normalised", "estimators=[flips, siblings_4]"]
    new = ["estimator=discounted_return,local_flips", "baseline.name=group_mean", "+baseline=z_score"]
    assert current_overrides([*old, "out=return"]) == [*new, "estimators=[local_flips, group_mean_4]", "out=return"]
    assert "note: baseline.name=siblings is now baseline.name=group_mean\n" in capsys.readouterr().err
    assert current_overrides(old)[:3] == new and not capsys.readouterr().err  # said once
    for argument in (f"{group}={old}" for group in ("estimator", "baseline") for old in WORDS[group]):
        if not argument.endswith(("_centred", "z_normalised")):  # these were names, never choices
            assert read_command_line("train", [argument]).arguments == current_overrides([argument])


def test_hyphens_and_underscores_are_the_same_in_choices(capsys):
    for group in (*GROUPS, *WHOLE):
        for word in choices(group):
            assert ("_" if group in HYPHENS else "-") not in word, f"{group}={word}"
            other = word.replace("-", "_") if group in HYPHENS else word.replace("_", "-")
            assert current_overrides([f"{group}={other}"]) == [f"{group}={word}"]
    custom = ["segmenter.name=my_file:My_Class", "model.preset=${oc.env:MY_PRESET}"]
    assert current_overrides(custom) == custom
    assert "note: experiment=own_text is now experiment=own-text" in capsys.readouterr().err


def test_old_words_in_the_config_of_a_run_are_replaced_without_a_word(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("estimator: {name: return}\nbaseline: {name: group_centred, rows_per_text: 2}\nseed: 0\n")
    config = read_config_file(path)
    assert (
        config.baseline == {"name": "group_mean", "rows_per_text": 2} and config.estimator.name == "discounted_return"
    )
    assert capsys.readouterr() == ("", "")


def test_old_names_of_functions_and_classes_work():
    for old, new in {"batch_centred": "batch_mean", "group_centred": "group_mean", "z_normalised": "z_score"}.items():
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            assert getattr(baselines, old) is getattr(baselines, new)
    with pytest.warns(DeprecationWarning, match="script_told is now script_at"):
        assert scripts.script_told is scripts.script_at
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        baselines.nothing  # noqa: B018
    keys = RenamedKeys("baseline", {"group_mean": 1})
    with pytest.warns(DeprecationWarning, match="'siblings' is now 'group_mean'"):
        assert "siblings" in keys and keys["siblings"] == 1
    with pytest.raises(KeyError):
        keys["normalised"]
    for old, options in (("GroupCentred", {"group_size": 2}), ("RunningMeanReturn", {"num_steps": 3})):
        with pytest.warns(DeprecationWarning, match=f"{old} is now ReturnEstimator"):
            assert type(getattr(objectives, old)(gamma=0.5, **options)) is objectives.ReturnEstimator


def test_baselines_that_were_estimators_work():
    reward = torch.randn(4, 3, 1)
    rollout = TensorDict({"next": {"reward": reward, "done": torch.zeros(4, 3, 1, dtype=torch.bool)}}, [4, 3])
    more = {"group_centred": {"group_size": 2}, "running_mean": {"num_steps": 3}}
    for old, options in estimators.OLD_ESTIMATORS.items():
        options = {**options, **more.get(old, {})}
        expected = objectives.make_estimator("discounted_return", gamma=0.9, **options)(rollout.clone())["advantage"]
        given = {"gamma": 0.9, **more.get(old, {})}
        with pytest.warns(DeprecationWarning, match=f"'{old}' is now 'discounted_return' with baseline=") as warned:
            made = [
                objectives.make_estimator(old, **given),
                objectives.BoundaryReinforceLoss(old, **given)._value_estimator,
                objectives.JointLoss.paper(target_rate=0.2, estimator=old, **given).terms["policy"]._value_estimator,
                objectives.BoundaryClipPPOLoss(RolloutPolicy()).make_value_estimator(old, **given)._value_estimator,
            ]
        assert {warning.filename for warning in warned} == {__file__}
        for estimator in made:
            assert torch.equal(estimator(rollout.clone())["advantage"], expected), old
    with pytest.raises(ValueError, match="'leave_one_out' is a baseline itself, got baseline='none'"):
        objectives.make_estimator("leave_one_out", baseline="none")


def test_checkpoints_of_a_running_mean_that_was_an_estimator_load():
    made = objectives.ReturnEstimator(gamma=0.9, baseline="running_mean", num_steps=3)
    state = made.state_dict()
    state = {key.removeprefix("baseline."): value + 1 if "baseline" in key else value for key, value in state.items()}
    made.load_state_dict(state)
    assert made.baseline.total.tolist() == [1.0, 1.0, 1.0]
