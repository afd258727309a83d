"""Numba kernels on float32 arrays; imported when first used, because numba is an optional dependency."""
