"""Estimators by one word: that of an estimator, or that of a baseline of the discounted return."""

from __future__ import annotations

from typing import Any

from torchrl.objectives.utils import get_value_estimator_entry

from rltok_rl.objectives import BASELINE_NAMES, ESTIMATORS, Trials, make_estimator

TRIALS = tuple(name for name in ESTIMATORS if issubclass(get_value_estimator_entry(name).cls, Trials))
"""Words of estimators that need a model."""
NAMES = ("discounted_return", *BASELINE_NAMES[1:], *(name for name in ESTIMATORS[1:] if name not in TRIALS))
"""All other words."""


def named_estimator(name: str, **options: Any) -> Any:
    estimator = {"baseline": name, "name": "discounted_return"} if name in BASELINE_NAMES else {"name": name}
    return make_estimator(**{**estimator, **options})


def needed_options(name: str, num_steps: int, actor: Any, critic: Any = None) -> dict[str, Any]:
    """Return the options that an estimator cannot do without."""
    return {
        "group_mean": {"group_size": 2},
        "running_mean": {"num_steps": num_steps},
        "critic_advantage": {"value_network": critic},
        "vtrace_return": {"actor_network": actor, "value_network": critic},
    }.get(name, {})
