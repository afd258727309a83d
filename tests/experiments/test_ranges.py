"""Every number of the options has a range: wild values are refused in one line, or mean something."""

from __future__ import annotations

import inspect
import math
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

import numpy as np
import pytest
from rltok_rl.agents.segmenters import SEGMENTERS, make_segmenter, segmenter_maker
from rltok_rl.experiments.compare.systems import check_training
from rltok_rl.experiments.run_config import DataConfig, OptimConfig, TrainConfig
from rltok_rl.experiments.runs import run
from rltok_rl.experiments.runs.segmenters import TRAINED_WITH, check_segmenter_options, segmenter_options
from rltok_rl.experiments.runs.valid_options import check_options
from rltok_rl.experiments.texts import LANGUAGES, read_texts

from rltok_rl.models import UNet, UNetConfig, preset
from rltok_rl.ranges import check_fields, declared, read_range
from rltok_rl.training import LoopOptions

from .configured import QUICK, configured

WILD = (math.nan, math.inf, -math.inf, -1, -0.5, 0, 0.5, 1, 2, 1e6, 1e300, 2**63, -(10**30), 10**400)
WRONG = ("3", True, [1], object())


def numbers(schema: Any, prefix: str = "") -> dict[str, Any]:
    """All numbers of a dataclass and those in it, by dotted name."""
    hints, out = get_type_hints(schema), {}
    for field in fields(schema):
        kind = hints[field.name]
        if is_dataclass(kind):
            out |= numbers(kind, f"{prefix}{field.name}.")
        elif kind in (int, float, int | None, float | None, list[float] | None):
            out[prefix + field.name] = declared(schema).get(field.name)
    return out


def with_value(config: Any, name: str, value: Any) -> Any:
    """A copy with one option replaced."""
    group, dot, rest = name.partition(".")
    return replace(config, **{group: with_value(getattr(config, group), rest, value) if dot else value})


def outcome(call: Any) -> str | None:
    """None if a call succeeds, else its message, which must be one line."""
    try:
        call()
    except (ValueError, TypeError) as error:
        assert "\n" not in str(error)
        return str(error)
    return None


@pytest.mark.parametrize("schema", [TrainConfig, UNetConfig, LoopOptions])
def test_every_number_declares_a_range_which_admits_its_default(schema):
    assert [name for name, number in numbers(schema).items() if number is None] == []
    for field in fields(schema):
        number = declared(schema).get(field.name)
        if number and number.range and isinstance(field.default, (int, float)):
            assert field.default in read_range(number.range), field.name


def fits(value: Any, number: Any) -> bool:
    """Whether a value has the kind that is declared and lies in the range, as torch would read it."""
    if type(value) is not int and (number.kind is int or type(value) is not float):
        return False
    largest = 2**63 if number.kind is int else 10**308
    return value in read_range(number.range) and (abs(value) < largest or value == math.inf)


def check_refusal(message: str | None, name: str, value: Any, number: Any) -> None:
    """A refusal names the option, the range and the value."""
    words = read_range(number.range).words(number.kind is int)
    assert message is not None and message.startswith(f"{name} must "), (name, value, message)
    assert words in message or "a number" in message or "must be below" in message, (name, value, message)
    assert repr(value)[:20] in message, (name, value, message)


def test_wild_values_are_refused_in_one_line_or_mean_something():
    """Accepted values also build a loss and a schedule, or are refused together with another option."""
    config, refused, accepted = configured(*QUICK, "model=tiny"), 0, 0
    built = ("estimator.", "baseline.", "rate.", "loss.", "optim.")
    for name, number in numbers(TrainConfig).items():
        for value in (*WILD, *WRONG):
            changed = with_value(config, name, [value, value] if number.several and value != [1] else value)
            message = outcome(lambda changed=changed: check_fields(changed))
            if not fits(value, number) and not (number.several and value == [1]):
                check_refusal(message, name, value, number)
                refused += 1
            elif name.startswith(built):
                message = message or outcome(lambda changed=changed: check_training(changed))
                assert message is None or name in message or name == "optim.total_bytes", (name, value, message)
                accepted += 1
    assert refused > 400 and accepted > 60


def test_wild_sizes_of_a_model_are_refused():
    for name, number in numbers(UNetConfig).items():
        for value in (*WILD, *WRONG):
            if not fits(value, number):
                message = outcome(lambda name=name, value=value: preset("tiny", **{name: value}))
                check_refusal(message, name, value, number)


def test_wild_values_touch_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "make_trainer", lambda *_: pytest.fail("a trainer was made"))
    out = tmp_path / "out"
    for words, message in (
        ("optim.weight_decay=nan", "optim.weight_decay must lie in [0, 1e3], got nan"),
        ("optim.lr=inf", "optim.lr must lie in (0, 10], got inf"),
        ("loss.early_exit=-1", "loss.early_exit must lie in [0, 1e6], got -1"),
        ("rate.coefficient=-0.5", "rate.coefficient must lie in [0, 1e6], got -0.5"),
        ("actor.rates=[0.1,nan]", "actor.rates must lie strictly between 0 and 1, got nan"),
    ):
        assert outcome(lambda words=words: run.run(configured(*QUICK, words, f"out={out}"), "")).startswith(message)
    assert not out.exists()


