"""TorchRL value estimators and losses: thin shells over :mod:`rltok_rl.functional`."""

from __future__ import annotations

import rltok_rl.start_method  # noqa: F401

# isort: split

from rltok_rl.objectives import estimators as _estimators
from rltok_rl.objectives.baseline import BASELINE_NAMES
from rltok_rl.objectives.critics import CriticAdvantage, VTraceReturn, ZeroCritic
from rltok_rl.objectives.disarm import DisARM
from rltok_rl.objectives.estimators import (
    ESTIMATORS,
    ControlVariateReturn,
    ReturnEstimator,
    make_estimator,
)
from rltok_rl.objectives.flips import BudgetedFlips, LocalFlips
from rltok_rl.objectives.joint import JointLoss
from rltok_rl.objectives.language import EarlyExitLoss, LanguageModelLoss
from rltok_rl.objectives.natural_gradient import NaturalGradient
from rltok_rl.objectives.ppo import BoundaryClipPPOLoss
from rltok_rl.objectives.rate_loss import RateLoss
from rltok_rl.objectives.reinforce import BoundaryReinforceLoss, EntropyBonus
from rltok_rl.objectives.segmented import SECOND_LEVEL_WEIGHT, SecondLevelLoss
from rltok_rl.objectives.token_gain import TokenGain
from rltok_rl.objectives.trials import Trials

__all__ = [
    "BASELINE_NAMES",
    "ESTIMATORS",
    "SECOND_LEVEL_WEIGHT",
    "BoundaryClipPPOLoss",
    "BoundaryReinforceLoss",
    "BudgetedFlips",
    "ControlVariateReturn",
    "CriticAdvantage",
    "DisARM",
    "EarlyExitLoss",
    "EntropyBonus",
    "JointLoss",
    "LanguageModelLoss",
    "LocalFlips",
    "NaturalGradient",
    "RateLoss",
    "ReturnEstimator",
    "SecondLevelLoss",
    "TokenGain",
    "Trials",
    "VTraceReturn",
    "ZeroCritic",
    "make_estimator",
]


def __getattr__(name: str) -> object:
    if name in ("GroupCentred", "RunningMeanReturn"):  # renamed; warns
        return getattr(_estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
