"""Token boundaries as a reinforcement-learning environment.

A byte-level language model draws its own token boundaries; a policy gradient teaches it where. The names below are
enough to build a model, run it and write with it; everything else lives in the sub-packages.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent


class _Neighbours:
    """Find `rltok_rl.envs` and its like beside this package, where a checkout has them; a wheel has them inside.

    Adding the checkout to ``__path__`` would do as well, but then `rltok_rl.tests`, and `rltok_rl.rltok_rl` with the
    whole package once more inside it, and so on, could be imported too.
    """

    names = frozenset({"rltok_rl.envs", "rltok_rl.agents", "rltok_rl.experiments"})

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(_CHECKOUT)]) if name in cls.names else None


if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "envs" / "__init__.py").is_file():
    sys.meta_path.insert(0, _Neighbours)  # first: an editable installation of another checkout must not mix in

from rltok_rl.envs.registration import register as _register  # noqa: E402 - imports need the path
from rltok_rl.functional.text import ids_to_bytes, text_to_ids  # noqa: E402 - imports need the path
from rltok_rl.models import PRESETS, UNet, UNetConfig, UNetOutput, parameter_counts, preset  # noqa: E402
from rltok_rl.models.generation import generate, stream  # noqa: E402
from rltok_rl.sampling import sample_boundaries  # noqa: E402
from rltok_rl.version import __version__  # noqa: E402

_register()

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
    "stream",
    "text_to_ids",
]
