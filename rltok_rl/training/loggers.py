"""TorchRL loggers by name: TensorBoard, Weights & Biases and others, in addition to ``metrics.csv``."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrl.record.loggers import Logger, TensorboardLogger, WandbLogger, get_logger


@dataclass(frozen=True, kw_only=True)
class LogTarget:
    """The run whose metrics are logged."""

    folder: Path
    """The run's folder, for the logger's files."""
    run_name: str
    project: str = "rltok_rl"
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration, for loggers that show it."""
    resume_after: int | None = None
    """The last update to keep of a resumed run, whose later metrics come again; None for a new run."""


Maker = Callable[..., Logger]
_MAKERS: dict[str, tuple[Maker, str | None]] = {}


def register_logger(name: str, make: Maker, *, package: str | None = None) -> None:
    """Register a logger for ``logger.name``.

    ``make`` takes a :class:`LogTarget` and ``logger.options``, and returns a TorchRL logger. ``package`` is one that it
    needs, under its name for pip and ``import``.
    """
    _MAKERS[name] = make, package


def logger_names() -> list[str]:
    """Return all names; ``csv`` adds nothing to the table that every run writes."""
    return ["csv", *_MAKERS]


def check_logger(name: str) -> None:
    """Raise an error if a logger is unknown or its package is missing."""
    if name not in logger_names():
        raise ValueError(f"logger.name must be one of {logger_names()}, got {name!r}")
    package = None if name == "csv" else _MAKERS[name][1]
    if package is not None and importlib.util.find_spec(package) is None:
        raise ImportError(
            f"logger.name {name!r} needs the package {package}: pip install {package}, or choose another of "
            f"{logger_names()}"
        )


class Logging:
    """A TorchRL logger by its name, or none for ``csv``, as a context that closes it.

    Example:
        >>> with Logging("csv", LogTarget(folder=Path("runs/mine"), run_name="mine")) as logging:
        ...     logging.add("train", {"loss": 2.0}, update=1)
    """

    def __init__(self, name: str, target: LogTarget, **options: Any) -> None:
        check_logger(name)
        if name == "csv" and options:
            raise ValueError(f"logger.options must be empty for logger.name 'csv', got {options}")
        self.logger = None if name == "csv" else _MAKERS[name][0](target, **options)
        # With its own count of steps, W&B would log the updates after a resumption twice.
        self._options = {"override_global_step": True} if isinstance(self.logger, WandbLogger) else {}

    def add(self, group: str, metrics: Mapping[str, float], *, update: int) -> None:
        """Log metrics under the names ``train/...`` or ``held_out/...``, which ``group`` begins."""
        if self.logger is not None:
            named = {f"{group}/{name}": value for name, value in metrics.items()}
            self.logger.log_metrics(named, step=update, **self._options)

    def __enter__(self) -> Logging:
        return self

    def __exit__(self, *_: object) -> None:
        experiment = getattr(self.logger, "experiment", None)
        close = getattr(experiment, "finish", None) or getattr(experiment, "close", None)
        if close is not None:
            close()


class ResumingTensorboard(TensorboardLogger):
    """TorchRL's TensorBoard logger, which drops the metrics after the update ``resume_after``: they come again."""

    def __init__(self, exp_name: str, log_dir: str, *, resume_after: int | None = None) -> None:
        self.resume_after = resume_after
        super().__init__(exp_name=exp_name, log_dir=log_dir)

    def _create_experiment(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        after = self.resume_after
        purge = None if after is None else after + 1 if after else 0  # update 0 is evaluated again, too
        return SummaryWriter(log_dir=str(Path(self.log_dir) / self.exp_name), purge_step=purge)


def _tensorboard(target: LogTarget, **options: Any) -> Logger:
    if options:
        raise ValueError(f"logger.options must be empty for logger.name 'tensorboard', got {options}")
    return ResumingTensorboard("tensorboard", str(target.folder), resume_after=target.resume_after)


def _wandb(target: LogTarget, **options: Any) -> Logger:
    # TorchRL's own record of the machine contains folder names.
    defaults = {"config": dict(target.config), "log_env_packages": False, "project": target.project}
    run = run_id(target.folder / "wandb-id.txt", keep=target.resume_after is not None)
    return get_logger("wandb", str(target.folder), target.run_name, wandb_kwargs={"id": run, **defaults, **options})


def run_id(path: Path, *, keep: bool) -> str:
    """Return the run's identifier, which a resumed run keeps in a file."""
    if not (keep and path.exists()):
        path.write_text(uuid.uuid4().hex[:12] + "\n")
    return path.read_text().strip()


register_logger("tensorboard", _tensorboard, package="tensorboard")
register_logger("wandb", _wandb, package="wandb")
