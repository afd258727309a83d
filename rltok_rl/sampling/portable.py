"""The threshold recurrence in plain torch: the reference loop, sweeps to the fixed point, maps over lag states.

    a_t = [base_t + sum_{j=1..w} a_{t-j} lags_{t,j} > theta_t]

All take ``base`` [B, T], ``lags`` [B, T, w], ``thresholds`` [B, T] of one dtype and return [B, T] bool. They add lags
from the oldest to the newest, so that all make the same sums bit for bit.
"""

from __future__ import annotations

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


def loop(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """Solve one position after the other, all rows at once: the definition."""
    boundaries = torch.zeros(base.shape, dtype=torch.bool, device=base.device)
    recent = boundaries.new_zeros(base.shape[0], lags.shape[-1])
    _continue_loop(base, lags, thresholds, boundaries, recent, 0)
    return boundaries


def _continue_loop(
    base: Tensor, lags: Tensor, thresholds: Tensor, boundaries: Tensor, recent: Tensor, start: int
) -> None:
    """Fill ``boundaries`` from ``start`` on, after the ``recent`` [B, w] ones."""
    num_lags = lags.shape[-1]
    for t in range(start, base.shape[1]):
        drawn = lagged_logit(base[:, t], lags[:, t], recent) > thresholds[:, t]  # [B]
        boundaries[:, t] = drawn
        recent = torch.cat((drawn[:, None], recent), dim=1)[:, :num_lags]


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
        if start >= length or num_lags == 0 or (sweep > _PATIENCE and start < _SLOWEST_SWEEP * sweep):
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
    if start < length and num_lags:
        recent = padded[:, start : start + num_lags].flip(1) > 0  # [B, w], newest first
        if _maps_are_cheap(base, num_lags):
            boundaries[:, start:] = maps(base[:, start:], lags[:, start:], thresholds[:, start:], recent)
        else:
            _continue_loop(base, lags, thresholds, boundaries, recent, start)
    return boundaries


def _maps_are_cheap(base: Tensor, num_lags: int) -> bool:
    if num_lags > MOST_MAPPED_LAGS:
        return False
    return base.device.type != "cpu" or base.shape[0] << num_lags <= _CHEAP_STATES


def maps(base: Tensor, lags: Tensor, thresholds: Tensor, recent: Tensor | None = None) -> Tensor:
    """Follow all 2^w lag states through each chunk at once, then chain the chunks.

    The last w boundaries are a state; a position maps states to states. Chunks compose their maps in parallel, a short
    loop over chunks finds the state in which each one starts, and a second pass reads the boundaries. The work is
    independent of the policy and grows as 2^w, which suits accelerators and short lag windows; memory is bounded.
    ``recent`` [B, w], newest first, are the boundaries before the first position; None is none.
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
    num_chunks = max(1, -(-length // _CHUNK))
    pad = num_chunks * _CHUNK - length

    def chunked(x: Tensor) -> Tensor:
        """[B, T, ...] to [C, B, n, ...], with the place in the chunk first."""
        x = torch.cat((x, x.new_zeros(num_rows, pad, *x.shape[2:])), dim=1)
        return x.view(num_rows, num_chunks, _CHUNK, *x.shape[2:]).movedim(2, 0)

    base, lags, thresholds = chunked(base), chunked(lags), chunked(thresholds)
    newest = 1 << (num_lags - 1) if num_lags else 0  # bit k of a state is the boundary w - k bytes ago
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
