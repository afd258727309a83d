"""Learning rates over the course of training, counted in bytes."""

from __future__ import annotations

import math


def cosine_schedule(done: float, total: float, *, warm_up: float, floor: float = 0.0) -> float:
    """Share of the peak learning rate: a line up during warm-up, then half a cosine down to the floor.

        s = done / warm_up                                                 before the end of warm-up
        s = floor + (1 - floor) (1 + cos(pi (done - warm_up) / (total - warm_up))) / 2          after

    Args:
        done: bytes trained on so far.
        total: bytes of the whole training; beyond them the floor stays.
        warm_up: bytes of warm-up, less than ``total``.
        floor: what is left at the end, in [0, 1].

    Example:
        >>> [round(cosine_schedule(done, 100, warm_up=20), 2) for done in (10, 20, 60, 100)]
        [0.5, 1.0, 0.5, 0.0]
    """
    if not 0 <= warm_up < total:
        raise ValueError(f"warm_up must lie in [0, total={total}), got {warm_up}")
    if not 0.0 <= floor <= 1.0:
        raise ValueError(f"floor must lie in [0, 1], got {floor}")
    if done < warm_up:
        return done / warm_up
    way = min(1.0, (done - warm_up) / (total - warm_up))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * way))
