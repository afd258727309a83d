"""The folder of a run, read back: finished or not, while it is written or years later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rltok_rl.training.metrics import read_lines, read_table
from rltok_rl.training.record import read_starts
from rltok_rl.utils import read_config_file
from rltok_rl.viz.series import spent

BY_TEXT = ("spacebyte", "whitespace")
"""Segmenters that aim at no rate."""


@dataclass(frozen=True)
class RunFolder:
    """What a run left behind so far."""

    path: Path
    config: dict[str, Any]
    """All options, as ``config.yaml`` has them."""
    model: dict[str, Any]
    """Sizes, and ``parameters``; empty for runs that did not note them."""
    starts: list[dict[str, Any]]
    """Environments, one per start."""
    history: dict[str, list[float]]
    """A list per column of ``metrics.csv``."""
    looks: list[dict[str, Any]]
    """Lines of ``samples.jsonl``."""
    alarms: list[dict[str, Any]]
    summary: dict[str, Any] | None
    """None while the run is unfinished."""

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.path.resolve().name

    @property
    def held_out(self) -> dict[str, list[float]]:
        """The looks' figures, a list each, beside the bytes and FLOPs at which they were taken."""
        names = [k for k, v in (self.looks[0] if self.looks else {}).items() if isinstance(v, (int, float))]
        return {name: [look[name] for look in self.looks] for name in names}

    @property
    def target_rate(self) -> float | None:
        """Boundaries per byte that were aimed at; None where the text alone decides."""
        by_text = self.option("segmenter.name") in BY_TEXT  # older versions noted what the model had in its place
        return None if by_text else self.model.get("target_rate")

    @property
    def bytes_done(self) -> int:
        """Bytes trained on so far."""
        return int(self.history["bytes"][-1]) if self.history else 0

    def last_value(self, name: str) -> float | None:
        """A figure after the last update.

        Args:
            name: of the column.
        """
        values = self.history.get(name)
        return values[-1] if values else None

    @property
    def last_flops(self) -> float | None:
        """FLOPs after the last update: those that figures are drawn against."""
        return self.last_value(spent(self.history))

    def last(self, name: str) -> float | None:
        """A figure of training: the mean of its last fortieth, since single updates are noise.

        Args:
            name: of the column.
        """
        values = self.history.get(name, [])[-max(1, len(self.history.get(name, [])) // 40) :]
        return sum(values) / len(values) if values else None

    def option(self, path: str) -> Any:
        """An option by its dotted name; None where the run has no such option.

        Args:
            path: such as ``optim.lr``.
        """
        found: Any = self.config
        for key in path.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return found


def read_run(path: Path) -> RunFolder:
    """Read a run's folder.

    Args:
        path: of the folder.
    """
    if not (path / "config.yaml").is_file():
        raise FileNotFoundError(f"{path} is not the folder of a run: it must hold config.yaml")
    config: Any = OmegaConf.to_container(read_config_file(path / "config.yaml"))
    name = "model.json"
    try:
        model = _json(path / name) or {}
        name = "environment.json"
        starts = read_starts(path / name)
        name = "metrics.csv"
        history = read_table(path / name)
        name = "summary.json"
        summary = _json(path / name)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path / name} cannot be read: {error}") from None
    looks = read_lines(path / "samples.jsonl")
    _add_total_flops(history, looks, summary)
    return RunFolder(
        path=path,
        config=config,
        model=model,
        starts=starts,
        history=history,
        looks=looks,
        alarms=read_lines(path / "alarms.log"),
        summary=summary,
    )


def _add_total_flops(
    history: dict[str, list[float]], looks: list[dict[str, Any]], summary: dict[str, Any] | None
) -> None:
    """Add ``total_flops`` where a run recorded trials in its summary alone: they grow with the FLOPs of the updates."""
    if summary is not None and summary.get("tried_flops") is None:
        return
    tried, flops = ((summary or {}).get(name) or 0.0 for name in ("tried_flops", "flops"))
    scale = 1.0 + (tried / flops if flops else 0.0)
    if "flops" in history and "total_flops" not in history:
        history["total_flops"] = [scale * value for value in history["flops"]]
    for look in looks:
        if "flops" in look and "total_flops" not in look:
            look["total_flops"] = scale * look["flops"]


def flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted names.

    Example:
        >>> flat({"seed": 1, "optim": {"lr": 0.1}})
        {'seed': 1, 'optim.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in options.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
