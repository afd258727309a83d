"""Instruments: what an estimator does to the gradient, measured against the truth."""

import rltok_rl.start_method  # noqa: F401 - before torchrl
