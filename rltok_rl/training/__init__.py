"""Training: the loop, the training step as a module, options, checkpoints, alarms, several processes."""

from __future__ import annotations

import rltok_rl.start_method  # noqa: F401 - before torchrl

# isort: split

from rltok_rl.training.alarms import Alarms, TrainingFailed
from rltok_rl.training.loop import Trainer
from rltok_rl.training.options import LoopOptions
from rltok_rl.training.training_step import TrainingStep

__all__ = ["Alarms", "LoopOptions", "Trainer", "TrainingFailed", "TrainingStep"]
