"""The model of a checkpoint, as it was in the middle of its training: ``RUN/checkpoints/update-00000200``."""

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

_PREFIX = "update-"


def is_checkpoint(path: Path) -> bool:
    """Whether this is the folder of a checkpoint.

    Args:
        path: of a folder, which may not be there.
    """
    return path.name.startswith(_PREFIX) and (path / "manifest.json").is_file()


def load_checkpointed(path: Path, device: torch.device, *, trust_code: bool = False) -> tuple[UNet, Segmenter | None]:
    """The model of a checkpoint and who draws its boundaries (None: its own policy), in evaluation mode.

    Args:
        path: of a checkpoint inside the folder of its run.
        device: where to put the weights.
        trust_code: whether to import and execute custom code, ``module:Class``, if the run's ``config.yaml`` names it
            as its segmenter. The default raises an error instead.
    """
    run = read_run(path.resolve().parent.parent)
    known = {field.name for field in fields(UNetConfig)}
    sizes = {name: value for name, value in run.model.items() if name in known}
    if sizes.get("target_rate") is None:  # the segmenter aims at no rate, so the run records none
        sizes.pop("target_rate", None)
    model = UNet(UNetConfig.from_dict(sizes))
    state: dict[str, Any] = load_checkpoint(path)[1]
    model.load_state_dict(state["model"])
    model = model.to(device).eval()
    return model, _segmenter(run, model, state.get("segmenter"), trust_code)


def _segmenter(run: RunFolder, model: UNet, state: dict[str, Any] | None, trust_code: bool) -> Segmenter | None:
    from rltok_rl.experiments.runs.segmenters import (  # what they need takes seconds to import
        TOKENIZERS,
        actor_segmenter,
    )

    config, path = run.config, run.path / "config.yaml"
    if state is None:
        actor = config.get("actor") or {"name": "learned"}
        if actor["name"] == "learned":
            return None
        return actor_segmenter(actor["name"], actor.get("rate"), model)[0].eval()
    name, options = str(config["segmenter"]["name"]), dict(config["segmenter"].get("options") or {})
    if name in TOKENIZERS:
        from rltok_rl.experiments.runs.tokenizer import TRAINED_WITH

        options = {key: value for key, value in options.items() if key not in TRAINED_WITH}
        options["tokenizer"] = read_tokenizer(state["tokenizer"], TOKENIZERS[name])
    return rebuild_segmenter(path, name, options, model, state, trust_code=trust_code)
