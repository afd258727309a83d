"""Record a run in its folder (docs/runs.md): metrics, snapshots, alarms, environment, checkpoints.

Lines are on disk before the next update begins, on accelerators some updates later (``compute.figures_every``), and
always before a checkpoint. Resuming removes the lines after its checkpoint.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import own_parameters
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.run_files import LOGS
from rltok_rl.experiments.runs.segmenters import configured_rate
from rltok_rl.experiments.texts import Texts

from rltok_rl.data.disk import replace_text
from rltok_rl.training import Trainer
from rltok_rl.training.checkpoint import save_checkpoint
from rltok_rl.training.environment import CpuClock, Starts, environment
from rltok_rl.training.loggers import Logging, LogTarget
from rltok_rl.training.metrics import MetricsTable, UpdateLog
from rltok_rl.training.progress import Progress
from rltok_rl.training.sharding import whole_model
from rltok_rl.training.snapshots import Snapshots, snapshot_updates

RETURNS = ("reward", "return", "episode_return", "share")
HELD_OUT = ("held_out_relative_return", "held_out_relative_return_standard_error")
"""Columns that are known after updates that a snapshot follows."""
NOTED = (
    *("loss", "bits_per_byte", "early_bits_per_byte", "rate", "entropy", "advantage_spread", "grad_norm", "lr"),
    *("flops", "padded_flops", "total_flops"),
    *(f"{name}{suffix}" for name in RETURNS for suffix in ("", "_standard_error")),
    *HELD_OUT,
)
"""Columns of ``metrics.csv`` after ``update`` and ``bytes``; a run that began with fewer keeps its own."""
FURTHER = ("bytes_per_second", "mfu", "trials", "loss_critic", "kl_approx", "clip_fraction", "ESS")
"""Columns that only some runs have: on GPUs, with trials, a critic, or PPO."""
TRAINED_ON = "trained_on"
"""Key of a checkpoint: the SHA-256 of its documents."""


def result_line(first: dict[str, Any], last: dict[str, Any]) -> str:
    """Describe the result of a run in one line, from its first and last snapshot.

    Example:
        >>> last = {"held_out_bits_per_byte": 2.184, "held_out_early_bits_per_byte": 2.7, "held_out_rate": 0.203}
        >>> result_line({"held_out_bits_per_byte": 8.031}, last)
        'held-out text: 8.03 -> 2.18 bits per byte (early exit 2.70), 0.203 boundaries per byte'
    """
    before, after = (snapshot["held_out_bits_per_byte"] for snapshot in (first, last))
    early, rate = last["held_out_early_bits_per_byte"], last["held_out_rate"]
    share = f", {last['held_out_share']:.2f} of what tokens can earn" if "held_out_share" in last else ""
    costs = f"{before:.2f} -> {after:.2f} bits per byte (early exit {early:.2f})"
    return f"held-out text: {costs}, {rate:.3f} boundaries per byte{share}"


class Recorder:
    """Write a run's files. Rank 0 writes; other ranks only join collectives.

    If the run resumes, the trainer has loaded its state, and lines up to its update are kept.
    """

    def __init__(self, config: TrainConfig, trainer: Trainer, texts: Texts, *, resuming: bool, command: str) -> None:
        self.trainer, self.texts, self.out = trainer, texts, Path(config.out)
        options, data = config.snapshots, config.data
        self.total = -(-config.optim.total_bytes // trainer.bytes_per_update)
        self.due = set(snapshot_updates(self.total, options.count, spacing=options.spacing))
        self._fraction_done = trainer.fraction_done
        self.snapshots = Snapshots(
            held=texts.held_out,
            actor=None if trainer.actor is trainer.policy else trainer.actor,
            language=texts.language,
            batches=options.batches,
            num_bytes=options.num_bytes,
            num_rows=data.num_rows,
            num_steps=data.num_steps,
            reward=config.estimator.reward,
            price=config.estimator.price,
        )
        try:
            texts.held_out.check_length(options.num_bytes)
        except ValueError as error:
            message = f"snapshots.num_bytes={options.num_bytes} is more than held-out texts have: {error}"
            raise ValueError(message) from None
        self._minutes, self._saved = config.checkpoint_minutes, time.monotonic()
        self._open = ExitStack()
        if trainer.processes.main:
            self._begin(config, trainer.updates if resuming else None, command)
        trainer.processes.meet()  # a logger may wait for its server
        self.cpu = CpuClock()

    def _begin(self, config: TrainConfig, resume_after: int | None, command: str) -> None:
        out, trainer = self.out, self.trainer
        out.mkdir(parents=True, exist_ok=True)
        metrics, samples, alarms = (out / name for name in LOGS)
        self.table = MetricsTable(metrics, resume_after=resume_after)
        self.samples = UpdateLog(samples, resume_after=resume_after)
        self.alarms = UpdateLog(alarms, resume_after=resume_after)
        options = OmegaConf.structured(config)
        replace_text(out / "config.yaml", OmegaConf.to_yaml(options))
        self.starts = Starts(out / "environment.json", resuming=resume_after is not None)
        processes = trainer.processes
        start = environment(device=processes.device, command=command, num_processes=processes.world_size)
        self.starts.begin(start, update=trainer.updates, bytes_done=trainer.bytes_done)
        sizes = {"parameters": sum(p.numel() for p in trainer.model.parameters()), **asdict(trainer.model.config)}
        if trainer.segmenter is not None:
            parameters = own_parameters(trainer.segmenter, trainer.model)
            sizes["segmenter_parameters"] = sum(p.numel() for p in parameters)
            sizes["target_rate"] = configured_rate(config, trainer.model, trainer.segmenter)
        replace_text(out / "model.json", json.dumps(sizes, indent=1) + "\n")
        shown: Any = OmegaConf.to_container(options)
        shown["env"], project = start, config.logger.project
        target = LogTarget(folder=out, run_name=out.name, project=project, config=shown, resume_after=resume_after)
        self.logging = self._open.enter_context(Logging(config.logger.name, target, **config.logger.options))
        self.progress = Progress(config.optim.total_bytes, done=trainer.bytes_done)
        if trainer.speed.name is not None and trainer.speed.peak is None:
            self.progress.print(
                f"no column mfu: rltok_rl.training.environment.PEAKS has no peak of {trainer.speed.name}"
            )

    def __enter__(self) -> Recorder:
        if self.trainer.updates == 0:
            self.take_snapshot()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def after_update(self, metrics: dict[str, float]) -> None:
        """Take a snapshot if one is due, and record an update and its alarms."""
        trainer, last = self.trainer, self.trainer.last_update
        assert last is not None
        snapshot: dict[str, Any] = {}
        if last.update == trainer.updates and (self._reached_snapshot() or trainer.done):
            snapshot = self.take_snapshot()
        if trainer.processes.main:
            columns = self.table.columns[2:] or (*NOTED, *(name for name in FURTHER if name in metrics))
            row = {name: metrics.get(name, math.nan) for name in columns}  # without a policy some are missing
            held_out = {name: snapshot[name] for name in HELD_OUT if name in row and name in snapshot}
            self.table.add(last.update, last.bytes_done, row | held_out)
            self.logging.add("train", {k: v for k, v in row.items() if k not in HELD_OUT}, update=last.update)
            for text in last.warnings:
                self.alarms.add(last.update, warning=text)
                self.progress.print(f"warning: update {last.update}: {text}")
            self.progress.total = trainer.expected_bytes
            self.progress.show(metrics, last.bytes_done)

    @property
    def snapshot_due(self) -> bool:
        """Whether this update's metrics are needed now, because a snapshot is due."""
        return self.trainer.updates in self.due

    def _reached_snapshot(self) -> bool:
        """Whether a snapshot is due after this update; if FLOPs end training, by their spent share."""
        before, self._fraction_done = self._fraction_done, self.trainer.fraction_done
        if self.trainer.options.total_flops is None:
            return self.snapshot_due
        return any(before < update / self.total <= self._fraction_done for update in self.due)

    def take_snapshot(self) -> dict[str, Any]:
        """Evaluate on held-out text and draw a sample; a collective, which returns the snapshot in the main process."""
        trainer, snapshot = self.trainer, dict[str, Any]()
        with self.cpu.paused():
            model = whole_model(trainer.model)
            if trainer.processes.main:
                snapshot = self.snapshots.take(model)
                self.samples.add(
                    trainer.updates,
                    bytes=trainer.bytes_done,
                    flops=trainer.flops_done,
                    padded_flops=trainer.padded_flops_done,
                    total_flops=trainer.total_flops_done,
                    **snapshot,
                )
                held_out = {k.removeprefix("held_out_"): v for k, v in snapshot.items() if k.startswith("held_out_")}
                self.logging.add("held_out", held_out, update=trainer.updates)
            trainer.processes.meet()  # the evaluation may outlast a collective's timeout
        return snapshot

    @property
    def overdue(self) -> bool:
        """Whether the last checkpoint of this process is older than ``checkpoint_minutes``."""
        return self._minutes is not None and time.monotonic() - self._saved > 60 * self._minutes

    def save(self) -> None:
        """Write a checkpoint; a collective."""
        trainer = self.trainer
        mean = trainer.processes.mean({"cpu_seconds": self.cpu.seconds})  # the record has the sum over ranks
        cpu_seconds = mean["cpu_seconds"] * trainer.processes.world_size
        with self.cpu.paused():
            state = trainer.state_dict()
            try:
                if trainer.processes.main:
                    state[TRAINED_ON] = self.texts.sha256
                    save_checkpoint(self.out / "checkpoints", trainer.updates, state, files=LOGS)
                    self.starts.reach(trainer.updates, trainer.bytes_done, self.progress.seconds, cpu_seconds)
            finally:
                trainer.processes.meet()  # writing may outlast a collective's timeout
        self._saved = time.monotonic()
