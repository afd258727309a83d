"""Drawing boundaries: every method against the plain loop, on easy and on hard policies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from rltok_rl.experiments.bench.harness import Row, compare
from torch import Tensor

from rltok_rl.sampling import METHODS, sample_boundaries

ROWS, LENGTH, LAGS = 32, 4096, 8
Terms = tuple[Tensor, Tensor]


def trained_like(num_lags: int) -> Terms:
    """Decided policies: boundaries after 18 % of bytes, held off right after a boundary."""
    noise = torch.randn(ROWS, LENGTH, 1 + num_lags)
    base = torch.where(torch.rand(ROWS, LENGTH) < 0.18, 2.5, -4.0) + 0.8 * noise[..., 0]
    terms = torch.cat((base[..., None], -3.0 * torch.exp(-torch.arange(num_lags) / 2) + 0.5 * noise[..., 1:]), -1)
    return terms[..., 0], terms[..., 1:]


def fresh(num_lags: int) -> Terms:
    """What a model draws from before training: all logits near the target rate's."""
    terms = 0.06 * torch.randn(ROWS, LENGTH, 1 + num_lags)
    return terms[..., 0] - 1.39, terms[..., 1:]


def alternating(num_lags: int) -> Terms:
    """A boundary exactly if the byte before has none, whatever the uniforms say."""
    lags = torch.zeros(ROWS, LENGTH, num_lags)
    lags[..., 0] = -80.0
    return torch.full((ROWS, LENGTH), 40.0), lags


def every_third(num_lags: int) -> Terms:
    """Period 3."""
    lags = torch.zeros(ROWS, LENGTH, num_lags)
    lags[..., :2] = -80.0
    return torch.full((ROWS, LENGTH), 40.0), lags


def long_chain(num_lags: int) -> Terms:
    """Copy or negate the oldest boundary in sight: one flip changes everything after it."""
    sign = torch.where(torch.rand(ROWS, LENGTH) < 0.5, 40.0, -40.0)
    lags = torch.zeros(ROWS, LENGTH, num_lags)
    lags[..., -1] = 2 * sign
    return -sign, lags


def unordered_loop(base: Tensor, lags: Tensor) -> Tensor:
    """The quickest loop in plain torch: the sum over lags in one call, in an order that torch chooses.

    It does not reproduce the other methods to the last bit, and is here so that the plain loop is no straw man.
    """
    num_lags = lags.shape[-1]
    thresholds = torch.logit(torch.rand(base.shape, device=base.device))
    reversed_lags = lags.flip(-1).contiguous()
    padded = base.new_zeros(base.shape[0], base.shape[1] + num_lags)
    padded[:, num_lags] = 1.0
    for t in range(1, base.shape[1]):
        logits = base[:, t] + (reversed_lags[:, t] * padded[:, t : t + num_lags]).sum(-1)
        padded[:, num_lags + t] = logits > thresholds[:, t]
    return padded[:, num_lags:] > 0


def rows(device: str) -> list[Row]:
    """``auto`` against the loop on every policy at w = 8, then each method at several w."""
    torch.manual_seed(0)
    policies: list[Callable[[int], Terms]] = [trained_like, fresh, alternating, every_third, long_chain]
    out = []
    for policy in policies:
        base, lags = (x.to(device) for x in policy(LAGS))
        auto = partial(sample_boundaries, base, lags)
        loop = partial(sample_boundaries, base, lags, method="loop")
        name = policy.__name__.replace("_", " ")
        goal = 100.0 if device == "cpu" else None
        out.append(compare("sampler", f"auto / loop, w=8, {name}", auto, loop, pairs=5, repeat=10, goal=goal))
    base, lags = (x.to(device) for x in trained_like(LAGS))
    auto, unordered = partial(sample_boundaries, base, lags), partial(unordered_loop, base, lags)
    out.append(compare("sampler", "auto / unordered loop, w=8, trained like", auto, unordered, pairs=5, repeat=10))
    for num_lags in (1, 4, 8, 12):
        for policy in (trained_like, long_chain):
            base, lags = (x.to(device) for x in policy(num_lags))
            loop = partial(sample_boundaries, base, lags, method="loop")
            for method, what in METHODS.items():
                if method == "loop" or what.missing(device, num_lags) is not None:
                    continue
                ours = partial(sample_boundaries, base, lags, method=method)
                name = f"{method} / loop, w={num_lags}, {policy.__name__.replace('_', ' ')}"
                out.append(compare("sampler", name, ours, loop, pairs=3, repeat=2))
    return out
