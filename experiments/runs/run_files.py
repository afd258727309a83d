"""The files of a run: places that it may write to, and hashes of what a finished run holds.

Pages and figures have no hashes, because they can be drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltok_rl.data.disk import checksum
from rltok_rl.foreign import check_place
from rltok_rl.training.checkpoint import CHECKPOINT

LOGS = ("metrics.csv", "samples.jsonl", "alarms.log")
"""Files with lines by update, which a checkpoint records."""
FILES = "files"
"""Key of a summary: the SHA-256 of the run's files by name."""
PARTIAL = ".*.partial"
"""Files that :func:`~rltok_rl.data.disk.replace_text` is writing, or a killed process has left."""
_WRITTEN = (*LOGS, ".lock", "report.md", "wandb-id.txt")
_RESULTS = ("config.yaml", "environment.json", "model.json", "sample.txt")
_REPLACED = (*_RESULTS, "summary.json")  # as a whole
_FOLDERS = ("checkpoints", "model", "model/.partial", "figures", "tensorboard", "wandb")


def check_places(out: Path) -> None:
    """Refuse links in a run's folder through which files elsewhere would be written, cut or removed."""
    checkpoints = [path for path in (out / "checkpoints").glob("*") if CHECKPOINT.fullmatch(path.name)]
    figures = (out / "figures").glob("*")
    for folder in (*(out / name for name in _FOLDERS), *checkpoints):
        check_place(folder, folder=True)
    replaced = filter(Path.is_dir, (out / name for name in _REPLACED))
    for file in (*(out / name for name in _WRITTEN), *replaced, *filter(Path.is_symlink, figures)):
        check_place(file)


def remove_partial(out: Path) -> None:
    """Remove what killed processes have left of a run's files that are written again."""
    for name in (*_REPLACED, *LOGS, "report.md"):
        for path in out.glob(f".{name}*.partial"):
            if path.is_symlink() or not path.is_dir():
                path.unlink()


def hash_files(out: Path) -> dict[str, str]:
    """Return the SHA-256 of the files that a finished run has, by name."""
    paths = [*(out / name for name in (*_RESULTS, *LOGS)), *sorted((out / "model").glob("*"))]
    return {path.relative_to(out).as_posix(): checksum(path) for path in paths if path.is_file()}


def find_changed(out: Path, summary: Mapping[str, Any]) -> dict[str, str]:
    """Describe the files of a finished run that are not as its summary has recorded them, by name."""
    now, changed = hash_files(out), "was changed after the end of the run (its checksum differs)"
    if FILES not in summary:
        return {"summary.json": f"{out / 'summary.json'} must hold hashes of the run's files, got none"}
    then = dict(summary[FILES])
    words = {
        **dict.fromkeys(then.keys() - now.keys(), "is missing"),
        **dict.fromkeys(now.keys() - then.keys(), "was added after the end of the run; remove it"),
        **{name: changed for name in then.keys() & now.keys() if then[name] != now[name]},
    }
    return {name: f"{out / name} {words[name]}" for name in sorted(words)}
