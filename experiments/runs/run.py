"""A run, from its configuration to its summary."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.recipes import describe_recipe
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.runs.folder import read_snapshots, read_summary
from rltok_rl.experiments.runs.record import Recorder, result_line
from rltok_rl.experiments.runs.resume import last_state, load_state
from rltok_rl.experiments.runs.revision import pinned_revision
from rltok_rl.experiments.runs.run_files import FILES, find_changed, hash_files
from rltok_rl.experiments.runs.segmenters import save_with_segmenter
from rltok_rl.experiments.runs.valid_options import check_options
from rltok_rl.experiments.texts import Texts, remember_texts

from rltok_rl.data.disk import claim_folder, replace_text
from rltok_rl.training import Trainer
from rltok_rl.training.distributed import Processes
from rltok_rl.training.environment import bytes_per_second, machine, peak_memory
from rltok_rl.training.loggers import check_logger
from rltok_rl.training.sharding import whole_model
from rltok_rl.training.signals import StopRequest
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.utils import keep_memory, printable, printable_lines
from rltok_rl.viz import boundary_text

Report = Callable[[Path], Path]
"""Writes the report of a finished run from its folder, and returns its path."""


def run(
    config: TrainConfig, command: str, processes: Processes | None = None, *, report: Report | None = None
) -> dict[str, Any]:
    """Train, write the run's folder, and return its summary. Rank 0 writes."""
    keep_memory()
    check_options(config)
    check_logger(config.logger.name)
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    processes = Processes(device=torch.device(config.compute.device)) if processes is None else processes
    resumed = [Path(config.out)] if config.resume else []
    revision = processes.broadcast(pinned_revision(config.data, resumed) if processes.main else None)
    config = replace(config, data=replace(config.data, revision=revision))
    trainer, texts = make_trainer(config, processes)
    with claim_folder(Path(config.out)) if trainer.processes.main else contextlib.nullcontext():
        return _train(config, command, trainer, texts, report)


def _train(config: TrainConfig, command: str, trainer: Trainer, texts: Texts, report: Report | None) -> dict[str, Any]:
    """Train in a folder that no other run writes to."""
    out, processes = Path(config.out), trainer.processes
    resuming, checkpoint, state = processes.broadcast(last_state(config, texts) if processes.main else None)
    if state is not None:
        load_state(trainer, checkpoint, state)
    if processes.main:
        remember_texts(config.data)
        if state is not None:
            print(f"resuming {printable(str(out))} after update {trainer.updates}", file=sys.stderr)
        print(printable_lines(f"{config.data.source}: {texts.described}"), file=sys.stderr)
        print(describe_recipe(config, trainer.model.config.to_dict()), file=sys.stderr)
        warm, total = trainer.options.warm_start_bytes, trainer.options.total_bytes
        if trainer.options.total_flops is None and warm >= total:
            print(
                f"warning: the policy gets no rewards in this run: actor.warm_start_bytes must be less than "
                f"optim.total_bytes={total}, got {warm}",
                file=sys.stderr,
            )
    if state is not None and trainer.done:
        model = whole_model(trainer.model)
        summary = processes.broadcast(_finished(config, trainer, model, report) if processes.main else None)
        if summary is not None:
            return summary
    recorder = Recorder(config, trainer, texts, resuming=resuming, command=command)

    if processes.main and config.compute.compile:
        print("compiling layers: the first updates take minutes, so the ETA starts too high", file=sys.stderr)
    with StopRequest(say=processes.main) as stop, recorder:

        def after_update(metrics: dict[str, float]) -> bool:
            recorder.after_update(metrics)
            if trainer.last_update.update < trainer.updates:  # type: ignore[union-attr]
                return False  # more updates follow in this batch
            stopping = processes.any(bool(stop))  # the signal may not have reached all ranks yet
            overdue = config.checkpoint_minutes is not None and processes.any(recorder.overdue)
            if stopping or overdue or trainer.done or trainer.updates % config.checkpoint_every == 0:
                recorder.save()
            return stopping

        def needs_metrics() -> bool:
            # Several ranks agree on these two when metrics are fetched.
            alone = processes.group is None and (bool(stop) or recorder.overdue)
            return alone or recorder.snapshot_due or trainer.updates % config.checkpoint_every == 0

        trainer.run(after_update, fetch_when=needs_metrics)
        if trainer.done and processes.broadcast(_lacks_last(out, trainer.updates) if processes.main else None):
            recorder.take_snapshot()
    model = whole_model(trainer.model)
    progress = {"updates": trainer.updates, "bytes": trainer.bytes_done}
    if not processes.main:
        return progress
    save_with_segmenter(config, trainer, model)
    if not trainer.done:
        cause = stop.name or "another process was asked to stop"
        print(f"\n{cause}: saved after update {trainer.updates}; resume with resume=true", file=sys.stderr)
        return dict(progress, stopped=stop.signal or signal.SIGTERM)
    print("trained; evaluating on held-out text, drawing figures", file=sys.stderr)
    snapshots = read_snapshots(out / "samples.jsonl")
    _write_sample(out, snapshots[-1])
    summary = _summary(trainer, recorder.starts.entries, snapshots[-1])
    summary[FILES] = hash_files(out)
    _write_summary(out, summary)
    page = report(out) if report else None
    print(result_line(snapshots[0], snapshots[-1]))
    if page:
        print(f"report: {printable(str(page))}")
    return summary


