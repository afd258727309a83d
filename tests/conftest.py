"""Settings for all tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

# A GPU machine may have torch alone; `-m gpu` tests the models and the sampler there all the same. Any other run needs
# everything, and fails where something is missing.
_MISSING = [name for name in ("tensordict", "torchrl", "gymnasium") if importlib.util.find_spec(name) is None]
_NEED_THEM = {"agents", "data", "diagnostics", "envs", "experiments", "laws", "objectives", "training"}
_NEED_THEM |= {"test_doctests.py", "test_packaging.py", "test_tutorials.py", "test_docs.py", "test_glossary.py"}
_NEED_THEM |= {"test_clients.py", "test_habits.py"}


# Tests that run side by side share the cores, and so do the processes that they start.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    _THREADS = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(_THREADS))
    torch.set_num_threads(_THREADS)

if not _MISSING:
    from . import fixed_text  # noqa: F401 - before any test module reads text


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what cannot be imported on a machine that has torch alone."""
    left_out = _MISSING and config.option.markexpr == "gpu" and collection_path.name in _NEED_THEM
    return True if left_out else None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is left out, and why."""
    if not (_MISSING and config.option.markexpr == "gpu"):
        return None
    return f"{', '.join(_MISSING)} not installed: {', '.join(sorted(_NEED_THEM))} left out"


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
