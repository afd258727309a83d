"""Read the folder of a run, finished or not, and the models of its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.agents.segmenters.saved import rebuild_segmenter
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.experiments.runs.saved_options import read_options

from rltok_rl.foreign import MOST_STATE, read_config_file, read_json
from rltok_rl.models import UNet, UNetConfig
from rltok_rl.models.weights import build_empty, fill
from rltok_rl.training.checkpoint import load_checkpoint
from rltok_rl.training.environment import read_starts
from rltok_rl.training.metrics import read_lines, read_table
from rltok_rl.viz.run_figures import flops_key

EVALUATION = "evaluation.json"
"""File of a comparison's system: its metrics on held-out documents."""


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path
    config: dict[str, Any]
    """All options (``config.yaml``)."""
    model: dict[str, Any]
    """Fields of the model's configuration and ``parameters`` (``model.json``); empty if missing."""
    starts: list[dict[str, Any]]
    """Environment of each start of the run (``environment.json``)."""
    history: dict[str, list[float]]
    """Columns of ``metrics.csv``."""
    snapshots: list[dict[str, Any]]
    """Lines of ``samples.jsonl``."""
    alarms: list[dict[str, Any]]
    """Lines of ``alarms.log``."""
    summary: dict[str, Any] | None
    """None while the run is unfinished (``summary.json``)."""
    evaluation: dict[str, Any] | None = None
    """None unless the run is a system of a comparison (``evaluation.json``)."""

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def held_out(self) -> dict[str, list[float]]:
        """Numbers of the snapshots, by column."""
        first = self.snapshots[0] if self.snapshots else {}
        names = [name for name, value in first.items() if isinstance(value, (int, float))]
        return {name: [snapshot[name] for snapshot in self.snapshots] for name in names}

    @property
    def target_rate(self) -> float | None:
        """Target of boundaries per byte; None if the text alone decides."""
        return self.model.get("target_rate")

    @property
    def bytes_done(self) -> int:
        """Bytes trained on so far."""
        return int(self.history["bytes"][-1]) if self.history else 0

    @property
    def last_flops(self) -> float | None:
        """Total FLOPs after the last update, or FLOPs of updates if the run has no record of the total."""
        return self.last_value(flops_key(self.history))

    def last_value(self, metric: str) -> float | None:
        """Return a training metric after the last update."""
        values = self.history.get(metric)
        return values[-1] if values else None

    def final_mean(self, metric: str) -> float | None:
        """Average a training metric over the last fortieth of the updates: single updates are noisy."""
        values = self.history.get(metric, [])
        final = values[-max(1, len(values) // 40) :]
        return sum(final) / len(final) if final else None

    def option(self, path: str) -> Any:
        """Return an option by its dotted name, or None if the run has no such option."""
        value: Any = self.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value


def read_run(path: Path) -> RunFolder:
    """Read a run's folder."""
    if not os.path.lexists(path / "config.yaml"):
        raise FileNotFoundError(f"{path} is not the folder of a run: it must hold config.yaml")
    content: dict[str, Any] = {"config": OmegaConf.to_container(read_config_file(path / "config.yaml"))}
    for field, (name, read) in _FILES.items():
        try:
            content[field] = read(path / name)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path / name} cannot be read: {error}") from None
    run = RunFolder(path=path, **content)
    _add_total_flops(run)
    return run


def _read_json(path: Path) -> Any:
    return read_json(path, MOST_STATE) if path.exists() else None


def _read_object(path: Path) -> Any:
    value = _read_json(path)
    if not isinstance(value, (dict, type(None))):
        raise ValueError(f"it must hold values by name, got {type(value).__name__}")
    return value


def _objects(read: Callable[[Path], Any]) -> Callable[[Path], list[dict[str, Any]]]:
    def check(path: Path) -> list[dict[str, Any]]:
        rows = read(path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("it must hold rows of values by name")
        return rows

    return check


_FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "model": ("model.json", lambda path: _read_object(path) or {}),
    "starts": ("environment.json", _objects(read_starts)),
    "history": ("metrics.csv", read_table),
    "snapshots": ("samples.jsonl", _objects(read_lines)),
    "alarms": ("alarms.log", _objects(read_lines)),
    "summary": ("summary.json", _read_object),
    "evaluation": (EVALUATION, _read_object),
}
"""Fields of a run, the files that hold them, and their readers."""


def _add_total_flops(run: RunFolder) -> None:
    """Estimate ``total_flops`` on the way if only the summary has trials: both grow with the FLOPs of updates."""
    summary = run.summary or {"tried_flops": 0.0}
    if summary.get("tried_flops") is None:
        return
    scale = 1.0 + summary["tried_flops"] / summary.get("flops", 1.0)
    if "flops" in run.history:
        run.history.setdefault("total_flops", [scale * flops for flops in run.history["flops"]])
    for snapshot in run.snapshots:
        if "flops" in snapshot:
            snapshot.setdefault("total_flops", scale * snapshot["flops"])


def is_checkpoint(path: Path) -> bool:
    """Whether a path is the folder of a checkpoint."""
    return path.name.startswith("update-") and (path / "manifest.json").is_file()


def load_checkpointed(path: Path, device: torch.device, *, trust_code: bool = False) -> tuple[UNet, Segmenter | None]:
    """Load the model of a run's checkpoint and its segmenter (None: its own policy), in evaluation mode.

    With ``trust_code``, a custom segmenter, ``module:Class``, that the run's ``config.yaml`` names is imported and
    executed; without, it is an error.
    """
    run = read_run(path.resolve().parent.parent)
    names = {field.name for field in fields(UNetConfig)}
    sizes = {name: value for name, value in run.model.items() if name in names}
    if sizes.get("target_rate") is None:  # the segmenter has none
        sizes.pop("target_rate", None)
    state: dict[str, Any] = load_checkpoint(path)[1]
    where = str(run.path / "model.json")
    try:
        config, weights = UNetConfig.from_dict(sizes), dict(state["model"])
        num_bytes = sum(x.nbytes for x in weights.values())
        drawn = None if state.get("segmenter") is None else dict(state["segmenter"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{where} and {path} must be of a U-Net, but cannot be used: {error}") from None
    build_empty(UNet, config, where, num_tensors=len(weights), num_bytes=num_bytes)
    model = UNet(config)
    fill(model, weights, path, "model.json", assign=False)
    model = model.to(device).eval()
    return model, _segmenter(run, model, drawn, trust_code)


def _segmenter(run: RunFolder, model: UNet, state: dict[str, Any] | None, trust_code: bool) -> Segmenter | None:
    options = read_options(run.path / "config.yaml")
    name, given = options.segmenter.name, options.segmenter.options
    if state is None and name != "learned":
        segmenter = f"the segmenter {name!r}"
        raise ValueError(f"{run.path / 'config.yaml'} names {segmenter}, of which the checkpoint holds nothing")
    if state is None and options.actor.name == "learned":
        return None
    from rltok_rl.experiments.runs.segmenters import TOKENIZERS, TRAINED_WITH, actor_segmenter  # imports for seconds

    if state is None:
        return actor_segmenter(options.actor.name, options.actor.rate, model)[0].eval()
    if name in TOKENIZERS:
        given = {key: value for key, value in given.items() if key not in TRAINED_WITH}
        where, text = f"the segmenter {name!r} of {run.path}", state.get("tokenizer")
        if not isinstance(text, str):
            raise ValueError(f"{where} must hold a tokenizer, got {text!r}")
        given["tokenizer"] = read_tokenizer(text, TOKENIZERS[name], where, trust_code=trust_code)
    return rebuild_segmenter(run.path / "config.yaml", name, given, model, state, trust_code=trust_code)
