"""The bugs of ``python -m tests.mutations`` and ``make mutants`` can still be planted."""

from __future__ import annotations

import pytest

from .layout import ROOT
from .mutants import MUTANTS
from .mutations import BUGS, Bug

ALL = (*BUGS, *MUTANTS)


@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_every_planted_bug_still_applies(bug):
    """Its code occurs once, the changed file is still Python, and the tests named for it exist."""
    path = bug.file()
    compile(path.read_text().replace(bug.old, bug.new), str(path), "exec")
    assert bug.new != bug.old and all((ROOT / test).exists() for test in bug.tests.split())


def test_names_are_unique():
    assert len({bug.name for bug in ALL}) == len(ALL)


@pytest.mark.parametrize(("code", "count"), [("no such line of code", 0), ("import torch\n", r"\d+")])
def test_code_that_is_missing_or_ambiguous_is_refused(code, count):
    with pytest.raises(ValueError, match=rf"code of bug 'x' must occur once in \['rltok_rl', .*\], got {count}: "):
        Bug("x", "tests", code, "").file()
