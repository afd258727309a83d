"""Figures for TensorBoard, Weights & Biases and others, through TorchRL's loggers; ours are in ``metrics.csv`` anyway."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrl.record.loggers import Logger, TensorboardLogger, WandbLogger


@dataclass(frozen=True, kw_only=True)
class LogTarget:
    """Where figures of a run go."""

    folder: Path
    """Of the run; what a logger writes lies in it."""
    run_name: str
    project: str = "rltok_rl"
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration, for loggers that show it."""
    resume_after: int | None = None
    """The last update that is kept of a run that resumes, whose later figures come again; None for a new run."""


Maker = Callable[..., Logger]
_MAKERS: dict[str, tuple[Maker, str | None]] = {}


def register_logger(name: str, make: Maker, *, package: str | None = None) -> None:
    """Make a logger known by name.

    Args:
        name: for ``logger.name`` of a configuration.
        make: called with a :class:`LogTarget` and the options of the configuration; returns a ``torchrl`` logger.
        package: what has to be installed for it, as pip and ``import`` know it.
    """
    _MAKERS[name] = make, package


def logger_names() -> list[str]:
    """All names; ``csv`` is the table that every run writes, and nothing besides."""
    return ["csv", *_MAKERS]


def check_logger(name: str) -> None:
    """Refuse a logger that is not known or whose package is not there, before anything else is done.

    Args:
        name: of the logger.

    Example:
        >>> check_logger("paper")
        Traceback (most recent call last):
        ValueError: logger.name must be one of ['csv', 'tensorboard', 'wandb'], got 'paper'
    """
    if name not in logger_names():
        raise ValueError(f"logger.name must be one of {logger_names()}, got {name!r}")
    package = None if name == "csv" else _MAKERS[name][1]
    if package is not None and importlib.util.find_spec(package) is None:
        raise ImportError(
            f"logger.name {name!r} needs the package {package}: pip install {package}, or choose another of "
            f"{logger_names()}"
        )


class Logging:
    """A logger of TorchRL, or none, told what every update and every snapshot reported.

    Args:
        name: ``csv`` for none, or a registered one.
        target: where figures go.
        **options: of the logger.

    Example:
        >>> with Logging("csv", LogTarget(folder=Path("runs/mine"), run_name="mine")) as logging:
        ...     logging.add("train", {"loss": 2.0}, update=1)
    """

    def __init__(self, name: str, target: LogTarget, **options: Any) -> None:
        check_logger(name)
        if name == "csv" and options:
            raise ValueError(f"logger.options must be empty for logger.name 'csv', got {options}")
        self.logger = None if name == "csv" else _MAKERS[name][0](target, **options)

    def add(self, group: str, figures: Mapping[str, float], *, update: int) -> None:
        """Report figures.

        Args:
            group: ``train`` or ``held_out``, written before their names.
            figures: by name.
            update: that they are of.
        """
        if self.logger is not None:
            self.logger.log_metrics({f"{group}/{name}": value for name, value in figures.items()}, step=update)

    def __enter__(self) -> Logging:
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left."""
        experiment = getattr(self.logger, "experiment", None)
        for ending in ("finish", "close"):
            if hasattr(experiment, ending):
                getattr(experiment, ending)()
                return


class ResumingTensorboard(TensorboardLogger):
    """TorchRL's logger for TensorBoard, whose figures after a resumption replace those that were cut.

    Args:
        exp_name: folder of the events.
        log_dir: folder around it.
        resume_after: the last update to keep; None for a new run.
    """

    def __init__(self, exp_name: str, log_dir: str, *, resume_after: int | None = None) -> None:
        self.resume_after = resume_after
        super().__init__(exp_name=exp_name, log_dir=log_dir)

    def _create_experiment(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        after = self.resume_after
        purge = None if after is None else after + 1 if after else 0  # update 0 is looked at anew, too
        return SummaryWriter(log_dir=str(Path(self.log_dir) / self.exp_name), purge_step=purge)


class ResumingWandb(WandbLogger):
    """TorchRL's logger for Weights & Biases with updates for steps, so that what comes again is not shown twice."""

    def log_metrics(self, metrics: Any, step: int | None = None, **options: Any) -> dict[str, Any]:
        """Report figures; those of steps that were reported before are dropped.

        Args:
            metrics: by name.
            step: the update.
            **options: of TorchRL's logger.
        """
        return super().log_metrics(metrics, step, **{**options, "override_global_step": True})


def _tensorboard(target: LogTarget) -> Logger:
    return ResumingTensorboard("tensorboard", str(target.folder), resume_after=target.resume_after)


def _wandb(target: LogTarget, **options: Any) -> Logger:
    # What TorchRL would note of the machine has names of folders in it; ours has not.
    defaults = {"config": dict(target.config), "log_env_packages": False, "project": target.project}
    name = run_id(target.folder / "wandb-id.txt", keep=target.resume_after is not None)
    return ResumingWandb(target.run_name, id=name, save_dir=str(target.folder), **{**defaults, **options})


def run_id(path: Path, *, keep: bool) -> str:
    """A name that tells a run from all others, and stays when it resumes.

    Args:
        path: of the file that holds it.
        keep: take the one that is there, if there is one.
    """
    if not (keep and path.exists()):
        path.write_text(uuid.uuid4().hex[:12] + "\n")
    return path.read_text().strip()


register_logger("tensorboard", _tensorboard, package="tensorboard")
register_logger("wandb", _wandb, package="wandb")
