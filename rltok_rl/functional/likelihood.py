"""Log-likelihoods of bytes, and their unit."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def byte_log_prob(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-likelihood of given bytes, without a log-softmax over all of them being kept.

        log p(y_t) = logits_{t, y_t} - log sum_v exp logits_{t, v}

    Args:
        logits: [*B, T, V] next-byte logits.
        targets: [*B, T] the bytes y_t.

    Returns:
        [*B, T] log-likelihoods in nats, at least in float32.

    Example:
        >>> byte_log_prob(torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([0.2500])
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits [*B, T, V] and targets [*B, T] must agree, got {[*logits.shape]} and {[*targets.shape]}"
        )
    if targets.device.type == "cpu" and targets.numel():
        low, high = (int(x) for x in targets.aminmax())
        if low < 0 or high >= logits.shape[-1]:
            allowed = f"0..{logits.shape[-1] - 1} (special ids are read, never predicted)"
            raise ValueError(f"targets must lie in {allowed}, got values from {low} to {high}")
    taken = logits.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return taken.to(dtype) - logits.to(dtype).logsumexp(-1)


def byte_log_prob_in_parts(head: Callable[[Tensor], Tensor], states: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Log-likelihood of given bytes from states, with the predictions of a few positions held at a time.

        log p(y_t) = z_{t, y_t} - log sum_v exp z_{t, v},      z_t = head(s_t)

    A part keeps its states alone for the backward pass, which computes its logits z again: [chunk, V] of them exist at
    a time, forward and backward, instead of [*B, T, V]. Each value is computed as :func:`byte_log_prob` does.

    Args:
        head: [n, D] states to [n, V] logits, position by position.
        states: [*B, T, D] states s_t.
        targets: [*B, T] the bytes y_t.
        chunk: positions of a part.

    Returns:
        [*B, T] log-likelihoods in nats, at least in float32.

    Example:
        >>> states, targets = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
        >>> byte_log_prob_in_parts(lambda x: x, states, targets, 2).exp()[0]
        tensor([0.2500, 0.2500, 0.2500])
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")

    def part(some: Tensor, wanted: Tensor) -> Tensor:
        return byte_log_prob(head(some), wanted)

    # Split, whose backward pass puts the parts together once; slices would each make a tensor of the whole.
    parts = zip(states.reshape(-1, states.shape[-1]).split(chunk), targets.reshape(-1).split(chunk), strict=True)
    again = torch.is_grad_enabled()
    found = [
        checkpoint(part, *both, use_reentrant=False, preserve_rng_state=False) if again else part(*both)
        for both in parts
    ]
    return torch.cat(found).view(targets.shape).clone()  # a tensor of its own, as FSDP wants of what a module returns


def next_byte_log_prob(logits: Tensor, byte_ids: Tensor) -> Tensor:
    """Log-likelihood of each next byte, ``log p(x_{t+1} | x_<=t)`` for t = 0 .. T - 2.

    Args:
        logits: [*B, T, V] logits; position t predicts byte t + 1, and the last position predicts nothing given.
        byte_ids: [*B, T] the bytes.

    Returns:
        [*B, T - 1] log-likelihoods in nats ([*B, 0] where T is 0).
    """
    return byte_log_prob(logits[..., :-1, :], byte_ids[..., 1:])


def log_mean_exp(log_values: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of a mean, from logarithms, without leaving their range.

        log (1/k) sum_j exp(v_j) = logsumexp_j v_j - log k

    Where exp(v_j) are k unbiased estimates of a likelihood p, so is their mean, and its logarithm is a lower bound of
    log p in expectation: it rises with k, towards log p.

    Args:
        log_values: [*L] with k >= 1 entries along ``dim``.
        dim: the dimension that the mean is over.

    Returns:
        [*L] without ``dim``.

    Example:
        >>> log_mean_exp(torch.tensor([0.25, 0.75]).log()).exp()
        tensor(0.5000)
        >>> log_mean_exp(torch.tensor([-2000.0, -2000.0]))
        tensor(-2000.)

    Reference: https://arxiv.org/abs/1509.00519
    """
    if not log_values.shape[dim]:
        raise ValueError(f"log_values must have at least one entry along dim {dim}, got {[*log_values.shape]}")
    return log_values.logsumexp(dim) - math.log(log_values.shape[dim])


def bits_per_byte(nats: Tensor | float, num_bytes: int) -> Tensor | float:
    """Turn a summed negative log-likelihood in nats into bits per byte.

        bpb = nats / (ln 2 * num_bytes)

    Args:
        nats: total cost in nats.
        num_bytes: bytes it was paid for.

    Example:
        >>> round(bits_per_byte(8 * math.log(2), 4), 6)
        2.0
    """
    if num_bytes < 1:
        raise ValueError(f"num_bytes must be at least 1, got {num_bytes}")
    return nats / (math.log(2) * num_bytes)
