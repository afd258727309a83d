"""Renamed modules, names and option words. The old ones work for one minor version, with a warning."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

MODULES = {
    "rltok_rl.data.cache": "rltok_rl.data.byte_cache",
    "rltok_rl.data.languages.base": "rltok_rl.data.languages.boundary_language",
    "rltok_rl.diagnostics.comparison": "rltok_rl.diagnostics.gradient_quality",
    "rltok_rl.diagnostics.drawing": "rltok_rl.diagnostics.exact",
    "rltok_rl.diagnostics.expected": "rltok_rl.diagnostics.exact",
    "rltok_rl.diagnostics.gradients": "rltok_rl.diagnostics.gradient_quality",
    "rltok_rl.diagnostics.memory": "rltok_rl.diagnostics.exact",
    "rltok_rl.diagnostics.report": "rltok_rl.diagnostics.estimator_report",
    "rltok_rl.envs.plan": "rltok_rl.envs.rollout_plan",
    "rltok_rl.evaluation.choices": "rltok_rl.evaluation.tasks",
    "rltok_rl.evaluation.harness": "rltok_rl.evaluation.lm_eval",
    "rltok_rl.functional.imports": "rltok_rl.utils",
    "rltok_rl.functional.metrics": "rltok_rl.functional.policy_metrics",
    "rltok_rl.functional.numbers": "rltok_rl.utils",
    "rltok_rl.functional.saved_config": "rltok_rl.utils",
    "rltok_rl.functional.smoothing": "rltok_rl.functional.routing",
    "rltok_rl.functional.text": "rltok_rl.text",
    "rltok_rl.models.flop_meter": "rltok_rl.experiments.bench.flop_meter",
    "rltok_rl.models.packing": "rltok_rl.models.tokens",
    "rltok_rl.models.pooling": "rltok_rl.models.tokens",
    "rltok_rl.models.presets": "rltok_rl.models.config",
    "rltok_rl.objectives.policy": "rltok_rl.objectives.policy_loss",
    "rltok_rl.objectives.rate": "rltok_rl.objectives.rate_loss",
    "rltok_rl.objectives.view": "rltok_rl.objectives.time_last",
    "rltok_rl.training.record": "rltok_rl.training.environment",
    "rltok_rl.training.traffic": "rltok_rl.experiments.bench.traffic",
    "rltok_rl.viz.comparison": "rltok_rl.viz.run_figures",
    "rltok_rl.viz.marked_text": "rltok_rl.viz.text_figures",
}
"""Old name to new name, of modules that had a page in the reference."""

WORDS: dict[str, dict[str, str]] = {
    "baseline": {
        "batch_centred": "batch_mean",
        "group_centred": "group_mean",
        "siblings": "group_mean",
        "normalised": "z_score",
        "z_normalised": "z_score",
    },
    "estimator": {"critic": "critic_advantage", "flips": "local_flips", "return": "discounted_return"},
    "candidate": {
        "flips": "local_flips",
        "flips_far": "local_flips_far",
        "siblings_2": "group_mean_2",
        "siblings_4": "group_mean_4",
        "siblings_8": "group_mean_8",
        "z_normalised": "z_score",
    },
}
"""Old option words to new ones, by kind."""

OPTIONS = {"baseline.name": "baseline", "estimator.name": "estimator"}
"""Options in ``config.yaml`` whose values are such words, and their kind."""

_LIBRARIES = ("rltok_rl", "torch", "tensordict", "torchrl")
Value = TypeVar("Value")


def current_word(kind: str, word: str) -> str:
    """Return the current form of an option word; ``kind`` is a key of :data:`WORDS`."""
    return WORDS.get(kind, {}).get(word, word)


def current_text(text: str) -> str:
    """Replace the old names of baselines in backquotes, as a page of results has them."""
    return re.sub(r"`(\w+)`", lambda word: f"`{current_word('baseline', word[1])}`", text)


def renamed_word(kind: str, word: str) -> str:
    """Return the current form of an option word, with a warning if the word is an old one."""
    current = current_word(kind, word)
    if current != word:
        warn_caller(f"{kind} {word!r} is now {current!r}")
    return current


def warn_caller(message: str) -> None:
    """Warn of an old name at the line of the first caller outside of the library and of torch, whose wrappers call it.

    By default Python shows a DeprecationWarning only if that line is in the program itself.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def rename_options(config: MutableMapping[Any, Any]) -> None:
    """Replace the old words in the nested options of a run, in place and without a warning."""
    for name, kind in OPTIONS.items():
        group, _, option = name.partition(".")
        options = config.get(group)
        if isinstance(options, MutableMapping) and isinstance(options.get(option), str):
            options[option] = current_word(kind, options[option])


def renamed_names(module: Mapping[str, Any], names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module, given its ``globals()``, with old names of its objects."""

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(f"{module['__name__']}.{name} is now {new}", DeprecationWarning, stacklevel=2)
        return module[new]

    return __getattr__


class RenamedKeys(dict[str, Value]):
    """A dictionary of option words that accepts the old ones, with a warning."""

    def __init__(self, kind: str, items: Mapping[str, Value]) -> None:
        super().__init__(items)
        self.kind = kind

    def __contains__(self, key: object) -> bool:
        return super().__contains__(current_word(self.kind, key) if isinstance(key, str) else key)

    def __missing__(self, key: str) -> Value:
        if key not in self:
            raise KeyError(key)
        return self[renamed_word(self.kind, key)]


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


class RenamedModules:
    """Find modules by the names that they had before."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the module of the new name, if ``name`` is an old one."""
        return ModuleSpec(name, _Alias()) if name in MODULES else None


def install() -> None:
    """Let old names be imported, after all other finders, so that a module that exists comes first."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())


class RenamedAttribute:
    """A method or attribute under its old name, with a warning."""

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = f"{owner.__name__}.{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        warnings.warn(f"{self.old} is now {self.new}", DeprecationWarning, stacklevel=2)
        return getattr(instance, self.new)
