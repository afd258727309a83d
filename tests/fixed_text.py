"""A fixed text for tests: every Python version ships other documentation and other sources.

Importing this module replaces, for the whole process, what ``local_prose`` and ``local_code`` read: ``text/prose.txt``
is the beginning of Pride and Prejudice (public domain), ``text/code`` an old state of some of this library's functions.
"""

from __future__ import annotations

import pydoc_data
import sys
from pathlib import Path
from types import ModuleType

import rltok_rl.data.local

TEXT = Path(__file__).resolve().parent / "text"

topics = ModuleType("pydoc_data.topics")
topics.topics = {"execmodel": (TEXT / "prose.txt").read_text()}  # type: ignore[attr-defined]
pydoc_data.topics = sys.modules["pydoc_data.topics"] = topics  # type: ignore[attr-defined]
rltok_rl.data.local.STANDARD_LIBRARY = TEXT / "code"
