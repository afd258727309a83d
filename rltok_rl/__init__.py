"""Token boundaries as a reinforcement-learning environment.

A byte-level language model draws its own token boundaries; a policy gradient teaches it where. The names below build,
run and sample a model. They are loaded when they are first used, so that importing this package does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from rltok_rl.version import __version__

_CHECKOUT = Path(__file__).resolve().parent.parent


class _Neighbours:
    """Find `rltok_rl.envs`, `agents` and `experiments` next to this package in a checkout; a wheel contains them.

    With the checkout in ``__path__``, `rltok_rl.tests` and `rltok_rl.rltok_rl` could be imported too.
    """

    names = frozenset({"rltok_rl.envs", "rltok_rl.agents", "rltok_rl.experiments"})

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(_CHECKOUT)]) if name in cls.names else None


if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "envs" / "__init__.py").is_file():
    sys.meta_path.insert(0, _Neighbours)  # first: an editable installation of another checkout must not mix in

from rltok_rl import renamed as _renamed  # noqa: E402 - needs the path
from rltok_rl.envs.registration import register_on_import as _register_on_import  # noqa: E402 - needs the path

_register_on_import()
_renamed.install()

if TYPE_CHECKING:
    from rltok_rl.models import PRESETS, UNet, UNetConfig, UNetOutput, parameter_counts, preset, segment
    from rltok_rl.models.generation import generate, stream
    from rltok_rl.sampling import sample_boundaries
    from rltok_rl.text import ids_to_bytes, text_to_ids
else:
    _HOMES = {
        "text": ("ids_to_bytes", "text_to_ids"),
        "models": ("PRESETS", "UNet", "UNetConfig", "UNetOutput", "parameter_counts", "preset", "segment"),
        "models.generation": ("generate", "stream"),
        "sampling": ("sample_boundaries",),
    }
    _HOME = {name: home for home, names in _HOMES.items() for name in names}
    _PACKAGES = frozenset(
        {"agents", "data", "diagnostics", "envs", "evaluation", "functional", "models"}
        | {"objectives", "sampling", "training", "viz"}
    )

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        return globals()[name]


__all__ = [
    "PRESETS",
    "UNet",
    "UNetConfig",
    "UNetOutput",
    "__version__",
    "generate",
    "ids_to_bytes",
    "parameter_counts",
    "preset",
    "sample_boundaries",
    "segment",
    "stream",
    "text_to_ids",
]


def __dir__() -> list[str]:
    return sorted(__all__)
