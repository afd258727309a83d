"""What a training leaves behind while it runs: tables, looks at held-out text, alarms, and where it ran.

    config.yaml        all options
    model.json         the model's sizes, all of them, and how many parameters they make
    environment.json   an entry per start: command, packages, device, revision, how far it came
    metrics.csv        a line per update
    samples.jsonl      a line per look at held-out text
    alarms.log         a line per alarm
    checkpoints/       what resuming needs

All of it is on disk before the next update begins, on accelerators some updates later (``compute.figures_every``), and
before a checkpoint in any case. It is cut back to the checkpoint that a run resumes from.
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import own_parameters
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs.segmenters import aimed_rate
from rltok_rl.experiments.texts import Texts

from rltok_rl.models import UNet
from rltok_rl.training import Trainer
from rltok_rl.training.atomic_files import replace_text
from rltok_rl.training.checkpoint import save_checkpoint
from rltok_rl.training.loggers import Logging, LogTarget
from rltok_rl.training.metrics import MetricsTable, UpdateLog
from rltok_rl.training.progress import Progress
from rltok_rl.training.record import Starts, environment
from rltok_rl.training.sharding import whole_model
from rltok_rl.training.snapshots import Snapshots, snapshot_updates

NOTED = (
    "loss",
    "bits_per_byte",
    "early_bits_per_byte",
    "rate",
    "entropy",
    "advantage_spread",
    "grad_norm",
    "lr",
    "flops",
    "padded_flops",
    "total_flops",
)


TRAINED_ON = "trained_on"
"""Where a checkpoint says which texts it was trained on."""


def result_line(first: dict[str, Any] | None, last: dict[str, Any]) -> str:
    """Describe the result of a run in one line.

    Args:
        first: the evaluation before the first update, if there is one.
        last: the evaluation after the last update.

    Example:
        >>> last = {"held_out_bits_per_byte": 2.184, "held_out_early_bits_per_byte": 2.7, "held_out_rate": 0.203}
        >>> result_line({"held_out_bits_per_byte": 8.031}, last)
        'held-out text: 8.03 -> 2.18 bits per byte (early exit 2.70), 0.203 boundaries per byte'
    """
    name = "held_out_bits_per_byte"
    before = f"{first[name]:.2f} -> " if first is not None and name in first else ""
    share = f", {last['held_out_share']:.2f} of what tokens can earn" if "held_out_share" in last else ""
    early = last.get("held_out_early_bits_per_byte")
    shown = "" if early is None else f" (early exit {early:.2f})"
    rate = f"{last['held_out_rate']:.3f} boundaries per byte"
    return f"held-out text: {before}{last[name]:.2f} bits per byte{shown}, {rate}{share}"


class Recorder:
    """Writes down a training; of several processes the main one does, the others take part in what all have to.

    Args:
        config: of the run.
        trainer: as it will go on, its state loaded.
        texts: to train on, and held out.
        resuming: whether the folder's run goes on.
        command: how it was started.
    """

    def __init__(self, config: TrainConfig, trainer: Trainer, texts: Texts, *, resuming: bool, command: str) -> None:
        self.trainer, self.texts, self.out = trainer, texts, Path(config.out)
        looks = config.snapshots
        total = -(-config.optim.total_bytes // trainer.bytes_per_update)
        self.due = set(snapshot_updates(total, looks.count, spacing=looks.spacing))
        self.total, self._way = total, trainer.way
        rows: Any = {"num_rows": config.data.num_rows, "num_steps": config.data.num_steps}
        self.snapshots = Snapshots(
            held=texts.held_out,
            actor=None if trainer.actor is trainer.policy else trainer.actor,
            language=texts.language,
            batches=looks.batches,
            num_bytes=looks.num_bytes,
            **rows,
        )
        try:
            texts.held_out.check_length(looks.num_bytes)
        except ValueError as error:
            raise ValueError(
                f"snapshots.num_bytes={looks.num_bytes} is more than held-out texts have: {error}"
            ) from None
        self._open = ExitStack()
        if trainer.processes.main:
            self._begin(config, trainer.updates if resuming else None, command)

    def _begin(self, config: TrainConfig, resume_after: int | None, command: str) -> None:
        out, trainer = self.out, self.trainer
        out.mkdir(parents=True, exist_ok=True)
        self.table = MetricsTable(out / "metrics.csv", resume_after=resume_after)
        # The look before the first update is taken whenever the first update is done.
        looked = resume_after if resume_after != 0 else -1
        self.samples = UpdateLog(out / "samples.jsonl", resume_after=looked)
        self.alarms = UpdateLog(out / "alarms.log", resume_after=resume_after)
        resolved = OmegaConf.structured(config)
        replace_text(out / "config.yaml", OmegaConf.to_yaml(resolved))
        self.starts = Starts(out / "environment.json", resuming=resume_after is not None)
        processes = trainer.processes
        found = environment(device=processes.device, command=command, num_processes=processes.world_size)
        self.starts.begin(found, update=trainer.updates, bytes_done=trainer.bytes_done)
        sizes = {"parameters": sum(p.numel() for p in trainer.model.parameters()), **asdict(trainer.model.config)}
        if trainer.segmenter is not None:
            own = own_parameters(trainer.segmenter, trainer.model)
            sizes["segmenter_parameters"] = sum(p.numel() for p in own)
            sizes["target_rate"] = aimed_rate(config, trainer.model, trainer.segmenter)
        replace_text(out / "model.json", json.dumps(sizes, indent=1) + "\n")
        shown: Any = OmegaConf.to_container(resolved)
        project = config.logger.project
        target = LogTarget(
            folder=out, run_name=out.name, project=project, config={**shown, "env": found}, resume_after=resume_after
        )
        self.logging = self._open.enter_context(Logging(config.logger.name, target, **config.logger.options))
        self.progress = Progress(config.optim.total_bytes, done=trainer.bytes_done)

    def __enter__(self) -> Recorder:
        if self.trainer.updates == 0:
            self.look()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def after_update(self, figures: dict[str, float]) -> None:
        """Write down an update, what the alarms said, and a look at held-out text where one is due.

        Args:
            figures: of the update.
        """
        trainer, last = self.trainer, self.trainer.last_update
        assert last is not None
        if trainer.processes.main:
            columns = self.table.columns or NOTED  # a run of an older version goes on with the columns that it has
            noted = {name: figures.get(name, math.nan) for name in NOTED if name in columns}  # some have no policy
            self.table.add(last.update, last.bytes_done, noted)
            self.logging.add("train", noted, update=last.update)
            for text in last.warnings:
                self.alarms.add(last.update, warning=text)
                self.progress.say(f"warning: update {last.update}: {text}")
            self.progress.total = trainer.expected_bytes
            self.progress.show(figures, last.bytes_done)
        if last.update == trainer.updates and (self._look_due() or trainer.done):
            self.look()

    @property
    def wanted(self) -> bool:
        """Whether the update that was just made has to be told of at once: a look is due, which is of this state."""
        return self.trainer.updates in self.due

    def _look_due(self) -> bool:
        """Whether a look is due after this update; where FLOPs end a training, when as many of them are spent."""
        trainer, before = self.trainer, self._way
        self._way = trainer.way
        if trainer.options.total_flops is None:
            return trainer.updates in self.due
        return any(before < number / self.total <= self._way for number in self.due)

    def look(self) -> None:
        """Evaluate on held-out text and draw a sample; all processes have to."""
        trainer = self.trainer
        model = whole_model(trainer.model)
        if not trainer.processes.main:
            return
        found = self.snapshots.take(model)
        spent = {
            "flops": trainer.flops_done,
            "padded_flops": trainer.padded_flops_done,
            "total_flops": trainer.total_flops_done,
        }
        self.samples.add(trainer.updates, bytes=trainer.bytes_done, **spent, **found)
        figures = {k.removeprefix("held_out_"): v for k, v in found.items() if k.startswith("held_out_")}
        self.logging.add("held_out", figures, update=trainer.updates)

    def save(self) -> None:
        """Write a checkpoint; all processes have to."""
        trainer = self.trainer
        state = trainer.state_dict()
        if trainer.processes.main:
            save_checkpoint(self.out / "checkpoints", trainer.updates, {**state, TRAINED_ON: self.texts.sha256})
            self.starts.reach(trainer.updates, trainer.bytes_done, self.progress.seconds)

    def first_look(self) -> dict[str, Any] | None:
        """The evaluation before the first update; None if the run has no record of it."""
        lines = self.samples.read()
        return lines[0] if lines and lines[0]["update"] == 0 else None

    def last_look(self, model: UNet) -> dict[str, Any]:
        """What the look after the last update saw.

        Args:
            model: in one piece.
        """
        lines = self.samples.read()
        return lines[-1] if lines and lines[-1]["update"] == self.trainer.updates else self.snapshots.take(model)
