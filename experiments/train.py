"""Train a boundary policy and its language model: the Hydra entry point.

    python -m rltok_rl.experiments.train baseline=group_mean optim.total_bytes=4_000_000 out=runs/mine

In several processes, with equal metrics:

    torchrun --nproc-per-node 2 -m rltok_rl.experiments.train compute.strategy=ddp out=runs/mine

Options are those of :class:`~rltok_rl.experiments.run_config.TrainConfig`; groups (``model=``, ``data=``,
``estimator=``, ``baseline=``, ``loss=``, ``rate=``, ``actor=``, ``segmenter=``, ``optim=``, ``compute=``, ``logger=``,
``experiment=``) are the yaml files in ``conf``.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import hydra
import torch
from omegaconf import OmegaConf
from rltok_rl.experiments.commands import help as option_help
from rltok_rl.experiments.commands.option_errors import option_words
from rltok_rl.experiments.commands.overrides import CommandLine, option_types, typed
from rltok_rl.experiments.commands.run_checks import missing_folders, read_run_options, remove_empty, remove_sweep
from rltok_rl.experiments.compare.systems import check_training
from rltok_rl.experiments.reports.run_report import write_report
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.run import run as training_run
from rltok_rl.experiments.runs.valid_options import check_options, read_device

from rltok_rl.objectives.base import MissingEntryError
from rltok_rl.ranges import check_fields
from rltok_rl.training import TrainingFailed
from rltok_rl.training.checkpoint import CheckpointError
from rltok_rl.training.distributed import Processes, Refused, init_processes, is_main_rank, wait_for_main_error
from rltok_rl.utils import printable_lines


def run(config: TrainConfig, command: str, processes: Processes | None = None) -> dict[str, Any]:
    """Train, write the run's folder and its report, and return its summary."""
    return training_run(config, command, processes, report=write_report)


@hydra.main(version_base="1.3", config_path=str(Path(__file__).resolve().parent / "conf"), config_name="train")
def configured(config: Any) -> None:
    """Train with the configuration that Hydra composed."""
    options = OmegaConf.to_object(config)
    assert isinstance(options, TrainConfig)
    try:
        check_fields(options.compute, "compute.")
        device, timeout = read_device(options.compute.device), timedelta(minutes=options.compute.timeout_minutes)
    except (TypeError, ValueError) as error:
        _end(str(error))
    try:
        processes = init_processes(device, timeout=timeout, hang_seconds=options.compute.hang_seconds)
    except RuntimeError as error:  # perhaps of this rank alone
        sys.exit(f"rltok train: {error}")
    if options.compare.systems:
        _compare(options)
        return
    try:
        with processes:
            _run_or_refuse(options, typed(sys.argv, processes.world_size if processes.group else None), processes)
    except Refused as error:
        sys.exit(str(error))


def _run_or_refuse(config: TrainConfig, command: str, processes: Processes) -> None:
    """Train; print the errors of wrong options without a traceback."""
    if config.resume and processes.main and not (Path(config.out) / "config.yaml").exists():
        print(f"nothing to resume in {config.out}: a new run", file=sys.stderr)
    absent = missing_folders(Path(config.out))
    try:
        summary = run(config, command, processes)
    except (ValueError, TypeError, OSError, ImportError, MissingEntryError, MemoryError, RuntimeError) as error:
        of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
        crashed = isinstance(error, RuntimeError) and not isinstance(error, (CheckpointError, TrainingFailed))
        if "HYDRA_FULL_ERROR" in os.environ or (crashed and not of_memory):
            raise
        # The system names a file that it cannot open, but not one that it cannot write to.
        nameless = isinstance(error, OSError) and error.errno is not None and error.filename is None
        if processes.main:
            remove_empty(absent)
            if not isinstance(error, TrainingFailed):
                remove_sweep()
        if of_memory:
            raise Refused("rltok train: not enough memory for this model and these batches; lower a size") from None
        raise Refused(f"rltok train: {_named(error)}{f', writing to {config.out}' if nameless else ''}") from None
    if "stopped" in summary and processes.group is None:  # torchrun takes a status for a crash
        sys.exit(128 + summary["stopped"])


def _compare(config: TrainConfig) -> None:
    """Train the systems of a comparison."""
    from rltok_rl.experiments.compare import train_systems

    if not is_main_rank() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.exit("rltok train: compare.systems are trained by one process each, got several (torchrun)")
    absent = missing_folders(Path(config.out))
    try:
        train_systems.run(config, typed(sys.argv))
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        if "HYDRA_FULL_ERROR" in os.environ:
            raise
        remove_empty(absent)
        _end(_named(error))


def _named(error: Exception) -> str:
    """The message, with the name of the option instead of a Python parameter's."""
    return printable_lines(option_words(str(error), [*option_types(TrainConfig)]))


def _end(message: str) -> NoReturn:
    """Exit because of the options; they are the same on all ranks, and rank 0 prints the error."""
    remove_sweep()
    wait_for_main_error()
    sys.exit(f"rltok train: {printable_lines(message)}" if is_main_rank() else 1)


def check_sweep(line: CommandLine) -> list[TrainConfig]:
    """Return the options of all runs; a later one is refused before the first begins."""
    configs: list[Any] = [OmegaConf.to_object(config) for config in line.configs]
    for number, options in enumerate(configs):
        try:
            check_options(options)
            if not options.compare.systems:
                check_training(options)
        except (ValueError, TypeError) as error:
            raise ValueError(f"run {number} of the sweep: {_named(error)}") from None
    return configs


def main(line: CommandLine | None = None) -> None:
    """Train with the options of a command line that is checked already; default: those of ``sys.argv``."""
    if line is None:
        if {"-h", "--help"} & {*sys.argv[1:]}:
            print(option_help.train())
            return
        try:
            line = read_run_options("train", sys.argv[1:])
        except ValueError as error:
            _end(str(error))
    try:
        if len(line.configs) > 1:
            check_sweep(line)
    except ValueError as error:
        _end(str(error))
    sys.argv[1:] = line.arguments
    if not is_main_rank():  # rank 0 prints options and errors
        sys.argv += ["hydra.output_subdir=null", "hydra/job_logging=disabled"]
    configured()


if __name__ == "__main__":
    main()
