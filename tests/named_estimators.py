"""Estimators by one word: that of an estimator, or that of a baseline of the discounted return."""

from __future__ import annotations

from typing import Any

from rltok_rl.objectives import BASELINE_NAMES, ESTIMATORS, make_estimator

NAMES = ("discounted_return", *BASELINE_NAMES[1:], *(name for name in ESTIMATORS[1:] if name != "local_flips"))
"""All words, of estimators that need no model."""


def words(name: str) -> tuple[str, dict[str, Any]]:
    """The estimator, and its options."""
    return ("discounted_return", {"baseline": name}) if name in BASELINE_NAMES else (name, {})


def named_estimator(name: str, **options: Any) -> Any:
    estimator, own = words(name)
    return make_estimator(estimator, **{**own, **options})
