"""Import torchrl, which sets the start method of ``multiprocessing`` to ``spawn``, and undo that.

With ``spawn``, a script that starts processes without a ``__main__`` guard executes itself again. Packages that need
torchrl import this module first. TorchRL's workers use ``spawn`` anyway, unless the program selects another method.
"""

from __future__ import annotations

import multiprocessing

_selected = multiprocessing.get_start_method(allow_none=True)

import torchrl  # noqa: E402, F401

if _selected is None:
    multiprocessing.set_start_method(None, force=True)
