"""Nothing that is registered escapes the laws."""

from __future__ import annotations

import inspect
from types import ModuleType

from rltok_rl.functional import baselines, policy_gradient, returns
from rltok_rl.objectives import BASELINE_NAMES, ESTIMATORS

from .registry import BASELINES, OBJECTIVES, RETURNS

#: Parts that the others are made of, and checks: they have no law of their own.
PARTS = {"check_gamma", "check_rewards", "reverse_scan", "cut", "either", "clip_bounds"}


def held_to_laws() -> set[str]:
    """What the suite runs, by the name before any remark."""
    named = [name.removeprefix("estimator ") for name in (*RETURNS, *BASELINES, *OBJECTIVES)]
    return {name.split(",")[0].split(" ")[0] for name in named}


def functions_of(module: ModuleType) -> set[str]:
    """The public functions that are defined there."""
    found = inspect.getmembers(module, inspect.isfunction)
    return {name for name, one in found if one.__module__ == module.__name__ and not name.startswith("_")}


def test_every_estimator_is_held_to_the_laws():
    named = {name.removeprefix("estimator ").split(",")[0] for name in (*RETURNS, *BASELINES) if "estimator " in name}
    assert named == {*ESTIMATORS, *BASELINE_NAMES} - {"local_flips", "none"}


def test_every_function_is_held_to_the_laws():
    public = functions_of(returns) | functions_of(policy_gradient)
    public |= functions_of(baselines) - {"no_baseline"}  # there it is called "none"
    assert public - PARTS - held_to_laws() == set()
    assert PARTS <= public
    assert set(baselines.BASELINES) <= set(BASELINES)
