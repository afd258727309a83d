"""Nothing that is registered escapes the laws."""

from __future__ import annotations

import inspect

from rltok_rl.functional import baselines, policy_gradient, returns
from rltok_rl.objectives import BASELINE_NAMES, ESTIMATORS

from ..named_estimators import TRIALS
from .registry import BASELINES, OBJECTIVES, RETURNS

# Parts that the others are made of, and checks: they have no law of their own.
PARTS = {"check_gamma", "check_rewards", "reverse_scan", "cut", "either", "clip_bounds"}


def test_every_estimator_and_function_is_held_to_the_laws():
    members = {name.split(",")[0] for name in (*RETURNS, *BASELINES, *OBJECTIVES)}
    estimators = {name.removeprefix("estimator ") for name in members if name.startswith("estimator ")}
    # Trials measure advantages with a model: test_trial_laws.py holds them to the laws, their own tests compare them
    # with enumeration.
    assert estimators == {*ESTIMATORS, *BASELINE_NAMES} - {*TRIALS, "none"}
    public = set()
    for module in (returns, policy_gradient, baselines):
        functions = inspect.getmembers(module, inspect.isfunction)
        public |= {n for n, f in functions if f.__module__ == module.__name__ and not n.startswith("_")}
    assert PARTS <= public
    assert public - PARTS - {"no_baseline"} <= {name.split(" ")[0] for name in members}  # there it is "none"
    assert set(baselines.BASELINES) <= set(BASELINES)
