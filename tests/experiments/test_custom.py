"""Custom estimators, baselines and segmenters, named as `module:Name` in a configuration."""

from __future__ import annotations

import copy
import importlib
import re
import sys

import pytest
import torch
from rltok_rl.agents.segmenters import load_segmenter, make_segmenter, save_segmenter
from rltok_rl.experiments.runs.build import make_advantages, make_model, make_trainer
from rltok_rl.experiments.runs.segmenters import check_segmenter_options

from rltok_rl.functional.baselines import leave_one_out, no_baseline
from rltok_rl.objectives import ReturnEstimator
from rltok_rl.utils import import_path

from .configured import QUICK, configured
from .custom import EVERY

MODULE = (
    EVERY
    + """
from rltok_rl.objectives import ReturnEstimator

class Doubled(ReturnEstimator):
    def __init__(self, *, gamma, times=2.0, model=None, **options):
        super().__init__(gamma=gamma, **options)
        self.times, self.num_lags = times, None if model is None else model.config.num_lags

    def _returns(self, view):
        return self.times * super()._returns(view)

class Bare(ReturnEstimator):
    def __init__(self, *, gamma):
        super().__init__(gamma=gamma)

class Undiscounted(ReturnEstimator):
    def __init__(self):
        super().__init__(gamma=1.0)

def half(returns, *, mask=None, process_group=None, share=0.5):
    return returns * share

def careless(returns):
    return returns

def no_estimator(gamma):
    return "leave_one_out"

class Remembering(torch.nn.Module):
    def __init__(self, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, returns, *, mask, process_group):
        advantages = returns - self.mean.to(returns)
        if self.training:
            self.mean.lerp_(returns.double().mean(), 1 - self.decay)
        return advantages

class Deaf(torch.nn.Module):
    def forward(self, returns):
        return returns

class Alone(ReturnEstimator):
    def __init__(self, *, decay=0.9, **options):
        super().__init__(**options)

    def _advantages(self, returns, view):
        return returns

class Both(Alone):
    uses_baseline = True

    def _advantages(self, returns, view):
        return 2 * ReturnEstimator._advantages(self, returns, view)

class Plain:
    def __call__(self, returns, *, mask, process_group):
        return returns

made = Remembering()
constant = 1

def no_segmenter(model):
    return "spacebyte"
"""
)


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """A module in the working folder, which is not on the path yet."""
    (tmp_path / "custom_things.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "custom_things"
    sys.modules.pop("custom_things", None)


def advantages(*options: str):
    config = configured(*QUICK, *options)
    return make_advantages(config, make_model(config, torch.device("cpu")))


def test_estimators_and_baselines_get_the_arguments_of_their_signatures(module):
    options = [f"estimator.name={module}:Doubled", "estimator.gamma=0.7", "estimator.options.times=3"]
    made = advantages(*options)
    kind = importlib.import_module(module).Doubled
    assert type(made) is kind and made.gamma == 0.7 and made.times == 3 and made.baseline is leave_one_out
    assert made.num_lags == 8, "the model is passed if the signature has it"
    assert advantages(*options, "baseline=none").baseline is no_baseline
    siblings = advantages(*options, "baseline=group_mean").baseline
    returns = torch.tensor([[1.0], [3.0]])
    assert siblings(returns, mask=None, process_group=None).tolist() == [[-2.0], [2.0]]
    pairs = advantages(*options, "baseline=group_mean", "baseline.rows_per_text=4", "baseline.options.group_size=2")
    assert pairs.baseline.keywords["group_size"] == 2  # an option that is given replaces the default
    made = advantages(f"baseline.name={module}:half", "baseline.options.share=0.25")
    assert type(made) is ReturnEstimator and made.baseline(torch.tensor([[8.0]])).item() == 2.0
    both = advantages(f"baseline.name={module}:half", f"estimator.name={module}:Doubled")
    assert both.baseline(torch.tensor([[8.0]])).item() == 4.0


def test_custom_estimator_trains_as_the_librarys(module):
    """Twice the advantages at half the weight are the same updates, to the last bit."""
    ours = make_trainer(configured(*QUICK, "loss.policy=0.02"))[0]
    theirs = make_trainer(configured(*QUICK, f"estimator.name={module}:Doubled", "loss.policy=0.01"))[0]
    for trainer in (ours, theirs):
        for _ in range(2):
            trainer.update()
    states = [trainer.model.state_dict() for trainer in (ours, theirs)]
    assert all(torch.equal(weight, states[1][name]) for name, weight in states[0].items())


REFUSED = [
    ("estimator.name=nowhere:Mine", "a module that is installed or lies in the working folder, got 'nowhere:M"),
    ("estimator.name=OWN:Double", "no 'Double' there; did you mean 'Doubled'"),
    ("estimator.name='own-things:Mine'", "must be a word, or module:Name as Python imports it"),
    ("estimator.name=OWN:constant", "must name a class of estimators"),
    ("estimator.name=OWN:Undiscounted", "must take gamma, which estimator.gamma is"),
    ("estimator.name=OWN:Bare", "baseline must be 'none' with 'custom_things:Bare', which takes no baseline"),
    ("estimator.name=OWN:no_estimator baseline=none", "which makes a str"),
    ("estimator.name=OWN:Doubled estimator.options.span=3", "of 'custom_things:Doubled' must be among .*'times'"),
    ("estimator.name=OWN:Both estimator.options.decai=3", "got 'decai'; did you mean 'decay'"),
    ("estimator.name=OWN:Alone", "baseline must be 'none' with Alone, whose own _advantages takes its place"),
    ("baseline.name=OWN:careless", r"must take \(returns, \*, mask, process_group\) and its options"),
    ("baseline.name=OWN:half baseline.options.part=1", "got an unexpected keyword argument 'part'"),
    ("baseline.name=OWN:constant", "baseline.name must name a function, .* got 'custom_things:constant', a int$"),
    ("baseline.name=OWN:made", "a Remembering, which the runs of one process would share: name its class"),
    ("baseline.name=OWN:Plain", "a class of torch.nn.Module, whose memory checkpoints keep, got the class"),
    ("baseline.name=OWN:Deaf", r"must take \(returns, \*, mask, process_group\) and its options"),
    ("baseline.name=OWN:Remembering baseline.options.decai=1", r"among \['decay'\], got 'decai'; did you mean 'decay'"),
    ("estimator.name=td", "estimator.name must be one of .* or a custom module:Name, got 'td'"),
]


def test_wrong_estimators_and_baselines_are_refused(module, tmp_path):
    for options, message in REFUSED:
        with pytest.raises((ValueError, TypeError, ImportError), match=message):
            advantages(*options.replace("OWN", module).split())
    (tmp_path / "fails_itself.py").write_text("import nothing_of_that_name")
    with pytest.raises(ModuleNotFoundError, match="^No module named 'nothing_of_that_name'"):
        import_path("estimator.name", "fails_itself:Mine")
    config = configured(*QUICK, f"estimator.name={module}:Bare", "baseline=none")
    model = make_model(config, torch.device("cpu"))
    assert make_advantages(config, model).gamma == config.estimator.gamma
    with pytest.raises(ValueError, match="must take process_group to be trained with in several processes"):
        make_advantages(config, model, process_group=object())


def test_baseline_with_memory_is_new_for_every_run_and_resumes(module):
    options = [f"baseline.name={module}:Remembering", "baseline.options.decay=0.5"]
    judged = [advantages(*options), advantages(*options, f"estimator.name={module}:Both")]
    assert [one.baseline.decay for one in judged] == [0.5, 0.5] and judged[0].baseline is not judged[1].baseline
    going, fresh = (make_trainer(configured(*QUICK, *options))[0] for _ in range(2))
    going.update()
    fresh.load_state_dict(copy.deepcopy(going.state_dict()))
    means = []
    for trainer in (going, fresh):
        assert trainer.update() is not None
        means.append(trainer.loss.terms["policy"]._value_estimator.baseline.mean)
    assert torch.equal(*means) and means[0] != 0 and means[0] is not means[1]
    assert all(torch.equal(x, y) for x, y in zip(going.model.parameters(), fresh.model.parameters(), strict=True))


def test_segmenter_trains_is_saved_and_loaded(module, tmp_path):
    config = configured(*QUICK, f"segmenter.name={module}:Every", "segmenter.options.every=4")
    check_segmenter_options(config)
    trainer, _ = make_trainer(config)
    assert trainer.update()["rate"] == 0.25 and type(trainer.segmenter).__name__ == "Every"
    save_segmenter(tmp_path / "m", trainer.segmenter, trainer.model, name=f"{module}:Every", options={"every": 4})
    with pytest.raises(ValueError, match="segmenter.json names custom code, 'custom_things:Every', which would be"):
        load_segmenter(tmp_path / "m", trainer.model)
    loaded = load_segmenter(tmp_path / "m", trainer.model, trust_code=True)
    states, byte_ids = torch.zeros(1, 9, 64), torch.zeros(1, 9, dtype=torch.int64)
    assert loaded(states, byte_ids).boundaries.int().tolist() == [[1, 0, 0, 0, 1, 0, 0, 0, 1]]


def test_wrong_segmenters_are_refused(module):
    refused = {
        f"{module}:Ever": "no 'Ever' there; did you mean 'Every'",
        f"{module}:half": "must name a callable (model, **options) -> Segmenter",
        f"{module}:no_segmenter": "name must be of a segmenter, got 'custom_things:no_segmenter', which makes a str",
        "bytes": "or a custom module:Name, got 'bytes'",
    }
    model = make_model(configured(*QUICK), torch.device("cpu"))
    for name, message in refused.items():
        with pytest.raises((ValueError, TypeError), match=re.escape(message)):
            make_segmenter(name, model)
    config = configured(*QUICK, f"segmenter.name={module}:Every", "segmenter.options.stride=4")
    with pytest.raises(ValueError, match=r"'custom_things:Every' must be among \['every', 'rate'\], got"):
        check_segmenter_options(config)


def test_options_of_a_rate_control_are_named():
    """The target has an option of its own, model.overrides.target_rate."""
    for option in ("+rate.options.target=nan", "+rate.options.targets=0.2"):
        with pytest.raises(ValueError, match=r"rate.options must be among \['ends', .* got 'target"):
            make_trainer(configured(*QUICK, option))
