"""Estimators by one word: that of an estimator, or that of a baseline of the discounted return."""

from __future__ import annotations

from typing import Any

from rltok_rl.objectives import BASELINE_NAMES, ESTIMATORS, make_estimator

NAMES = ("discounted_return", *BASELINE_NAMES[1:], *(name for name in ESTIMATORS[1:] if "flips" not in name))
"""All words, of estimators that need no model."""


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