def test_the_loop_has_the_ranges_of_the_options():
    ours, theirs = declared(LoopOptions), declared(OptimConfig)
    assert all(ours[name].range == theirs[name].range for name in ours.keys() & theirs.keys())
    assert type(LoopOptions(total_bytes=np.int32(9)).total_bytes) is int
    check_options(configured(*QUICK, "optim.clip_norm=inf"))  # clips nothing


@pytest.mark.parametrize("name", sorted(SEGMENTERS))
def test_wild_options_of_a_segmenter_are_refused_or_build_it(name):
    """A refusal names ``segmenter.options`` and the option; tokenizers are not trained here."""
    config, make, refused = TrainConfig(), segmenter_maker(name), 0
    options = [*inspect.signature(make).parameters][1:]
    options += TRAINED_WITH if name == "bpe" else TRAINED_WITH[:3] if name == "unigram" else []
    config.segmenter.name, model = name, UNet(preset("tiny"))
    for option in {*options} - {"tokenizer"} if name != "learned" else ():
        for value in (*WILD, *WRONG, "", {"a": 1}):
            config.segmenter.options = {option: value}
            message = outcome(lambda: check_segmenter_options(config))
            assert message is None or message.startswith(f"segmenter.options.{option} must "), (value, message)
            refused += message is not None
            if message is None and name not in ("bpe", "unigram"):
                message = outcome(lambda: make_segmenter(name, model, **segmenter_options(config)))
                assert message is None or option in message, message
    assert refused >= 8 * len(options) or name in ("learned", "spacebyte", "whitespace")


OPTIONS = {
    "estimator.control_variate": ("hindsight", "ridge", "folds", "value_network", "time_dim"),
    "estimator.critic_advantage": ("lmbda",),
    "estimator.discounted_return": ("differentiable", "mask_key"),
    "estimator.natural_gradient": ("floor",),
    "estimator.local_flips": ("num_flips", "span", "every", "rows_per_pass", "generator", "price"),
    "estimator.budgeted_flips": ("settled", "every", "num_flips"),
    "estimator.token_gain": ("apart", "every", "settled", "rows_per_pass"),
    "estimator.disarm": ("every", "settled", "rows_per_pass"),
    "baseline.group_mean": ("group_size", "exclude_self"),
    "baseline.none": ("rows_per_mean",),
    "baseline.running_mean": ("decay",),
    "baseline.z_score": ("eps",),
    "rate.pi": ("proportional", "integral", "ends"),
}


@pytest.mark.parametrize("named", OPTIONS)
def test_wild_options_of_estimators_baselines_and_rates_are_refused_in_one_line(named):
    """Those of TorchRL's constructors are no options of a run."""
    default, refused, (group, name) = configured(*QUICK, "model=tiny"), 0, named.split(".")
    for option in OPTIONS[named]:
        for value in (*WILD, *WRONG, "", {"a": 1}):
            config = deepcopy(default)
            config.loss.objective = "ppo" if name == "critic_advantage" else "reinforce"
            config.baseline.rows_per_text = 2 if name == "group_mean" else 1
            config.baseline.name = "leave_one_out" if name == "discounted_return" else "none"
            setattr(getattr(config, group), "control" if group == "rate" else "name", name)
            getattr(config, group).options = {option: value}
            message = outcome(lambda config=config: check_training(config))
            assert message is None or (option in message and repr(value)[:9] in message) or "among" in message, message
            refused += message is not None
    assert refused >= 12 * len(OPTIONS[named])


def test_options_that_do_not_fit_the_rows_are_refused_before_a_run():
    for options, words in {
        "estimator=control_variate baseline=none estimator.options.folds=9": "at most the rows of an update, 8, got 9",
        "baseline=group_mean baseline.options.group_size=4": "must divide baseline.rows_per_text, 2, got 4",
        "baseline=running_mean baseline.options.num_steps=7": "must be data.num_steps, 64, got 7",
    }.items():
        config = configured(*QUICK, "data.num_rows=8", "data.num_steps=64", *options.split())
        assert words in (outcome(lambda config=config: check_training(config)) or "accepted")
    fitting = "estimator.options.folds=9", "compute.micro_batches=2", "baseline=none"
    check_training(configured(*QUICK, "data.num_rows=8", "estimator=control_variate", *fitting))


@pytest.mark.parametrize("name", LANGUAGES)
def test_wild_options_of_a_language_are_refused_or_make_it(name):
    refused, options = 0, [*inspect.signature(LANGUAGES[name]).parameters]
    for option in options:
        for value in (*WILD, *WRONG, "", {"a": 1}):
            data = DataConfig(source=name, options={option: value})
            message = outcome(lambda data=data: read_texts(data))
            assert message is None or option in message, (option, value, message)
            refused += message is not None
    assert refused >= 12 * len(options)
    message = outcome(lambda: read_texts(DataConfig(source=name, options={f"{options[0]}s": 1})))
    assert message is not None and f"data.options of {name!r} must be among" in message and "did you mean" in message
