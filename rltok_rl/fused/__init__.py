"""Fused CPU operations with explicit backward passes, compiled by numba.

A layer's norms, projections, rotations and gates run in blocks of rows that stay in the processor's cache; autograd
keeps what the backward pass needs and nothing else. Every operation has a definition in plain torch, at its caller,
which is the fallback if :func:`fuses` returns False. Results agree up to rounding.
"""

from rltok_rl.fused.choice import allow_fused, fused, fused_state, fuses, missing, takes_kernels, traced, untouched
from rltok_rl.fused.fused_functions import band_attention, finish_layer, head_log_prob, project_heads, rms_norm, scan

__all__ = [
    "allow_fused",
    "band_attention",
    "finish_layer",
    "fused",
    "fused_state",
    "fuses",
    "head_log_prob",
    "missing",
    "project_heads",
    "rms_norm",
    "scan",
    "takes_kernels",
    "traced",
    "untouched",
]
