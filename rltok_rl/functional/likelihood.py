"""Log-likelihoods of bytes, in nats and in bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rltok_rl.functional.reduction import wide
from rltok_rl.functional.takes import check_result, takes


@takes("logits: float *B V+", "targets: int *B")
def byte_log_prob(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the log-likelihood [*B, T] of bytes under logits [*B, T, V], at least float32.

        log p(y_t) = logits_{t, y_t} - log sum_v exp logits_{t, v}

    Example:
        >>> byte_log_prob(torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([0.2500])
    """
    check_targets(targets, logits.shape[:-1], logits.shape[-1])
    return _chosen(logits, targets)


def _chosen(logits: Tensor, targets: Tensor) -> Tensor:
    chosen = logits.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    return chosen.to(wide(logits)) - logits.to(wide(logits)).logsumexp(-1)


def check_targets(targets: Tensor, shape: torch.Size, num_bytes: int, *, name: str = "targets") -> None:
    """Require targets of the shape of logits [*B, T, V] without V, and (on the CPU) values in 0..V-1."""
    if shape != targets.shape:
        raise ValueError(
            f"logits [*B, T, V] and {name} [*B, T] must agree, got {[*shape, num_bytes]} and {[*targets.shape]}"
        )
    if targets.device.type == "cpu" and targets.numel():
        low, high = (int(x) for x in targets.aminmax())
        if low < 0 or high >= num_bytes:
            allowed = f"0..{num_bytes - 1} (special ids are read, never predicted)"
            raise ValueError(f"{name} must lie in {allowed}, got values from {low} to {high}")


@takes("head: callable", "states: float *B D+", "targets: int *B", "chunk: whole [1, inf)")
def byte_log_prob_in_parts(head: Callable[[Tensor], Tensor], states: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Compute :func:`byte_log_prob` of bytes [*B, T] from states [*B, T, D], ``chunk`` positions at a time.

        log p(y_t) = z_{t, y_t} - log sum_v exp z_{t, v},      z_t = head(s_t)

    A part keeps only its states for the backward pass, which computes its logits z again: [chunk, V] exist at a time
    instead of [*B, T, V]. ``head`` maps [n, D] to [n, V], position by position.
    """

    def part(part_states: Tensor, part_targets: Tensor) -> Tensor:
        logits = check_result("head", head(part_states), part_states, [*part_targets.shape, "V"])
        return byte_log_prob(logits, part_targets)

    # The backward pass of split builds one tensor; slices would build one each.
    parts = zip(states.reshape(-1, states.shape[-1]).split(chunk), targets.reshape(-1).split(chunk), strict=True)
    grad = torch.is_grad_enabled()
    log_probs = [
        checkpoint(part, *pair, use_reentrant=False, preserve_rng_state=False) if grad else part(*pair)
        for pair in parts
    ]
    return torch.cat(log_probs).view(targets.shape).clone()  # FSDP needs outputs that are no views


@takes("logits: float *B T V+", "byte_ids: int *B T")
def next_byte_log_prob(logits: Tensor, byte_ids: Tensor) -> Tensor:
    """Compute ``log p(x_{t+1} | x_<=t)`` for t = 0 .. T - 2 from logits [*B, T, V] and bytes [*B, T]."""
    logits, targets = logits[..., :-1, :], byte_ids[..., 1:]
    check_targets(targets, targets.shape, logits.shape[-1], name="byte_ids")
    return _chosen(logits, targets)


@takes("log_values: float *L", "dim: whole [-64, 64]")
def log_mean_exp(log_values: Tensor, dim: int = -1) -> Tensor:
    """Compute ``log (1/k) sum_j exp(v_j) = logsumexp_j v_j - log k`` over ``dim``, without overflow.

    If exp(v_j) are k unbiased estimates of a likelihood p, this is a lower bound of log p in expectation, and rises
    with k (https://arxiv.org/abs/1509.00519).
    """
    if not -log_values.dim() <= dim < log_values.dim() or not log_values.shape[dim]:
        raise ValueError(f"log_values must have at least one entry along dim {dim}, got {[*log_values.shape]}")
    return log_values.logsumexp(dim) - math.log(log_values.shape[dim])


@takes("nats: number | real *L", "num_bytes: whole [1, inf)")
def bits_per_byte(nats: Tensor | float, num_bytes: int) -> Tensor | float:
    """Convert a summed cost in nats into bits per byte, ``nats / (ln 2 * num_bytes)``."""
    return nats / (math.log(2) * num_bytes)
