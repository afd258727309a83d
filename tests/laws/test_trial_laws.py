"""Estimators that run texts again, those of studies included, obey the laws whenever they draw the same numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from rltok_rl.experiments.studies.doubly_robust import DoublyRobustFlips
from rltok_rl.experiments.studies.pooled_critic import PooledCriticAdvantage
from rltok_rl.experiments.studies.shared_gain import SharedGain
from rltok_rl.experiments.studies.sibling_trials import SiblingTrials
from torchrl.objectives.utils import get_value_estimator_entry

from rltok_rl.diagnostics.laws import broken_laws, rollout_model
from rltok_rl.objectives import BudgetedFlips, DisARM, LocalFlips, TokenGain, Trials
from rltok_rl.objectives.estimators import ReturnEstimator

from ..each import each
from ..named_estimators import TRIALS
from ..objectives.conftest import make_model, make_rollout

_FEW = {"every": 2, "settled": 0.01, "baseline": "batch_mean"}
CASES: dict[str, tuple[type[ReturnEstimator], dict[str, Any]]] = {
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
    "a critic of tokens": (PooledCriticAdvantage, {}),
}
# The expected gradient is over random numbers, which are fixed here: tests of each estimator compare it with
# enumeration. Antithetic rows also subtract the mean of returns, whose rows must be whole texts without an end inside.
BROKEN = {"antithetic rows": {"exact", "ends"}}


def with_equal_draws(kind: type[ReturnEstimator]) -> type[ReturnEstimator]:
    """Let an estimator draw the same random numbers for every batch."""

    def forward(self: ReturnEstimator, *arguments: Any, **options: Any) -> Any:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return kind.forward(self, *arguments, **options)

    return type(kind.__name__, (kind,), {"forward": forward})


@each(name=CASES)
def test_trials_obey_the_laws(name):
    kind, options = CASES[name]
    assert set(broken_laws(partial(with_equal_draws(kind), rollout_model(), **options))) <= BROKEN.get(name, {"exact"})


@each(name=[name for name, (kind, _) in CASES.items() if issubclass(kind, Trials) and "of two rows" not in name])
def test_rows_may_be_padded_with_zeros(name):
    """As ``split_trajectories`` pads: positions are 0, too."""
    kind, options = CASES[name]
    model = make_model()
    rollout = make_rollout(model, num_rows=4, num_steps=12).detach()
    real = torch.arange(12).expand(4, 12) < torch.tensor([12, 12, 9, 9])[:, None]
    rollout["collector", "mask"] = real
    padded = rollout.apply(lambda entry: entry * real.view(4, 12, *[1] * (entry.dim() - 2)).to(entry.dtype))
    seen = []
    for given in (rollout, padded):
        trials = with_equal_draws(kind)(model, gamma=0.9, **options)
        seen.append(trials(given.copy())["advantage"].squeeze(-1))
    torch.testing.assert_close(*seen)
    assert not seen[1][~real].any() and seen[1][real].any()


def test_no_trials_escape():
    """All that are registered, and all subclasses that studies define."""
    held = {kind for kind, _ in CASES.values()}
    assert {get_value_estimator_entry(name).cls for name in TRIALS} <= held
    known, new = set(), {Trials}
    while new:
        known |= new
        new = {kind for parent in new for kind in parent.__subclasses__()}
    assert {kind for kind in known if "studies" in kind.__module__} <= held
