"""Exact, fast draws from the autoregressive boundary policy.

    a_t ~ Bernoulli(sigmoid(l_t)),        l_t = base_t + sum_{j=1..w} a_{t-j} lags_{t,j}           (Eq. 19-23)

Every draw (sampled, soft-capped, forced, greedy) is a threshold per position of the deterministic recurrence
``a_t = [l_t > theta_t]``. All methods solve it and agree bit for bit.
"""

from __future__ import annotations

from rltok_rl.sampling.sampler import METHODS, sample_boundaries, threshold_recurrence
from rltok_rl.sampling.thresholds import boundary_thresholds, draw_boundary

__all__ = ["METHODS", "boundary_thresholds", "draw_boundary", "sample_boundaries", "threshold_recurrence"]
