"""Numba kernels on float32 arrays; imported when first used, because numba is an optional dependency."""

BLOCK = 128
"""Rows that a kernel takes through all its steps before the next ones."""
