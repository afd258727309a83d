"""Instruments: what an estimator does to the gradient, measured against the truth."""
