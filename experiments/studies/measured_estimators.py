"""All estimators that were measured: their names in the study of moments, in the boundary suite and on books."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimator:
    """A row, and where its numbers are."""

    label: str
    candidate: str
    """Its name in the study of moments."""
    entry: str | None = None
    """Its entry in the boundary suite, among its files or in ``other-entries.csv``."""
    system: str | None = None
    """Its system in ``compare-grid``."""
    losses: tuple[float, ...] = ()
    """Its bits per byte on books by seed, for runs without files."""
    differing: str = ""
    """Differences between the runs and the measurement, beyond those that all rows have."""
    papers: bool = False
    """Whether it is the paper's, with either of its discounts."""
    own_gradient: bool = False
    """Whether it follows another gradient than that of the return, so that its distance from that is no bias."""

    @property
    def gamma(self) -> float:
        """Discount in the measurement."""
        return float(self.candidate.partition("@")[2] or 1.0)


_FEW_ROWS = "one row in four, until entropy is below 0.1 nats"
_STANDARD = "warm start; no norm in the suite; target 0.196 on books"
_AS_OURS = f"undecided at first; {_STANDARD}"
_CRITIC = "`loss=ppo` with one epoch, one update of the critic per batch"
ESTIMATORS = (
    Estimator("batch mean", "paper@0.9", "batch_mean@0.9", "unscaled", papers=True),
    Estimator("batch mean, gamma 0.95", "paper@0.95", "batch_mean@0.95", "gamma-0.95"),
    Estimator("batch mean, gamma 0.99", "paper@0.99", "batch_mean@0.99", "gamma-0.99", papers=True),
    Estimator("batch mean, gamma 1", "paper"),
    Estimator("leave-one-out", "leave_one_out@0.9", "leave_one_out@0.9", "leave-one-out"),
    Estimator("running mean", "running_mean@0.9", "running_mean@0.9", "running-mean"),
    Estimator("z-score", "z_score@0.9", "z_score@0.9", "z-score"),
    Estimator("control variate", "control_variate@0.9", "control_variate@0.9", "control-variate"),
    Estimator("regression on states", "regression@0.9"),
    Estimator("critic, lambda 0.95", "critic_td@0.9", "critic_advantage@0.9", "critic", differing=_CRITIC),
    Estimator("critic, lambda 1", "critic@0.9", "critic_advantage@0.9, lambda 1", "critic-1", differing=_CRITIC),
    Estimator(
        "pooling critic, lambda 0.95", "pooled_critic_td@0.9", "pooled_critic@0.9", "pooled-critic", differing=_CRITIC
    ),
    Estimator("pooling critic, lambda 1", "pooled_critic@0.9", None, "pooled-critic-1", differing=_CRITIC),
    Estimator("natural gradients (`ours`)", "natural@0.9", "ours", "ours", differing=_AS_OURS, own_gradient=True),
    Estimator(
        "natural gradients, standard initial weights",
        "natural@0.9",
        "natural_gradient@0.9, warm start, no norm",
        "standard-init",
        differing=_STANDARD,
        own_gradient=True,
    ),
    Estimator(
        "natural gradients, gamma 0.95 (`normed`)",
        "natural@0.95",
        "normed",
        "normed",
        differing="warm start; norm on books",
        own_gradient=True,
    ),
    Estimator("two rows per text", "group_mean_2@0.9", "group_mean@0.9", losses=(2.304, 2.342, 2.302, 2.285, 2.313)),
    Estimator("four rows per text", "group_mean_4@0.9"),
    Estimator("second row", "sibling_trial@0.9", "sibling_trial@0.9", "sibling-trial", differing=_FEW_ROWS),
    Estimator(
        "second row, in blocks",
        "sibling_trial_blocks@0.9",
        "sibling_trial@0.9, blocks",
        "sibling-blocks",
        differing=_FEW_ROWS,
    ),
    Estimator("second row, antithetic", "sibling_trial_antithetic@0.9"),
    Estimator("second row, DisARM", "sibling_trial_disarm@0.9"),
    Estimator(
        "second row, DisARM, gamma 0.99",
        "sibling_trial_disarm@0.99",
        "disarm@0.99, warm start",
        "disarm",
        differing=f"warm start; {_FEW_ROWS}",
    ),
    Estimator("local flips", "local_flips@0.9", "local_flips@0.9", "flips", differing="2 flips per 16 bytes, not 3"),
    Estimator(
        "local flips in a quarter of the rows",
        "budgeted_flips@0.9",
        "budgeted_flips@0.9",
        "budgeted-flips",
        differing="until entropy is below 0.1 nats",
    ),
    Estimator(
        "doubly robust flips",
        "doubly_robust@0.9",
        "doubly_robust@0.9",
        "doubly-robust",
        differing=f"2 flips per 16 bytes, not 3; {_FEW_ROWS}",
    ),
    Estimator("token gains", "token_gain@0.9", "token_gain@0.9", "token-gain-90", differing=f"on books {_FEW_ROWS}"),
    Estimator("token gains, gamma 1", "token_gain", "token_gain@1, few rows", "token-gain", differing=_FEW_ROWS),
    Estimator("token gains of four rows, gamma 1", "shared_gain_4"),
)
