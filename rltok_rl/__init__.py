"""Token boundaries as a reinforcement-learning environment.

A byte-level language model draws its own token boundaries; a policy gradient teaches it where. The names below are
enough to build a model, run it and write with it; everything else lives in the sub-packages.
"""

from __future__ import annotations

from pathlib import Path

# In a checkout, envs/, agents/ and experiments/ lie beside this package; installed, they lie inside it. Looking there
# as well makes `rltok_rl.envs` importable from a checkout without installation. A wheel has no such neighbours.
_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "envs" / "__init__.py").is_file():
    __path__.append(str(_CHECKOUT))

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
