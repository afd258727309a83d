"""Modules that have moved. Their old names can be imported for one minor version, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = {
    "rltok_rl.diagnostics.drawing": "rltok_rl.diagnostics.exact",
    "rltok_rl.diagnostics.expected": "rltok_rl.diagnostics.exact",
    "rltok_rl.diagnostics.gradients": "rltok_rl.diagnostics.gradient_quality",
    "rltok_rl.diagnostics.memory": "rltok_rl.diagnostics.exact",
    "rltok_rl.evaluation.choices": "rltok_rl.evaluation.tasks",
    "rltok_rl.evaluation.harness": "rltok_rl.evaluation.lm_eval",
    "rltok_rl.functional.imports": "rltok_rl.utils",
    "rltok_rl.functional.numbers": "rltok_rl.utils",
    "rltok_rl.functional.saved_config": "rltok_rl.utils",
    "rltok_rl.functional.smoothing": "rltok_rl.functional.routing",
    "rltok_rl.functional.text": "rltok_rl.text",
    "rltok_rl.models.flop_meter": "rltok_rl.experiments.bench.flop_meter",
    "rltok_rl.models.packing": "rltok_rl.models.tokens",
    "rltok_rl.models.pooling": "rltok_rl.models.tokens",
    "rltok_rl.models.presets": "rltok_rl.models.config",
    "rltok_rl.training.distributed": "rltok_rl.training.parallel",
    "rltok_rl.viz.marked_text": "rltok_rl.viz.text_figures",
}
"""Old name to new name, of modules that had a page in the reference."""


class _Alias(Loader):
    """Load an old name as the module of its new name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MODULES[spec.name]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has just put the old name there; the code has run already


class RenamedModules(MetaPathFinder):
    """Find modules by the names that they had before."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The module of the new name, if ``name`` is an old one."""
        return ModuleSpec(name, _Alias()) if name in MODULES else None


def install() -> None:
    """Let old names be imported; behind all other finders, so that a module that exists comes first."""
    if RenamedModules not in sys.meta_path:
        sys.meta_path.append(RenamedModules)
