"""Settings for all tests."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()  # what the tests train on is not recorded in the user's home

# Tests that run side by side share the cores, and so do the processes that they start.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    _THREADS = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(_THREADS))
    torch.set_num_threads(_THREADS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu``, import only the files that have GPU tests."""
    if config.option.markexpr != "gpu" or collection_path.suffix != ".py":
        return None
    return None if "mark.gpu" in collection_path.read_text(encoding="utf-8") else True


def pytest_configure(config: pytest.Config) -> None:
    """With ``-m gpu``, skip files that need a package that is not installed: a GPU machine may have torch alone.

    Any other run needs everything, and fails if something is missing.
    """
    if config.option.markexpr == "gpu":
        config.pluginmanager.register(_SkipMissing())


class _SkipMissing:
    """A plugin, because pytest does not call the hooks of a conftest.py while it loads those of the folders below."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.outcome == "failed":
            missing = _missing_package(report.call.excinfo.value)  # type: ignore[attr-defined]
            if missing:
                report.outcome = "skipped"
                report.longrepr = (str(collector.path), 0, f"Skipped: {missing} is not installed")
        return report


def _missing_package(error: BaseException | None) -> str | None:
    """Return the package that is not installed and so caused an error, or None if the error has another cause."""
    while error is not None:
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        package = (name or "").partition(".")[0]
        if package and package not in ("rltok_rl", "tests") and importlib.util.find_spec(package) is None:
            return package
        error = error.__cause__ or error.__context__
    return None


try:
    from . import fixed_text  # noqa: F401 - before any test module reads text
except ModuleNotFoundError as error:
    if _missing_package(error) is None:
        raise


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
