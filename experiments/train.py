"""Train a boundary policy and its language model.

    python -m rltok_rl.experiments.train baseline=siblings optim.total_bytes=4_000_000 out=runs/mine

In several processes, with the same figures:

    torchrun --nproc-per-node 2 -m rltok_rl.experiments.train compute.strategy=ddp out=runs/mine

Options are those of :class:`~rltok_rl.experiments.config.TrainConfig`; groups (``model=``, ``data=``, ``estimator=``,
``baseline=``, ``loss=``, ``rate=``, ``actor=``, ``segmenter=``, ``optim=``, ``compute=``, ``logger=``,
``experiment=``) are the yaml files in ``conf``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import hydra
import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rltok_rl.experiments import option_help
from rltok_rl.experiments.bench.harness import keep_memory, machine
from rltok_rl.experiments.build import make_trainer
from rltok_rl.experiments.checks import check_options, check_policy, read_device
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.finished import left_as_it_is, write_model, write_sample
from rltok_rl.experiments.names import (
    allow_new,
    check_arguments,
    check_sweep_folder,
    leave_no_sweep,
    leave_nothing,
    missing_folders,
    option_names,
    typed,
)
from rltok_rl.experiments.overrides import one_line, one_line_errors, option_words
from rltok_rl.experiments.recording import Recorder, result_line
from rltok_rl.experiments.report import write_report
from rltok_rl.experiments.resuming import last_state
from rltok_rl.experiments.texts import Texts

from rltok_rl.training import Trainer, TrainingFailed
from rltok_rl.training.checkpoint import CheckpointError
from rltok_rl.training.distributed import Processes, Refused, init_processes, main_speaks
from rltok_rl.training.files import claim_folder, replace_text
from rltok_rl.training.loggers import check_logger
from rltok_rl.training.record import bytes_per_second, peak_memory
from rltok_rl.training.sharding import whole_model
from rltok_rl.training.signals import StopRequest


def run(config: TrainConfig, command: str, processes: Processes | None = None) -> dict[str, Any]:
    """Train, write the run's folder, and return its summary; of several processes the main one writes."""
    keep_memory()
    check_options(config)
    check_logger(config.logger.name)
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    trainer, texts = make_trainer(config, processes)
    with claim_folder(Path(config.out)) if trainer.processes.main else contextlib.nullcontext():
        return _train(config, command, trainer, texts)


def _train(config: TrainConfig, command: str, trainer: Trainer, texts: Texts) -> dict[str, Any]:
    """The same, in a folder that no other run is writing to."""
    out, processes = Path(config.out), trainer.processes
    resuming, state = processes.broadcast(last_state(config, texts) if processes.main else None)
    if state is not None:
        trainer.load_state_dict(state)
    if processes.main and state is not None:
        print(f"resuming {out} after update {trainer.updates}", file=sys.stderr)
    if processes.main:
        print(f"{config.data.source}: {texts.described}", file=sys.stderr)
    if state is not None and trainer.done:
        model = whole_model(trainer.model)
        kept = left_as_it_is(config, trainer, model) if processes.main else None
        if (kept := processes.broadcast(kept)) is not None:
            return kept
    recorder = Recorder(config, trainer, texts, resuming=resuming, command=command)

    if processes.main and config.compute.compile:
        print("compiling layers: the first updates take minutes, and the time left is told too long", file=sys.stderr)
    with StopRequest(say=processes.main) as stop, recorder:

        def after_update(figures: dict[str, float]) -> bool:
            recorder.after_update(figures)
            if trainer.told is not None and trainer.told.update < trainer.updates:
                return False  # others are told of next
            stopping = processes.any(bool(stop))  # the signal may not have reached all yet
            if stopping or trainer.done or trainer.updates % config.checkpoint_every == 0:
                recorder.save()
            return stopping

        def wanted() -> bool:
            asked = processes.group is None and bool(stop)  # several processes agree on it where figures are told
            return asked or recorder.wanted or trainer.updates % config.checkpoint_every == 0

        trainer.run(after_update, tell_when=wanted)
    model = whole_model(trainer.model)
    reached = {"updates": trainer.updates, "bytes": trainer.bytes_done}
    if not processes.main:
        return reached
    write_model(config, trainer, model)
    if not trainer.done:
        asked = stop.name or "another process was asked to stop"
        print(f"\n{asked}: saved after update {trainer.updates}; go on with resume=true", file=sys.stderr)
        return dict(reached, stopped=stop.signal or signal.SIGTERM)
    print("trained; looking at held-out text, drawing figures", file=sys.stderr)
    look = recorder.last_look(model)
    summary = {
        "command": recorder.starts.entries[0]["command"],
        "machine": machine(processes.device.type),
        "processes": processes.world_size,
        **reached,
        "flops": trainer.flops_done,
        "padded_flops": trainer.padded_flops_done,
        "tried_flops": trainer.tried_flops_done,
        "total_flops": trainer.total_flops_done,
        "bytes_per_second": bytes_per_second(recorder.starts.entries),
        "threads": torch.get_num_threads(),
        **peak_memory(processes.device),
        **{name: look[name] for name in look if name.startswith("held_out_")},
    }
    replace_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_sample(out, look)
    report = write_report(out)
    print(result_line(recorder.first_look(), look))
    print(f"report: {report}")
    return summary


