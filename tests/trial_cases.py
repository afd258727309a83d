"""Estimators that run texts again, those of studies included, with options for short texts."""

from __future__ import annotations

from typing import Any

from rltok_rl.experiments.studies.doubly_robust import DoublyRobustFlips
from rltok_rl.experiments.studies.shared_gain import SharedGain
from rltok_rl.experiments.studies.sibling_trials import SiblingTrials

from rltok_rl.objectives import BudgetedFlips, DisARM, LocalFlips, TokenGain, Trials

_FEW = {"every": 2, "settled": 0.01, "baseline": "batch_mean"}
TRIAL_CASES: dict[str, tuple[type[Trials], dict[str, Any]]] = {
    "local flips": (LocalFlips, {"num_flips": 2, "span": 2}),
    "budgeted flips": (BudgetedFlips, {"span": 2, "every": 2, "baseline": "batch_mean"}),
    "token gains": (TokenGain, {}),
    "token gains in some rows": (TokenGain, _FEW),
    "DisARM": (DisARM, {}),
    "DisARM in some rows": (DisARM, _FEW),
    "second rows": (SiblingTrials, {}),
    "second rows in blocks": (SiblingTrials, {"coupling": "blocks", "span": 2}),
    "antithetic rows": (SiblingTrials, {"coupling": "antithetic"}),
    "doubly robust flips": (DoublyRobustFlips, {"span": 2}),
    "doubly robust flips in some rows": (DoublyRobustFlips, {"num_flips": 2, "span": 2, **_FEW}),
    "shared gains": (SharedGain, {"num_passes": 2}),
    "shared gains of two rows": (SharedGain, {"num_passes": 2, "group_size": 2}),
}
OWN_TEXTS = [name for name, (_, options) in TRIAL_CASES.items() if "group_size" not in options]
"""Those whose rows may have different texts."""
