"""A fixed text for tests: every Python version ships other documentation and other sources.

Importing this module replaces what ``local_prose`` and ``local_code`` read: ``text/prose.txt`` is the beginning of
Pride and Prejudice (public domain), ``text/code`` a source file with more of it. Python processes
that are started from here find the prose as well, through ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rltok_rl.data.corpora

TEXT = Path(__file__).resolve().parent / "text"
SHADOWS = str(TEXT / "python")

if SHADOWS not in sys.path:
    sys.path.insert(0, SHADOWS)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SHADOWS, os.environ.get("PYTHONPATH"))))
for name in ("pydoc_data.topics", "pydoc_data"):
    sys.modules.pop(name, None)
rltok_rl.data.corpora.STANDARD_LIBRARY = TEXT / "code"
