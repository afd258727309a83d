"""Resume a run: check that configuration and documents are the same, and load the newest checkpoint that is intact."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rltok_rl.experiments.recipes import flat
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.folder import check_update, find_unrecorded
from rltok_rl.experiments.runs.record import TRAINED_ON
from rltok_rl.experiments.runs.run_files import LOGS, check_places, remove_partial
from rltok_rl.experiments.runs.saved_options import find_missing_options, read_options
from rltok_rl.experiments.texts import Texts

from rltok_rl.training import Trainer
from rltok_rl.training.checkpoint import (
    CheckpointError,
    find_damage,
    find_lost,
    list_checkpoints,
    load_checkpoint,
    recorded_files,
    remove_leftovers,
)

FREE = (
    *("out", "resume", "checkpoint_", "logger."),
    *("recipe", "changes"),  # words for other options, which are compared
    # Speed and memory alone. Metrics are equal to the last bit if these are equal too; `padded_flops` depends on them.
    *("compute.strategy", "compute.compile", "compute.fused", "compute.threads", "compute.tokens"),
    *("compute.token_room", "compute.figures_every", "compute.recompute", "compute.likelihood_chunk"),
    *("compute.timeout_minutes", "compute.hang_seconds"),
)
"""Options that may change when a run is resumed."""


def last_state(config: TrainConfig, texts: Texts) -> tuple[bool, str, dict[str, Any] | None]:
    """Return whether the folder's run is resumed, its checkpoint and the state; cut its logs to the checkpoint."""
    out = Path(config.out)
    check_places(out)
    if not config.resume:
        if (out / "config.yaml").exists() and (out / "metrics.csv").exists():
            status = "is finished" if (out / "summary.json").exists() else "was stopped: resume=true resumes it"
            raise FileExistsError(f"out={out} holds a run, which {status}; choose another folder for a new one")
        if (out / "config.yaml").exists() and not list_checkpoints(out / "checkpoints"):
            _remove_logs(out)  # of a run that failed before its first update, such as one of a custom estimator
        return False, "", None
    if not (out / "config.yaml").exists():
        if (out / "metrics.csv").exists():
            raise FileNotFoundError(
                f"{out} must hold config.yaml beside metrics.csv to be resumed, got none; restore it, or choose "
                f"another folder"
            )
        return False, "", None
    check_same_run(config, out / "config.yaml")
    remove_leftovers(out / "checkpoints")
    remove_partial(out)
    checkpoint, lost = choose_checkpoint(out)
    if checkpoint is None:
        if (out / "summary.json").exists():
            raise FileNotFoundError(f"{out} is finished and has no checkpoints: there is nothing to resume or repair")
        print(f"warning: {out} has no checkpoint: it begins again", file=sys.stderr)
        _remove_logs(out)
        return True, "", None
    state = load_checkpoint(checkpoint)[1]
    check_update(checkpoint, state)
    check_texts(out, config.data.source, texts.sha256, state)
    for file, (num_bytes, _) in recorded_files(checkpoint).items():
        if file.name in LOGS and file not in lost and file.exists():
            os.truncate(file, num_bytes)  # after a power cut, what follows need not be lines
    return True, str(checkpoint), state


def _remove_logs(out: Path) -> None:
    """Remove the logs of a run that begins again."""
    for name in LOGS:
        (out / name).unlink(missing_ok=True)


def check_texts(out: Path, source: str, sha256: str | None, state: dict[str, Any] | None = None) -> None:
    """Refuse texts other than those whose hash the run has recorded in a checkpoint's state; default: the newest's.

    Without an intact checkpoint nothing is known and nothing refused.
    """
    if state is None:
        try:
            state = load_checkpoint(out / "checkpoints")[1]
        except (FileNotFoundError, CheckpointError):
            return
    trained_on = state.get(TRAINED_ON)
    if trained_on is not None and trained_on != sha256:
        raise ValueError(
            f"{out} was trained on other texts than data.source={source!r} has now (sha256 {trained_on} there, "
            f"{sha256} here); restore those texts, or choose another folder"
        )


def load_state(trainer: Trainer, checkpoint: str, state: dict[str, Any]) -> None:
    """Load the state of a checkpoint of this run; an error names the checkpoint, and the part that does not fit."""
    try:
        trainer.load_state_dict(state)
        if trainer.bytes_done != (num_bytes := trainer.updates * trainer.bytes_per_update):
            raise ValueError(
                f"bytes_done of the state must be {num_bytes:,} after {trainer.updates:,} updates of "
                f"{trainer.bytes_per_update:,} bytes, got {trainer.bytes_done:,}"
            )
    except ValueError as error:
        raise ValueError(f"{checkpoint} cannot be resumed: {error}") from None


def choose_checkpoint(out: Path) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest checkpoint that is intact and whose logs still hold its lines; print what is wrong with others.

    If no checkpoint has all its lines, return the newest that is intact, and the logs that have lost some. None if
    there are no checkpoints.
    """
    problems: list[str] = []
    intact, missing = None, dict[Path, str]()
    for path in reversed(list_checkpoints(out / "checkpoints")):
        damage = find_damage(path) or find_unrecorded(path)
        lost = {} if damage else find_lost(path)
        problems += [damage] if damage else lost.values()
        if damage is None and (intact is None or not lost):
            intact, missing = path, lost
        if damage is None and not lost:
            break
    else:
        if problems and intact is None:
            raise CheckpointError(f"{'; '.join(problems)}; restore it, or choose another folder")
        problems += ["no checkpoint is from before the lost lines, which are not made again"] if problems else []
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    return intact, missing


def check_same_run(config: TrainConfig, path: Path) -> None:
    """Refuse to resume the run of a ``config.yaml`` under another configuration; the world size may differ."""
    mine = _options(OmegaConf.structured(config))
    theirs = _options(OmegaConf.structured(read_options(path)))
    names = [name for name in {**mine, **theirs} if not name.startswith(FREE)]
    differing = [name for name in names if mine.get(name) != theirs.get(name)]
    if not differing:
        return
    if missing := find_missing_options(path):
        raise ValueError(f"{missing}; restore it")
    changes = ", ".join(f"{name}: {theirs.get(name)!r} there, {mine.get(name)!r} here" for name in differing)
    remedy = "choose another folder"
    if all(name.startswith("optim.") for name in differing):
        remedy += f", or continue training from its model: model.weights={path.parent} out=..."
    raise ValueError(f"{path} is of a run with another configuration ({changes}); {remedy}")


def _options(config: Any) -> dict[str, Any]:
    options = flat(OmegaConf.to_container(config))  # type: ignore[arg-type]
    # Another device of the same kind will do; other kinds draw other random numbers.
    return {**options, "compute.device": str(options["compute.device"]).split(":")[0]}
