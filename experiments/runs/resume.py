"""Going on with a run: whether it is the same one, and where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs.folder import flat
from rltok_rl.experiments.runs.record import TRAINED_ON
from rltok_rl.experiments.texts import Texts

from rltok_rl.training.checkpoint import list_checkpoints, load_checkpoint
from rltok_rl.utils import read_config_file

FREE = (
    "out",
    "resume",
    "checkpoint_every",
    "logger.",
    # How fast the same figures are made, and in which memory. To the last bit they are the same where these are, too;
    # `padded_flops` then adds up what was laid out in several ways.
    "compute.strategy",
    "compute.compile",
    "compute.threads",
    "compute.tokens",
    "compute.token_room",
    "compute.figures_every",
    "compute.recompute",
    "compute.likelihood_chunk",
)
"""Options that a run may be gone on with differently."""


def check_same_run(config: TrainConfig, path: Path) -> None:
    """Refuse to go on with a run under another configuration; processes may be more or fewer.

    Args:
        config: that is asked for.
        path: ``config.yaml`` of the run.
    """
    mine = _options(OmegaConf.structured(config))
    # Over the schema: an option that came after a run was begun is there as it is by default.
    theirs = _options(OmegaConf.merge(OmegaConf.structured(TrainConfig), read_config_file(path)))
    names = [name for name in {**mine, **theirs} if not name.startswith(FREE)]
    differing = [name for name in names if mine.get(name) != theirs.get(name)]
    if not differing:
        return
    shown = ", ".join(f"{name}: {theirs.get(name)!r} there, {mine.get(name)!r} here" for name in differing)
    remedy = "choose another folder"
    if all(name.startswith("optim.") for name in differing):
        remedy += f", or train its model on from there: model.weights={path.parent} out=..."
    raise ValueError(f"{path} is of a run with another configuration ({shown}); {remedy}")


def _options(config: Any) -> dict[str, Any]:
    held = OmegaConf.to_container(config)
    assert isinstance(held, dict)
    options = flat(held)  # type: ignore[arg-type]
    # Another device of a kind will do. One of another kind has random numbers of its own.
    return {**options, "compute.device": str(options["compute.device"]).split(":")[0]}


def check_same_texts(config: TrainConfig, state: dict[str, Any], texts: Texts) -> None:
    """Refuse to go on with a run on texts that have changed under their name.

    Args:
        config: that is asked for.
        state: of the checkpoint.
        texts: that the configuration names now.
    """
    there = state.get(TRAINED_ON)
    if there is not None and there != texts.sha256:
        raise ValueError(
            f"{config.out} was trained on other texts than data.source={config.data.source!r} has now (sha256 {there} "
            f"there, {texts.sha256} here); give it those texts, or choose another folder"
        )


def last_state(config: TrainConfig, texts: Texts) -> tuple[bool, dict[str, Any] | None]:
    """Whether a folder's run is to be gone on with, and the state of its newest checkpoint.

    Args:
        config: that is asked for.
        texts: that it names.
    """
    out = Path(config.out)
    if not config.resume:
        if (out / "config.yaml").exists() and (out / "metrics.csv").exists():
            how = "is finished" if (out / "summary.json").exists() else "was stopped: resume=true goes on with it"
            raise FileExistsError(f"out={out} holds a run, which {how}; choose another folder for a new one")
        return False, None
    if not (out / "config.yaml").exists():
        return False, None
    check_same_run(config, out / "config.yaml")
    checkpoints = out / "checkpoints"
    if not list_checkpoints(checkpoints):
        return True, None
    state = load_checkpoint(checkpoints)[1]
    check_same_texts(config, state, texts)
    return True, state
