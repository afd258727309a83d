"""Recipes: complete, equal to what is composed, and not changed by accident."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments.commands.run_checks import read_run_options
from rltok_rl.experiments.commands.schema import CONF, choices
from rltok_rl.experiments.compare.systems import BY_RECIPE, check_system, system_config
from rltok_rl.experiments.recipes import RECIPES, SIZES, check_recipe, describe_recipe, differences, recipe_settings
from rltok_rl.experiments.run_config import GROUPS
from rltok_rl.experiments.runs.build import model_config
from rltok_rl.experiments.runs.segmenters import model_overrides
from rltok_rl.experiments.runs.valid_options import check_options

from rltok_rl.models import UNetConfig, preset

from .configured import configured

UNUSED = {"loss.clip_low", "loss.clip_high", "loss.max_weight", "loss.critic"}
"""Options of other objectives."""
MODEL = "model.overrides."


def fields_of(config):
    return model_config(config).to_dict()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_complete_and_is_what_hydra_composes(name):
    settings, config = recipe_settings(name), configured(f"recipe={name}", "experiment=books", "data.source=books")
    assert all(setting.source for setting in settings.values())
    for group in ("estimator", "baseline", "rate", "loss"):
        options = {f"{group}.{field.name}" for field in fields(GROUPS[group])}
        assert options - UNUSED == {option for option in settings if option.startswith(f"{group}.")}
    for option, setting in settings.items():
        field = option.removeprefix(MODEL)
        value = attrgetter(option)(config) if field == option else fields_of(config)[field]
        assert value == setting.value, option
    defaults = preset("tiny").to_dict()
    others = (
        {field.name for field in fields(UNetConfig)} - {option.removeprefix(MODEL) for option in settings} - {*SIZES}
    )
    for size in ("paper-147m", "released-18m", "small", "pocket", "tiny"):
        config = configured(f"recipe={name}", f"model.preset={size}")
        assert {field: fields_of(config)[field] for field in others} == {field: defaults[field] for field in others}
        assert describe_recipe(config, fields_of(config)) == f"recipe: {name}"


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_ablation_differs_from_its_recipe_where_it_says(recipe):
    for name in choices("ablation"):
        config = configured(f"recipe={recipe}", f"ablation={name}", "data.source=books")
        check_options(config)
        options = [option for option, _, _ in differences(config, recipe, fields_of(config))]
        assert options and all(any(option.startswith(change) for change in config.changes) for option in options), name


def test_loss_of_the_released_code_is_that_of_its_recipe():
    loss, settings = OmegaConf.load(CONF / "loss/released.yaml"), recipe_settings("released")
    del loss["defaults"]
    assert {f"loss.{option}": value for option, value in loss.items()}.items() <= {
        option: setting.value for option, setting in settings.items()
    }.items()


CONTINUED = ("own-text",)  # with the weights of the packaged model


@pytest.mark.parametrize("experiment", sorted({*choices("experiment")} - {*CONTINUED}))
def test_a_recipe_goes_with_any_experiment_that_begins_with_new_weights(experiment):
    read_run_options("train", [f"experiment={experiment}", "recipe=paper", "data.source=books", "out=runs/${seed}"])


ERRORS = {
    "recipe=paper estimator.gamma=0.9": r"estimator.gamma=0.9 contradicts recipe=paper, which has 0.99 \(Section 2.4\)"
    r"; to change it on purpose, add changes=\[estimator.gamma\]",
    "recipe=paper estimator=local_flips baseline=none changes=[estimator]": "baseline.name=none contradicts .*"
    r"changes=\[estimator,baseline.name\]",
    "recipe=paper rate=none": r"rate=none sets rate.coefficient=0.0, which recipe=paper sets to 0.01; .* add "
    r"rate.coefficient=0.0 changes=\[rate.coefficient\]",
    "recipe=released segmenter=learned-w1": "model.overrides.num_lags=1 contradicts recipe=released, which has 7",
    "recipe=ours model.overrides.smoothing=detached": "detached contradicts recipe=ours, which has its default",
    "recipe=ours actor=uniform optim.weight_decay=0.2": "optim.weight_decay=0.2 contradicts recipe=ours",
    "recipe=paper recipe=released": "once and be one name, got recipe=paper and recipe=released",
    "recipe=[paper,ours]": r"recipe must be given once and be one name, got recipe=\[paper,ours\]",
    "recipe=papr": "recipe must be one of .*did you mean 'paper'",
    "recipe=paper +recipe=ours": r"recipe must be given once and be one name, got recipe=paper and \+recipe=ours",
    "recipe=paper changes=[optim.lr]": "changes must name options of a recipe, or groups .*got 'optim.lr'",
    "recipe=paper changes=[estimator.gama]": "got 'estimator.gama'; did you mean 'estimator.gamma'",
    "changes=[nonsense]": "changes must name options of a recipe, or groups .*got 'nonsense'",
    "recipe=paper changes=[model.overrides.nonsense]": "model.overrides holds fields of UNetConfig, got 'nonsense'",
    "ablation=no-lags ablation=no-discount": "ablation must be given once and be one name, got ablation=no-lags and",
    "ablation=no-discount estimator.gamma=0.9": "estimator.gamma=0.9 undoes ablation=no-discount, which sets 1.0",
    "recipe=paper ablation=no-lags model.overrides.num_lags=4": "num_lags=4 undoes ablation=no-lags, which sets 0",
    "--multirun recipe=paper rate=none,hinge out=x/${rate.control}": "rate=none sets rate.coefficient=0.0, which",
    "experiment=paper-147m-fineweb estimator.gamma=0.9": "estimator.gamma=0.9 contradicts recipe=paper",
}


@pytest.mark.parametrize("line", ERRORS)
def test_a_contradiction_names_both_sides_and_the_way_out(line):
    with pytest.raises(ValueError, match=ERRORS[line]):
        read_run_options("train", line.split())


@pytest.mark.parametrize(
    "line",
    [
        "recipe=paper estimator.gamma=0.9 changes=[estimator.gamma]",
        "recipe=paper estimator=local_flips baseline=none changes=[estimator,baseline]",
        "recipe=paper rate=none rate.coefficient=0.0 changes=[rate]",
        "recipe=paper optim.lr=1e-3 model.overrides.window=4 optim.total_bytes=100_000",
        "recipe=released segmenter=hnet",
        "recipe=ours actor=uniform",
        "--multirun recipe=paper,released,ours out=runs/${recipe}",
        "--multirun recipe=paper estimator.gamma=0.9,0.99 changes=[estimator.gamma] out=runs/${estimator.gamma}",
        "experiment=paper-147m-fineweb recipe=released",
    ],
)
def test_what_agrees_or_is_meant_is_accepted(line):
    assert read_run_options("train", line.split()).configs


def test_a_run_says_which_recipe_it_follows():
    plain = configured("experiment=compare-seeds", "data.source=books", "model.overrides.encoder_norm=false")
    assert describe_recipe(plain, fields_of(plain)) == "no recipe, but equal to tuned"
    changed = configured("recipe=paper", "ablation=no-discount", "data.source=books")
    assert describe_recipe(changed, fields_of(changed)).endswith(
        "recipe: paper, except estimator.gamma=1.0 instead of 0.99"
    )
    assert "and 2 more" in describe_recipe(configured(), fields_of(configured()))
    check_recipe(plain)


def test_systems_follow_the_policy_of_a_recipe():
    base = configured("experiment=compare", "recipe=ours", "actor=uniform", "data.source=books")
    for system, variant in BY_RECIPE.items():
        config = system_config(base, system)
        different = {option for option, _, _ in differences(config, variant["recipe"], fields_of(config))}
        assert config.recipe is None and ("estimator.gamma" in different) == ("estimator" in variant)
        assert not {option for option in different if not option.startswith(("optim", MODEL, "estimator.gamma"))}
    assert base.recipe == "ours" and base.actor.name == "uniform"


def test_a_variant_changes_what_it_names():
    base = configured("experiment=compare-seeds", "recipe=ours", "data.source=books")
    base.compare.variants = {
        "heavy": {"loss": {"policy": 0.5}, "model": {"overrides": {"num_lags": 2}}},
        "no-baseline": {"recipe": "paper", "ablation": "no-batch-mean"},
        "ppo": {
            "estimator": {"name": "critic_advantage", "options": {"lmbda": 0.9}},
            "baseline": {"name": "none"},
            "loss": {"objective": "ppo", "critic": 0.1},
        },
        "typo": {"loss": {"polcy": 1}},
    }
    heavy, plain, ppo = (system_config(base, name) for name in ("heavy", "no-baseline", "ppo"))
    assert (heavy.loss.policy, model_overrides(heavy)["num_lags"], heavy.recipe) == (0.5, 2, "ours")
    assert heavy.changes == ["loss.policy", "model.overrides.num_lags"]
    assert (plain.baseline.name, plain.loss.policy, plain.recipe) == ("none", 0.01, None)
    assert ppo.changes == ["estimator.name", "estimator.options", "baseline.name", "loss.objective"]
    for config in (heavy, plain, ppo):
        check_options(config)
        check_system(config, "any")  # its loss can be built
    with pytest.raises(ValueError, match="compare.variants.typo must hold options of a run"):
        system_config(base, "typo")
    with pytest.raises(
        ValueError, match="compare.systems must be among .*'heavy'.*'no-baseline'.*got 'heavi'; did you mean"
    ):
        system_config(base, "heavi")
    for variant, message in (
        ({"ablation": "no-such"}, r"compare.variants.odd.ablation must be one of \['no-batch-mean'"),
        ({"recipe": "papr"}, "compare.variants.odd.recipe must be one of .*did you mean 'paper'"),
        (
            {"segmenter": {"stage_factors": False}},
            "compare.variants.odd.segmenter must hold a name and perhaps options",
        ),
        ({"optim": {"total_bytes": 1}}, "compare.variants.odd must leave optim.total_bytes out"),
    ):
        base.compare.variants = {"odd": variant}
        with pytest.raises(ValueError, match=message):
            system_config(base, "odd")