@hydra.main(version_base="1.3", config_path=str(Path(__file__).resolve().parent / "conf"), config_name="train")
def configured(config: Any) -> None:
    """Train what Hydra has put together."""
    try:
        missing = OmegaConf.missing_keys(config)
        check_sweep_folder(config, sys.argv[1:])
    except (ValueError, OmegaConfBaseException) as error:
        _end(one_line(str(error)))
    if missing:
        _end(f"{min(missing)} must be given")
    made = OmegaConf.to_object(config)
    assert isinstance(made, TrainConfig)
    with contextlib.redirect_stderr(sys.__stderr__):
        try:
            device = read_device(made.compute.device)
        except ValueError as error:
            _end(str(error))
        try:
            processes = init_processes(device)
        except RuntimeError as error:  # of this process, perhaps alone
            sys.exit(f"rltok train: {error}")
        if made.compare.systems:
            _compare(made)
            return
        try:
            with processes:
                _run_or_refuse(made, typed(sys.argv, processes.world_size if processes.group else None), processes)
        except Refused as error:
            sys.exit(str(error))


def _run_or_refuse(config: TrainConfig, command: str, processes: Processes) -> None:
    """Train; errors that say what is wrong with what was asked for are that and no more."""
    if config.resume and processes.main and not (Path(config.out) / "config.yaml").exists():
        print(f"nothing to go on with in {config.out}: a new run", file=sys.stderr)
    absent = missing_folders(Path(config.out))
    try:
        done = run(config, command, processes)
    except (ValueError, TypeError, OSError, ImportError, CheckpointError, TrainingFailed) as error:
        if "HYDRA_FULL_ERROR" in os.environ:
            raise
        # The system names the file that it cannot open, and not the one that it cannot write into.
        nameless = isinstance(error, OSError) and error.errno is not None and error.filename is None
        if processes.main:
            leave_nothing(absent)
            if not isinstance(error, TrainingFailed):
                leave_no_sweep()
        message = option_words(str(error), option_names())
        raise Refused(f"rltok train: {message}{f', writing to {config.out}' if nameless else ''}") from None
    if "stopped" in done and processes.group is None:  # torchrun would take a status for a process that died
        sys.exit(128 + done["stopped"])


def _end(message: str) -> NoReturn:
    """End because of the options, which are the same in all processes: the main one says so."""
    leave_no_sweep()
    sys.exit(f"rltok train: {message}" if main_speaks() else 1)


def _compare(config: TrainConfig) -> None:
    """Train the systems of a comparison."""
    from rltok_rl.experiments import compare

    if not main_speaks() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.exit("rltok train: compare.systems are trained by one process each, got several (torchrun)")
    absent = missing_folders(Path(config.out))
    try:
        compare.run(config, typed(sys.argv))
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        if "HYDRA_FULL_ERROR" in os.environ:
            raise
        leave_nothing(absent)
        leave_no_sweep()
        sys.exit(f"rltok train: {option_words(str(error), option_names())}")


def main() -> None:
    """Command line."""
    if any(one in ("-h", "--help") for one in sys.argv[1:]):
        print(option_help.train())
        return
    try:
        sys.argv[1:] = check_arguments(sys.argv[1:])
        check_policy(sys.argv[1:])
    except (ValueError, OSError) as error:
        _end(str(error))
    sys.argv[1:] = allow_new(sys.argv[1:])
    if not main_speaks():  # options are the same in all processes: the main one prints them, and errors
        sys.argv += ["hydra.output_subdir=null", "hydra/job_logging=disabled"]
    with one_line_errors("rltok train", speak=main_speaks()):
        configured()


if __name__ == "__main__":
    main()
