"""Read the folder of a run, finished or not, and the models of its checkpoints."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.agents.segmenters.saved import rebuild_segmenter
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.experiments.runs.run_files import FILES, LOGS
from rltok_rl.experiments.runs.saved_options import read_options

from rltok_rl.foreign import (
    COUNT,
    MOST_STATE,
    NAMED,
    NUMBER,
    POSITIVE,
    SWITCH,
    TEXT,
    ValueKind,
    check_rows,
    check_values,
    read_config_file,
    read_json,
)
from rltok_rl.models import UNet, UNetConfig
from rltok_rl.models.weights import build_empty, fill
from rltok_rl.training.checkpoint import CheckpointError, load_checkpoint, read_state, recorded_files
from rltok_rl.training.environment import read_starts
from rltok_rl.training.metrics import read_lines, read_table
from rltok_rl.training.sharding import check_weights
from rltok_rl.training.trainer_state import check_state
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
        names = [name for name in first if all(NUMBER.fits(snapshot.get(name)) for snapshot in self.snapshots)]
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


def read_summary(path: Path) -> dict[str, Any]:
    """Read a ``summary.json``."""
    return check_values(read_json(path, MOST_STATE), _SUMMARY, path)


def read_run(path: Path) -> RunFolder:
    """Read a run's folder."""
    if not os.path.lexists(path / "config.yaml"):
        raise FileNotFoundError(f"{path} is not the folder of a run: it must hold config.yaml")
    content: dict[str, Any] = {"config": OmegaConf.to_container(read_config_file(path / "config.yaml"))}
    for field, (name, read) in _FILES.items():
        try:
            content[field] = read(path / name)
        except (ValueError, TypeError, KeyError, RecursionError, csv.Error) as error:
            raise ValueError(f"{path / name} cannot be read: {error}") from None
    run = RunFolder(path=path, **content)
    check_values({name: run.option(name) for name in _OPTIONS}, _OPTIONS, path / "config.yaml")
    _add_total_flops(run)
    return run


