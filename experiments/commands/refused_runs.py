"""Remove the folders of a run that was refused before it began."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from rltok_rl.training.atomic_files import CLAIM


def missing_folders(folder: Path) -> list[Path]:
    """List the folder and its parents that do not exist, the deepest first.

    Args:
        folder: of a run.
    """
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders unless they hold files.

    Args:
        folders: from :func:`missing_folders`, before the run made them.
    """
    for folder in folders:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [CLAIM]:
                (folder / CLAIM).unlink()
            folder.rmdir()


def remove_sweep() -> None:
    """Remove what Hydra has written for a sweep whose first run was refused."""
    hydra = HydraConfig.get() if HydraConfig.initialized() else None
    if hydra is None or hydra.mode != RunMode.MULTIRUN or hydra.job.num != 0:
        return
    sweep = Path(hydra.sweep.dir)
    parents = [] if sweep.is_absolute() else list(sweep.parents)[:-1]
    (sweep / "multirun.yaml").unlink(missing_ok=True)
    remove_empty([sweep / hydra.sweep.subdir, sweep, *parents])
