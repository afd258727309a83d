"""TorchRL value estimators and losses: thin shells over :mod:`rltok_rl.functional`."""

from __future__ import annotations

from rltok_rl.objectives.critics import CriticAdvantage, VTraceReturn, ZeroCritic
from rltok_rl.objectives.estimators import (
    ESTIMATORS,
    ControlVariateReturn,
    GroupCentred,
    ReturnEstimator,
    RunningMeanReturn,
    make_estimator,
)
from rltok_rl.objectives.flips import LocalFlips
from rltok_rl.objectives.joint import JointLoss
from rltok_rl.objectives.language import EarlyExitLoss, LanguageModelLoss
from rltok_rl.objectives.ppo import BoundaryClipPPOLoss
from rltok_rl.objectives.rate import RateLoss
from rltok_rl.objectives.reinforce import BoundaryReinforceLoss, EntropyBonus
from rltok_rl.objectives.segmented import SECOND_LEVEL_WEIGHT, SecondLevelLoss

__all__ = [
    "ESTIMATORS",
    "SECOND_LEVEL_WEIGHT",
    "BoundaryClipPPOLoss",
    "BoundaryReinforceLoss",
    "ControlVariateReturn",
    "CriticAdvantage",
    "EarlyExitLoss",
    "EntropyBonus",
    "GroupCentred",
    "JointLoss",
    "LanguageModelLoss",
    "LocalFlips",
    "RateLoss",
    "ReturnEstimator",
    "RunningMeanReturn",
    "SecondLevelLoss",
    "VTraceReturn",
    "ZeroCritic",
    "make_estimator",
]
