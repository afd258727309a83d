"""Text that every Python brings along; other tests read a fixed text in its place."""

from __future__ import annotations

import importlib.util
import pydoc_data.topics
import sysconfig
from pathlib import Path

import pytest

from rltok_rl.data import corpora, local_code, local_prose


@pytest.fixture(autouse=True)
def _of_this_python(monkeypatch):
    """Read the documentation and the sources of the Python that runs the tests."""
    library = Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.spec_from_file_location("topics", library / "pydoc_data" / "topics.py")
    topics = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(topics)
    monkeypatch.setattr(pydoc_data.topics, "topics", topics.topics)
    monkeypatch.setattr(corpora, "STANDARD_LIBRARY", library)


def test_prose_has_no_underlines_of_headings(monkeypatch):
    """Lines of one repeated mark go, lines that merely begin with one stay."""
    page = "Objects\n*******\n\nValues, types\n=============\n\n* an item\n-x is minus x\n~~~~\n^^^^\n"
    monkeypatch.setattr(pydoc_data.topics, "topics", {"objects": page, "zebra": "Z\n-"})
    assert local_prose() == b"Objects Values, types * an item -x is minus x Z"


def test_prose_is_utf8_with_single_spaces():
    prose = local_prose()
    assert len(prose) > 300_000
    assert b"  " not in prose and b"\n" not in prose
    assert prose.decode("utf-8").startswith("Execution model Structure of a program A Python program is")


@pytest.mark.parametrize("source", [local_prose, local_code])
def test_a_part_is_the_beginning(source):
    assert source(5000) == source(9000)[:5000] and len(source(5000)) == 5000


def test_code_leaves_tests_out():
    """The first files of the standard library by name; none of its own tests."""
    code = local_code(300_000).decode("utf-8", errors="replace")
    assert "import " in code and "unittest.main()" not in code
