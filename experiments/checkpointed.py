"""The model of a checkpoint, as it was in the middle of its training: ``RUN/checkpoints/update-00000200``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter, make_segmenter
from rltok_rl.agents.segmenters.saved import load_own_state, read_tokenizer
from rltok_rl.experiments.run_folder import read_run

from rltok_rl.models import UNet, UNetConfig
from rltok_rl.training.checkpoint import load_checkpoint

_PREFIX = "update-"


def is_checkpoint(path: Path) -> bool:
    """Whether this is the folder of a checkpoint.

    Args:
        path: of a folder, which may not be there.
    """
    return path.name.startswith(_PREFIX) and (path / "manifest.json").is_file()


def load_checkpointed(path: Path, device: torch.device) -> tuple[UNet, Segmenter | None]:
    """The model of a checkpoint and who draws its boundaries (None: its own policy), in evaluation mode.

    Args:
        path: of a checkpoint inside the folder of its run.
        device: where to put the weights.
    """
    run = read_run(path.resolve().parent.parent)
    known = {field.name for field in fields(UNetConfig)}
    model = UNet(UNetConfig.from_dict({name: value for name, value in run.model.items() if name in known}))
    state: dict[str, Any] = load_checkpoint(path)[1]
    model.load_state_dict(state["model"])
    model = model.to(device).eval()
    return model, _segmenter(run.config, model, state.get("segmenter"))


def _segmenter(config: dict[str, Any], model: UNet, state: dict[str, Any] | None) -> Segmenter | None:
    from rltok_rl.experiments.segmenting import TOKENIZERS, actor_segmenter  # what they need takes seconds to import

    if state is None:
        actor = config.get("actor") or {"name": "learned"}
        if actor["name"] == "learned":
            return None
        return actor_segmenter(actor["name"], actor.get("rate"), model)[0].eval()
    name, options = config["segmenter"]["name"], dict(config["segmenter"].get("options") or {})
    if name in TOKENIZERS:
        from rltok_rl.experiments.pieces import TRAINED_WITH

        options = {key: value for key, value in options.items() if key not in TRAINED_WITH}
        options["tokenizer"] = read_tokenizer(state["tokenizer"], TOKENIZERS[name])
    segmenter = make_segmenter(name, model, **options)
    load_own_state(segmenter, model, state)
    return segmenter.eval()
