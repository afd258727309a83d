"""Training: the loop, its options, micro-batches, checkpoints, alarms, several processes."""

from __future__ import annotations

from rltok_rl.training.alarms import Alarms, TrainingFailed
from rltok_rl.training.loop import Trainer
from rltok_rl.training.options import LoopOptions

__all__ = ["Alarms", "LoopOptions", "Trainer", "TrainingFailed"]
