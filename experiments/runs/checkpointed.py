"""Load the model of a checkpoint in the middle of training: ``RUN/checkpoints/update-00000200``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.agents.segmenters.saved import rebuild_segmenter
from rltok_rl.agents.segmenters.tokenizers import read_tokenizer
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.models import UNet, UNetConfig
from rltok_rl.training.checkpoint import load_checkpoint


def is_checkpoint(path: Path) -> bool:
    """Whether a path is the folder of a checkpoint."""
    return path.name.startswith("update-") and (path / "manifest.json").is_file()


def load_checkpointed(path: Path, device: torch.device, *, trust_code: bool = False) -> tuple[UNet, Segmenter | None]:
    """Load the model of a checkpoint and its segmenter (None: its own policy), in evaluation mode.

    Args:
        path: a checkpoint inside the folder of its run.
        device: device of the weights.
        trust_code: import and execute a custom segmenter, ``module:Class``, that the run's ``config.yaml`` names. The
            default raises an error instead.
    """
    run = read_run(path.resolve().parent.parent)
    names = {field.name for field in fields(UNetConfig)}
    sizes = {name: value for name, value in run.model.items() if name in names}
    if sizes.get("target_rate") is None:  # the segmenter has none
        sizes.pop("target_rate", None)
    model = UNet(UNetConfig.from_dict(sizes))
    state: dict[str, Any] = load_checkpoint(path)[1]
    model.load_state_dict(state["model"])
    model = model.to(device).eval()
    return model, _segmenter(run, model, state.get("segmenter"), trust_code)


def _segmenter(run: RunFolder, model: UNet, state: dict[str, Any] | None, trust_code: bool) -> Segmenter | None:
    actor = run.option("actor.name")
    if state is None and actor == "learned":
        return None
    from rltok_rl.experiments.runs.segmenters import TOKENIZERS, TRAINED_WITH, actor_segmenter  # imports for seconds

    if state is None:
        return actor_segmenter(actor, run.option("actor.rate"), model)[0].eval()
    name, options = str(run.option("segmenter.name")), dict(run.option("segmenter.options") or {})
    if name in TOKENIZERS:
        options = {key: value for key, value in options.items() if key not in TRAINED_WITH}
        options["tokenizer"] = read_tokenizer(state["tokenizer"], TOKENIZERS[name])
    return rebuild_segmenter(run.path / "config.yaml", name, options, model, state, trust_code=trust_code)
