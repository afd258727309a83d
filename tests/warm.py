"""Imports and tables that a run's first update needs, for the fork server of :mod:`.forked` to load once.

Nothing is computed here: no thread is started, and no random number is drawn.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from numba.core.registry import cpu_target

from rltok_rl.fused import kernels

for module in iter_modules(kernels.__path__, f"{kernels.__name__}."):
    import_module(module.name)
for context in (cpu_target.typing_context, cpu_target.target_context):
    context.refresh()  # numba's own functions, which it registers before it loads or compiles the first kernel