def read_snapshots(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a ``samples.jsonl``."""
    rows = check_rows(read_lines(path), _SNAPSHOT, path, _SAMPLED)
    for number, row in enumerate(rows, 1):
        lengths = [len(row[name]) for name in ("text", "boundaries", "probabilities")]
        if len({*lengths}) > 1:
            raise ValueError(
                f"text, boundaries and probabilities in row {number} of {path} must have equal lengths, got {lengths}"
            )
    return rows


def _read_history(path: Path) -> dict[str, list[float]]:
    columns = read_table(path)
    for name in ("update", "bytes") if columns else ():
        if not all(0 <= value < 2**63 for value in columns.get(name, [-1])):
            raise ValueError(f"it must have a column {name} of integers in [0, 2^63)")
    return columns


def _read_json(path: Path) -> Any:
    return read_json(path, MOST_STATE) if path.exists() else None


def _object(kinds: Mapping[str, ValueKind], *required: str) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        value = _read_json(path)
        return None if value is None else check_values(value, kinds, "it", required)

    return read


def _is_rated(row: Any) -> bool:
    return isinstance(row, dict) and all(NUMBER.fits(row.get(name)) for name in ("rate", "bits_per_byte"))


_HELD_OUT = {
    f"held_out_{name}{end}": NUMBER
    for name in ("bits_per_byte", "early_bits_per_byte", "rate", "return", "episode_return", "relative_return", "share")
    for end in ("", "_standard_error")
} | {"held_out_standard_error": NUMBER}
_SAMPLED = {
    "update": COUNT,
    "bytes": COUNT,
    "text": ValueKind(
        "a string of characters up to U+00FF, at least one",
        lambda text: TEXT.fits(text) and text != "" and max(text) <= "\xff",
    ),
    "boundaries": ValueKind("a string of 0 and 1", lambda marks: TEXT.fits(marks) and {*marks} <= {*"01"}),
    "probabilities": ValueKind("a number in [0, 1]", lambda value: NUMBER.fits(value) and 0 <= value <= 1).several(),
    "held_out_bits_per_byte": NUMBER,
    "held_out_rate": NUMBER,
}
_SNAPSHOT = _HELD_OUT | _SAMPLED | dict.fromkeys(("flops", "padded_flops", "total_flops"), POSITIVE)
_MODEL = {
    **dict.fromkeys(("parameters", "segmenter_parameters", "num_special"), COUNT),
    "target_rate": NUMBER.or_none(),
}
_ALARM = {"update": COUNT, "warning": TEXT}
_SUMMARY = {
    **_HELD_OUT,
    **dict.fromkeys(("command", "machine"), TEXT),
    FILES: TEXT.by_name(),
    **dict.fromkeys(("updates", "bytes", "processes", "threads", "peak_memory", "peak_gpu_memory"), COUNT),
    "flops": ValueKind("a finite number of at least 1", lambda value: POSITIVE.fits(value) and value >= 1),
    **dict.fromkeys(("padded_flops", "total_flops"), POSITIVE),
    **dict.fromkeys(("tried_flops", "bytes_per_second"), POSITIVE.or_none()),
}
_EVALUATED = {
    "corpus_bits_per_byte": NUMBER,
    **dict.fromkeys(("corpus_standard_error", "early_corpus_bits_per_byte"), NUMBER.or_none()),
}
_EVALUATION = {
    **_EVALUATED,
    "rate": NUMBER,
    "target_rate": NUMBER.or_none(),
    "target_rates": NUMBER.by_name().or_none(),
    "oracle": SWITCH,
    "split_by": TEXT.or_none(),
    "word_edges": NUMBER.or_none().by_name().by_name(),
    "at_rates": ValueKind(
        "a list of a rate and bits per byte each",
        lambda rows: isinstance(rows, list) and all(map(_is_rated, rows)),
    ),
    **dict.fromkeys(("documents", "windows", "bytes", "rows_per_text"), COUNT),
    **dict.fromkeys(("counts", "nats"), NUMBER.several()),
}
_OPTIONS = {
    **dict.fromkeys(("data.num_rows", "data.num_steps", "snapshots.batches", "snapshots.num_bytes"), COUNT.or_none()),
    **dict.fromkeys(("optim.total_bytes", "estimator.gamma", "segmenter.options.vocabulary"), NUMBER.or_none()),
    **dict.fromkeys(("segmenter.name", "actor.name", "estimator.name", "baseline.name"), TEXT.or_none()),
    **dict.fromkeys(("baseline", "loss", "rate", "model.overrides", "data.options"), NAMED.or_none()),
    **{f"{group}.options": NAMED.or_none() for group in ("segmenter", "estimator", "baseline", "rate")},
}
"""Options that pages compute with; those of a run to be resumed are checked by :func:`read_options`."""
_FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "model": ("model.json", lambda path: _object(_MODEL)(path) or {}),
    "starts": ("environment.json", read_starts),
    "history": ("metrics.csv", _read_history),
    "snapshots": ("samples.jsonl", read_snapshots),
    "alarms": ("alarms.log", lambda path: check_rows(read_lines(path), _ALARM, "it", _ALARM)),
    "summary": ("summary.json", _object(_SUMMARY)),
    "evaluation": (EVALUATION, _object(_EVALUATION, *_EVALUATED)),
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
    state: dict[str, Any] = load_checkpoint(path)[1]
    try:
        weights = dict(state["model"])
        config, num_bytes = _model_config(run), sum(x.nbytes for x in weights.values())
        drawn = None if state.get("segmenter") is None else dict(state["segmenter"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        where = run.path / "model.json"
        raise ValueError(f"{where} and {path} must be of a U-Net, but cannot be used: {error}") from None
    build_empty(UNet, config, str(run.path / "model.json"), num_tensors=len(weights), num_bytes=num_bytes)
    model = UNet(config)
    fill(model, weights, path, "model.json", assign=False)
    model = model.to(device).eval()
    return model, _segmenter(run, model, drawn, trust_code)


def find_misfit(run: RunFolder, path: Path) -> str | None:
    """Name what the state of an intact checkpoint lacks; None if nothing is missing that is known without its run."""

    def check_model(weights: Mapping[str, Any]) -> None:
        num_bytes, where = sum(x.nbytes for x in weights.values()), str(run.path / "model.json")
        if not weights:
            raise ValueError("it is empty")
        if run.model:  # without it, nothing says what else the weights must be
            empty = build_empty(UNet, _model_config(run), where, num_tensors=len(weights), num_bytes=num_bytes)
            check_weights(empty.state_dict(), weights)

    try:
        state = read_state(path)
        check_update(path, state)
        check_state(state, check_model)
        if state["segmenter"] is None and run.option("segmenter.name") not in (None, "learned"):
            raise ValueError(f"it has no segmenter, but config.yaml names {run.option('segmenter.name')!r}")
    except (CheckpointError, ValueError) as error:
        return str(error) if str(path) in str(error) else f"{path} cannot be resumed: {error}"
    return None


def find_unrecorded(path: Path) -> str | None:
    """Name the logs that an intact checkpoint of a run has not recorded; None if it has recorded all."""
    recorded = [file.name for file in recorded_files(path)]
    if recorded == [*LOGS]:
        return None
    return f"{path / 'manifest.json'} must record {[*LOGS]}, got {recorded}"


def check_update(path: Path, state: Mapping[str, Any]) -> None:
    """Require that a checkpoint holds the state after the update that it is named after."""
    update = int(path.name.removeprefix("update-"))
    if state.get("updates", update) != update:
        raise ValueError(f"{path} must hold the state after update {update}, got updates={state['updates']!r}")


def _model_config(run: RunFolder) -> UNetConfig:
    names = {field.name for field in fields(UNetConfig)}
    sizes = {name: value for name, value in run.model.items() if name in names}
    if sizes.get("target_rate") is None:  # the segmenter has none
        sizes.pop("target_rate", None)
    return UNetConfig.from_dict(sizes)


def _segmenter(run: RunFolder, model: UNet, state: dict[str, Any] | None, trust_code: bool) -> Segmenter | None:
    options = read_options(run.path / "config.yaml")
    name, kwargs = options.segmenter.name, options.segmenter.options
    if state is None and name != "learned":
        segmenter = f"the segmenter {name!r}"
        raise ValueError(f"{run.path / 'config.yaml'} names {segmenter}, of which the checkpoint holds nothing")
    if state is None and options.actor.name == "learned":
        return None
    from rltok_rl.experiments.runs.segmenters import TOKENIZERS, TRAINED_WITH, actor_segmenter  # imports for seconds

    if state is None:
        return actor_segmenter(options.actor.name, options.actor.rate, model)[0].eval()
    if name in TOKENIZERS:
        kwargs = {key: value for key, value in kwargs.items() if key not in TRAINED_WITH}
        where, text = f"the segmenter {name!r} of {run.path}", state.get("tokenizer")
        if not isinstance(text, str):
            raise ValueError(f"{where} must hold a tokenizer, got {text!r}")
        kwargs["tokenizer"] = read_tokenizer(text, TOKENIZERS[name], where, trust_code=trust_code)
    return rebuild_segmenter(run.path / "config.yaml", name, kwargs, model, state, trust_code=trust_code)
