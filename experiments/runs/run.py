"""One training, from its configuration to its summary."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.runs.finish import left_as_it_is, write_model, write_sample
from rltok_rl.experiments.runs.record import Recorder, result_line
from rltok_rl.experiments.runs.resume import last_state
from rltok_rl.experiments.runs.valid_options import check_options
from rltok_rl.experiments.texts import Texts

from rltok_rl.training import Trainer
from rltok_rl.training.atomic_files import claim_folder, replace_text
from rltok_rl.training.loggers import check_logger
from rltok_rl.training.parallel import Processes
from rltok_rl.training.record import bytes_per_second, machine, peak_memory
from rltok_rl.training.sharding import whole_model
from rltok_rl.training.signals import StopRequest
from rltok_rl.utils import keep_memory

Report = Callable[[Path], Path]
"""Writes the report of a finished run from its folder, and returns where it is."""


def run(
    config: TrainConfig, command: str, processes: Processes | None = None, *, report: Report | None = None
) -> dict[str, Any]:
    """Train, write the run's folder, and return its summary. Rank 0 writes.

    Args:
        config: the run's options.
        command: the command line that started it.
        processes: the ranks that train together; default: this process alone.
        report: called once when the run is finished.
    """
    keep_memory()
    check_options(config)
    check_logger(config.logger.name)
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    trainer, texts = make_trainer(config, processes)
    with claim_folder(Path(config.out)) if trainer.processes.main else contextlib.nullcontext():
        return _train(config, command, trainer, texts, report)


def _train(config: TrainConfig, command: str, trainer: Trainer, texts: Texts, report: Report | None) -> dict[str, Any]:
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
        kept = left_as_it_is(config, trainer, model, report) if processes.main else None
        if (kept := processes.broadcast(kept)) is not None:
            return kept
    recorder = Recorder(config, trainer, texts, resuming=resuming, command=command)

    if processes.main and config.compute.compile:
        print("compiling layers: the first updates take minutes, and the time left is told too long", file=sys.stderr)
    with StopRequest(say=processes.main) as stop, recorder:

        def after_update(figures: dict[str, float]) -> bool:
            recorder.after_update(figures)
            if trainer.last_update is not None and trainer.last_update.update < trainer.updates:
                return False  # others are told of next
            stopping = processes.any(bool(stop))  # the signal may not have reached all yet
            if stopping or trainer.done or trainer.updates % config.checkpoint_every == 0:
                recorder.save()
            return stopping

        def wanted() -> bool:
            asked = processes.group is None and bool(stop)  # several processes agree on it where figures are told
            return asked or recorder.wanted or trainer.updates % config.checkpoint_every == 0

        trainer.run(after_update, fetch_when=wanted)
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
    page = report(out) if report else None
    print(result_line(recorder.first_look(), look))
    if page:
        print(f"report: {page}")
    return summary
