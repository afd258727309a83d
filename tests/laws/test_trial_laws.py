"""Estimators that run texts again, those of studies included, obey the laws whenever they draw the same numbers."""

from __future__ import annotations

import importlib
import pkgutil
from functools import partial
from typing import Any

import pytest
import torch
from rltok_rl.experiments import studies
from rltok_rl.experiments.studies.pooled_critic import PooledCriticAdvantage
from torchrl.objectives.utils import get_value_estimator_entry

from rltok_rl.diagnostics.laws import broken_laws, rollout_model
from rltok_rl.objectives import TokenGain, Trials
from rltok_rl.objectives.estimators import ReturnEstimator

from ..each import each
from ..named_estimators import TRIALS
from ..objectives.conftest import make_model, make_rollout
from ..trial_cases import OWN_TEXTS, TRIAL_CASES

# The expected gradient is over random numbers, which are fixed here: tests of each estimator compare it with
# enumeration. A text ends with its row, so that no law is needed for an end before.
BROKEN = {"exact", "ends"}


def with_equal_draws(kind: type[ReturnEstimator]) -> type[ReturnEstimator]:
    """Let an estimator draw the same random numbers for every batch."""

    def forward(self: ReturnEstimator, *arguments: Any, **options: Any) -> Any:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return kind.forward(self, *arguments, **options)

    return type(kind.__name__, (kind,), {"forward": forward})


@each(name=TRIAL_CASES)
def test_trials_obey_the_laws(name):
    kind, options = TRIAL_CASES[name]
    assert set(broken_laws(partial(with_equal_draws(kind), rollout_model(), **options))) <= BROKEN


def test_a_critic_of_tokens_obeys_the_laws():
    assert set(broken_laws(partial(PooledCriticAdvantage, rollout_model()))) == {"exact"}
    assert broken_laws(partial(PooledCriticAdvantage, rollout_model(), lmbda=1.0)) == {}


class PastCounts(TokenGain):
    """A mistake: every decision gets what its whole row gains."""

    def _trial_advantages(self, rollout):
        gains = super()._trial_advantages(rollout)
        return gains.sum(1, keepdim=True).expand_as(gains)


def test_mistakes_of_trials_are_found():
    assert "past" in broken_laws(partial(with_equal_draws(PastCounts), rollout_model(), apart=1))


def padded_rollout(model):
    """A rollout [4, 12] with a mask, whose rows have 12, 12, 9 and 0 real steps."""
    rollout = make_rollout(model, num_rows=4, num_steps=12).detach()
    rollout["collector", "mask"] = torch.arange(12).expand(4, 12) < torch.tensor([12, 12, 9, 0])[:, None]
    return rollout


@each(name=OWN_TEXTS)
def test_rows_may_be_padded_with_zeros(name):
    """As ``split_trajectories`` pads: positions are 0, too."""
    kind, options = TRIAL_CASES[name]
    model = make_model()
    rollout = padded_rollout(model)
    real = rollout["collector", "mask"]
    padded = rollout.apply(lambda entry: entry * real.view(4, 12, *[1] * (entry.dim() - 2)).to(entry.dtype))
    seen = []
    for rows in (rollout, padded):
        trials = with_equal_draws(kind)(model, gamma=0.9, **options)
        seen.append(trials(rows.copy())["advantage"].squeeze(-1))
    torch.testing.assert_close(*seen)
    assert not seen[1][~real].any() and seen[1][real].any()


def test_padding_in_other_places_is_refused():
    model = make_model()
    rollout, trials = padded_rollout(model), TokenGain(model, gamma=0.9)
    rollout["collector", "mask"][1, 4:6] = False
    with pytest.raises(ValueError, match="got real steps behind masked ones in row 1"):
        trials(rollout.copy())
    first = padded_rollout(model).transpose(0, 1).contiguous()
    first.names = ["time", None]
    with pytest.raises(ValueError, match=r"must be \[B, T\], got \[12, 4\] with time in dimension 0"):
        trials(first)


def test_no_trials_escape():
    """All that are registered, and all subclasses that studies define."""
    for module in pkgutil.iter_modules(studies.__path__):
        importlib.import_module(f"{studies.__name__}.{module.name}")
    held = {kind for kind, _ in TRIAL_CASES.values()}
    assert {get_value_estimator_entry(name).cls for name in TRIALS} <= held
    known, new = set(), {Trials}
    while new:
        known |= new
        new = {kind for parent in new for kind in parent.__subclasses__()}
    assert {kind for kind in known if kind.__module__.startswith(studies.__name__)} <= held
