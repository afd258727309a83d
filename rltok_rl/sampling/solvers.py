"""The threshold recurrence solved by a loop, by sweeps to the fixed point, by maps over lag states, or by numba.

    a_t = [base_t + sum_{j=1..w} a_{t-j} lags_{t,j} > theta_t]

All take ``base`` [B, T], ``lags`` [B, T, w], ``thresholds`` [B, T] of one dtype and return [B, T] bool. They add lags
from the oldest to the newest, so that all make the same sums bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.policy import lagged_logit

# Maximum number of sweeps. Policies in training need 4 to 30; strings that need more usually need T.
_MAX_SWEEPS = 40
_PATIENCE, _SLOWEST_SWEEP = 12, 13  # after 12 sweeps, fewer settled positions per sweep mean a chain
MOST_MAPPED_LAGS = 8  # 2^w states
# On a CPU a position costs maps and loop the same at about this many states of all rows.
_CHEAP_STATES = 2**13
_CHUNK = 64
_MOST_HELD = 2**23  # bytes of decisions in memory at once: longer strings are cut into spans
_ROWS = 8  # walked side by side: one row is a chain of dependent additions, several keep the processor busy


def loop(base: Tensor, lags: Tensor, thresholds: Tensor, recent: Tensor | None = None) -> Tensor:
    """Solve one position after the other, all rows at once: the definition.

    ``recent`` [B, w], newest first, are the boundaries before the first position; None if there are none.
    """
    boundaries = torch.zeros(base.shape, dtype=torch.bool, device=base.device)
    recent = boundaries.new_zeros(base.shape[0], lags.shape[-1]) if recent is None else recent
    for t in range(base.shape[1]):
        boundaries[:, t] = drawn = lagged_logit(base[:, t], lags[:, t], recent) > thresholds[:, t]  # [B]
        recent = torch.cat((drawn[:, None], recent), dim=1)[:, : lags.shape[-1]]
    return boundaries


def sweeps(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """Guess all boundaries and recompute them from the guess until nothing changes.

    A fixed point is the unique solution: position 0 depends on nothing, position 1 on position 0, and so on. Each sweep
    settles at least one more position, usually many; positions before the first change are final. Strings that settle
    slowly continue with the maps if these are cheap, else with the loop, which bounds the worst case.
    """
    num_lags, length = lags.shape[-1], base.shape[1]
    terms = lags.movedim(-1, 0).contiguous()  # [w, B, T]: each pass over one lag reads memory in order
    padded = F.pad(base > thresholds, (num_lags, 0)).to(base.dtype)  # [B, w + T], w zeros before the text
    start = 0  # everything before is settled
    for sweep in range(_MAX_SWEEPS):
        if start >= length or (sweep > _PATIENCE and start < _SLOWEST_SWEEP * sweep):
            break
        logits = base[:, start:]
        for j in range(num_lags, 0, -1):
            first = start + num_lags - j
            logits = logits + terms[j - 1, :, start:] * padded[:, first : first + length - start]
        fresh = (logits > thresholds[:, start:]).to(base.dtype)
        current = padded[:, start + num_lags :]
        changed = (fresh != current).any(0)  # [T - start]
        padded[:, start + num_lags :] = fresh
        if not bool(changed.any()):
            start = length
            break
        start += int(changed.int().argmax()) + 1  # this position was computed from settled ones
    boundaries = padded[:, num_lags:] > 0
    if start < length:
        recent = padded[:, start : start + num_lags].flip(1) > 0  # [B, w], newest first
        few = base.device.type != "cpu" or base.shape[0] << num_lags <= _CHEAP_STATES
        solve = maps if num_lags <= MOST_MAPPED_LAGS and few else loop
        boundaries[:, start:] = solve(base[:, start:], lags[:, start:], thresholds[:, start:], recent)
    return boundaries


def maps(base: Tensor, lags: Tensor, thresholds: Tensor, recent: Tensor | None = None) -> Tensor:
    """Follow all 2^w lag states through each chunk at once, then chain the chunks; ``recent`` as in :func:`loop`.

    The last w boundaries are a state; a position maps states to states. Chunks compose their maps in parallel, a short
    loop over chunks finds the state in which each one starts, and a second pass reads the boundaries. The work is
    independent of the policy and grows as 2^w, which suits accelerators and short lag windows; memory is bounded.
    """
    num_rows, length = base.shape
    num_lags = lags.shape[-1]
    state = torch.zeros(num_rows, 1, dtype=torch.long, device=base.device)
    if recent is not None:
        for j in range(1, num_lags + 1):
            state += recent[:, j - 1 : j].long() << (num_lags - j)
    span = max(1, _MOST_HELD // (num_rows * _CHUNK << num_lags)) * _CHUNK
    boundaries = torch.empty(base.shape, dtype=torch.bool, device=base.device)
    for first in range(0, length, span):
        here = slice(first, first + span)
        boundaries[:, here], state = _map_span(base[:, here], lags[:, here], thresholds[:, here], state)
    return boundaries


def _map_span(base: Tensor, lags: Tensor, thresholds: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Solve a span that starts in ``state`` [B, 1]: boundaries [B, n], and the state after its last whole chunk."""
    num_rows, length = base.shape
    num_lags = lags.shape[-1]
    num_chunks = -(-length // _CHUNK)
    pad = num_chunks * _CHUNK - length

    def chunked(x: Tensor) -> Tensor:
        """[B, T, ...] to [C, B, n, ...], with the place in the chunk first."""
        x = torch.cat((x, x.new_zeros(num_rows, pad, *x.shape[2:])), dim=1)
        return x.view(num_rows, num_chunks, _CHUNK, *x.shape[2:]).movedim(2, 0)

    base, lags, thresholds = chunked(base), chunked(lags), chunked(thresholds)
    newest = 1 << (num_lags - 1)  # bit k of a state is the boundary w - k bytes ago
    states = torch.arange(1 << num_lags, device=base.device)

    def draws(c: int) -> Tensor:
        """Decide place c of every chunk in every state, [B, n, 2^w] bool, adding the oldest lag first."""
        sums = base[c][..., None]
        for j in range(num_lags, 0, -1):
            sums = torch.cat((sums, sums + lags[c][..., j - 1 : j]), dim=-1)
        return sums > thresholds[c][..., None]

    drawn = [draws(c) for c in range(_CHUNK)]
    ends = states.expand(num_rows, num_chunks, -1)  # [B, n, 2^w] current state of each starting state
    for c in range(_CHUNK):
        ends = (ends >> 1) + newest * drawn[c].gather(-1, ends)
    starts = []
    for chunk in range(num_chunks):
        starts.append(state)
        state = ends[:, chunk].gather(-1, state)
    after, state = state, torch.stack(starts, dim=1)  # [B, n, 1]
    boundaries = []
    for c in range(_CHUNK):
        here = drawn[c].gather(-1, state)
        boundaries.append(here)
        state = (state >> 1) + newest * here
    return torch.cat(boundaries, dim=-1).flatten(1)[:, :length], after


def numba_loop(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """[B, T], [B, T, w], [B, T] to [B, T] bool; compiled once per w and dtype.

    Raises FloatingPointError if a term may be infinite or not a number. That check is nearly free in here, and costs
    more than the walk from outside.
    """
    boundaries = torch.empty(base.shape, dtype=torch.bool)
    history = base.new_zeros(_ROWS, base.shape[1] + lags.shape[-1])
    walk = _walk(lags.shape[-1])
    checksum = walk(base.numpy(), lags.numpy(), thresholds.numpy(), boundaries.numpy(), history.numpy())
    if not isfinite(checksum):
        raise FloatingPointError("base or lags are not finite, or too large to add up")
    return boundaries


@cache
def _walk(num_lags: int) -> Callable[..., float]:
    """Compile for a number of lags, so that the sum over them is unrolled."""
    import numba
    from numba import boolean, float32, float64

    rows = _ROWS
    signatures = [
        # Strides are left open (A) where views arrive: the lags are a slice of the projection's output.
        float64(real[:, :], real[:, :, :], real[:, :], boolean[:, ::1], real[:, ::1])
        for real in (float32, float64)
    ]

    def walk(base, lags, thresholds, boundaries, history):  # pragma: no cover - runs compiled
        num_rows, length = base.shape
        one, zero = history.dtype.type(1), history.dtype.type(0)
        checksum = zero
        for first in range(0, num_rows, rows):
            last = min(first + rows, num_rows)
            for t in range(length):
                for row in range(first, last):
                    total = base[row, t]
                    for j in range(num_lags, 0, -1):  # oldest first; times 0 or 1 is exact
                        total += lags[row, t, j - 1] * history[row - first, t + num_lags - j]
                    checksum += total  # nan times 0 is nan: no term escapes
                    drawn = total > thresholds[row, t]
                    boundaries[row, t] = drawn
                    history[row - first, t + num_lags] = one if drawn else zero
        return checksum

    try:
        return numba.njit(signatures, cache=True, nogil=True)(walk)
    except (RuntimeError, OSError):  # the cache cannot be written: compile in every process
        return numba.njit(signatures, nogil=True)(walk)
