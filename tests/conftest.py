"""Settings for all tests."""

from __future__ import annotations

import importlib.util

import pytest
import torch

# A GPU machine may have torch alone; the models and the sampler are tested there all the same.
_MISSING = [name for name in ("tensordict", "torchrl", "gymnasium") if importlib.util.find_spec(name) is None]
collect_ignore = ["agents", "envs", "test_doctests.py", "test_packaging.py", "test_tutorials.py"] if _MISSING else []


def pytest_report_header() -> str | None:
    """Say what is left out, and why."""
    return f"{', '.join(_MISSING)} not installed: {', '.join(collect_ignore)} left out" if _MISSING else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests, visibly, where there is no GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Make every test draw the same numbers, whatever ran before it."""
    torch.manual_seed(0)