def _summary(trainer: Trainer, starts: list[dict[str, Any]], snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return what a run reports of all its starts and its last snapshot."""
    return {
        "command": starts[0].get("command", ""),
        "machine": machine(trainer.processes.device),
        "processes": trainer.processes.world_size,
        "updates": trainer.updates,
        "bytes": trainer.bytes_done,
        "flops": trainer.flops_done,
        "padded_flops": trainer.padded_flops_done,
        "tried_flops": trainer.tried_flops_done,
        "total_flops": trainer.total_flops_done,
        "bytes_per_second": bytes_per_second(starts),
        "threads": torch.get_num_threads(),
        **peak_memory(trainer.processes.device),
        **{name: value for name, value in snapshot.items() if name.startswith("held_out_")},
    }


def _finished(config: TrainConfig, trainer: Trainer, model: Any, report: Report | None) -> dict[str, Any] | None:
    """Write missing files of a finished run and return its summary; None if its end has to be written again.

    Memory, speed and time in the summary stay those recorded during training.
    """
    out = Path(config.out)
    if not (out / "summary.json").is_file():
        return None
    try:
        summary = read_summary(out / "summary.json")
    except ValueError as error:
        print(f"warning: {error}; it is written again", file=sys.stderr)
        return None
    snapshots = read_snapshots(out / "samples.jsonl")
    if summary.get("updates") != trainer.updates:
        problem = f"updates of {out / 'summary.json'} must be {trainer.updates}, got {summary.get('updates')}"
        print(f"warning: {printable(problem)}; it is written again", file=sys.stderr)
        return None
    if not snapshots:
        return None
    writers: dict[str, Callable[[], Any]] = {
        "model": lambda: save_with_segmenter(config, trainer, model),
        "sample.txt": lambda: _write_sample(out, snapshots[-1]),
    }
    changed = find_changed(out, summary)
    for problem in changed.values():
        print(f"warning: {printable(problem)}", file=sys.stderr)
    damaged = {name.partition("/")[0] for name in changed if name in summary.get(FILES, changed)}  # not: added
    missing = [name for name in writers if name in damaged or not (out / name).exists()]
    for name in missing:
        writers[name]()
    if missing and FILES in summary:
        mine = {name for name in summary[FILES] if name.partition("/")[0] in missing}
        summary[FILES] |= {name: digest for name, digest in hash_files(out).items() if name in mine}
        _write_summary(out, summary)
    if report and not (out / "report.md").exists():
        missing.append("report.md")
        report(out)
    verb = "was" if len(missing) == 1 else "were"
    wrote = f"wrote {', '.join(missing)}, which {verb} missing or changed" if missing else "nothing to do"
    print(f"{printable(str(out))} is finished, after update {trainer.updates}: {wrote}", file=sys.stderr)
    return summary


def _write_summary(out: Path, summary: dict[str, Any]) -> None:
    replace_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")


def _lacks_last(out: Path, updates: int) -> bool:
    """Whether the snapshot after the last update is missing: its line can be lost while the checkpoint is intact."""
    snapshots = read_snapshots(out / "samples.jsonl")
    return not snapshots or snapshots[-1].get("update") != updates


def _write_sample(out: Path, snapshot: dict[str, Any]) -> None:
    """Write the sample of a snapshot with its boundaries."""
    text, boundaries, _ = sample_parts(snapshot)
    replace_text(out / "sample.txt", boundary_text(text, boundaries, colour=False) + "\n")
