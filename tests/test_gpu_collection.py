"""`pytest -m gpu` collects on a machine that has torch, numpy and pytest alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from .forked import run_forked
from .layout import ROOT

ARGUMENTS = ["-m", "gpu", "--collect-only", "-q", "-rs", "-p", "no:cacheprovider"]
COLLECT = f"""
import sys
from tests import hiding
hiding.hide(hiding.all_but(sys.argv[1:]) - {{"rltok_rl"}})
import pytest
sys.exit(pytest.main({ARGUMENTS}))
"""
TEST = re.compile(r"^tests/\S+\.py::.+$", flags=re.MULTILINE)
NEED_MORE = ("tests/tools/", "tests/envs/", "tests/objectives/", "tests/training/")


def collect(*only: str) -> tuple[set[str], str]:
    """GPU tests that a process finds in which no packages but these are installed, and its output; none is all."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    if only:
        command = [sys.executable, "-c", COLLECT, *only]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    else:
        done = run_forked("pytest", *ARGUMENTS, cwd=ROOT, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(TEST.findall(done.stdout)), done.stdout


@pytest.fixture(scope="module")
def everything() -> set[str]:
    """GPU tests of an environment with all packages."""
    found, output = collect()
    assert "SKIPPED" not in output, "a file is left out although all packages are installed"
    return found


def test_every_file_with_gpu_tests_is_collected(everything):
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if marked(path.read_text())}
    assert {test.partition("::")[0] for test in everything} == files
    assert len(everything) > 15


@pytest.mark.parametrize("more", [(), ("torchrl", "tensordict", "gymnasium")], ids=["torch", "torchrl"])
def test_collection_needs_torch_numpy_and_pytest_alone(everything, more):
    """Tests of the model and the sampler are found; files that need more are skipped, and the output says so."""
    found, output = collect("torch", "numpy", "pytest", *more)
    missing = everything - found
    assert found <= everything and len(found) > 5
    assert all(test.startswith(NEED_MORE) for test in missing)
    for folder in {test.split("/")[1] for test in missing}:
        assert re.search(rf"^SKIPPED .*tests/{folder}\b.* is not installed$", output, flags=re.MULTILINE), output
    assert more or missing == {test for test in everything if test.startswith(NEED_MORE)}


def marked(source: str) -> bool:
    """Whether a file marks tests by ``pytest.mark.gpu``."""
    return re.search(r"^\s*(@|pytestmark = )pytest\.mark\.gpu$", source, flags=re.MULTILINE) is not None
