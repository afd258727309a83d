"""Exact draws from the boundary policy: input checks, choice of a method, sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from rltok_rl.functional.reduction import wide
from rltok_rl.functional.takes import takes
from rltok_rl.sampling import solvers
from rltok_rl.sampling.thresholds import boundary_thresholds, check_values

TRITON_LAGS = 31  # bits of a signed 32-bit integer without its sign


@dataclass(frozen=True)
class Method:
    """Method to solve the threshold recurrence."""

    solve: Callable[[Tensor, Tensor, Tensor], Tensor]
    """base [B, T], lags [B, T, w], thresholds [B, T] to boundaries [B, T] bool."""
    missing: Callable[[str, int], str | None] = lambda device, num_lags: None
    """(device type, w) to the reason why it cannot run, or None."""
    checks: bool = False
    """Whether ``solve`` itself raises FloatingPointError for terms that may not be finite."""


class NotFiniteError(ValueError):
    """The terms of a policy are not finite: its weights or its input are not, or are too large."""


def _numba_missing(device: str, num_lags: int) -> str | None:
    if device != "cpu":
        return f"it runs on the CPU, and base is on {device}"
    return None if find_spec("numba") else "numba is not installed (pip install 'rltok_rl[fast]')"


def _triton_missing(device: str, num_lags: int) -> str | None:
    if not find_spec("triton"):
        return "triton is not installed (pip install triton)"
    if num_lags > TRITON_LAGS:
        return f"it keeps recent boundaries as bits of an integer; w may be {TRITON_LAGS} at most, got {num_lags}"
    return None if device == "cuda" else f"it runs on a GPU, and base is on {device}"


def _maps_missing(device: str, num_lags: int) -> str | None:
    most = solvers.MOST_MAPPED_LAGS
    return None if num_lags <= most else f"it follows 2^w states; w may be {most} at most, got {num_lags}"


def _triton_loop(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    from rltok_rl.sampling.triton_kernel import triton_loop

    return triton_loop(base, lags, thresholds)


METHODS: dict[str, Method] = {
    "loop": Method(solvers.loop),
    "sweeps": Method(solvers.sweeps),
    "maps": Method(solvers.maps, _maps_missing),
    "numba": Method(solvers.numba_loop, _numba_missing, checks=True),
    "triton": Method(_triton_loop, _triton_missing),
}
"""Every method by name; docs/sampling.md compares their costs."""

# First choice first; docs/sampling.md has the measurements.
_PREFERENCE = {"cpu": ("numba", "sweeps"), "cuda": ("triton", "maps", "sweeps")}


def choose_method(device: str, num_lags: int) -> str:
    """Return the method of ``"auto"`` on a device type."""
    names = _PREFERENCE.get(device, ("maps", "sweeps"))
    return next(name for name in names if METHODS[name].missing(device, num_lags) is None)


@torch.no_grad()
@takes("base: float *B T", "lags: float *B T w", "thresholds: float *B T")
def threshold_recurrence(base: Tensor, lags: Tensor, thresholds: Tensor, *, method: str = "auto") -> Tensor:
    """Solve ``a_t = [base_t + sum_j a_{t-j} lags_{t,j} > theta_t]`` for [*B, T] bool, with ``a`` 0 before the text.

    ``base`` and ``thresholds`` are [*B, T], ``lags`` [*B, T, w]. Thresholds may be infinite and are compared in the
    precision of the terms. ``method`` is ``"auto"`` or a key of :data:`METHODS`; all methods agree.

    Example:
        >>> base, lags = torch.full((1, 6), 1.0), torch.full((1, 6, 1), -2.0)  # drawn unless just drawn
        >>> threshold_recurrence(base, lags, torch.zeros(1, 6)).int()
        tensor([[1, 0, 1, 0, 1, 0]], dtype=torch.int32)
    """
    if base.device.type == "cpu" and bool(thresholds.isnan().any()):
        raise ValueError(f"thresholds must be numbers, got nan at index {thresholds.isnan().nonzero()[0].tolist()}")
    return _solve(base, lags, thresholds, method)


@torch.no_grad()
@takes("base: float *B T", "lags: float *B T w", "uniforms: float *B T", "cap: number (0, inf)")
def sample_boundaries(
    base: Tensor,
    lags: Tensor,
    *,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    cap: float | None = None,
    force_first: bool = True,
    forced: Tensor | None = None,
    greedy: bool = False,
    method: str = "auto",
) -> Tensor:
    """Draw boundary strings [*B, T] bool from the policy, exactly.

    Args:
        base: [*B, T] base terms of the logits, scaled, with the target rate's bias.
        lags: [*B, T, w] lag terms, scaled.
        uniforms: [*B, T] in [0, 1), random numbers to draw with; None draws float32 ones from ``generator``.
        generator: of base's device.
        cap: soft cap of the logits (in training), or None.
        force_first: force a boundary at position 0, ``a_0 = 1``.
        forced: -1 (free), 0 or 1, broadcastable to [*B, T].
        greedy: draw a boundary if its probability exceeds one half, without random numbers.
        method: ``"auto"`` or a key of :data:`METHODS`; all methods agree.

    Example:
        >>> base, lags = torch.zeros(2, 5), torch.zeros(2, 5, 1)
        >>> sample_boundaries(base, lags, uniforms=torch.tensor([0.9, 0.4, 0.6, 0.4, 0.6]).expand(2, 5))[0].int()
        tensor([1, 1, 0, 1, 0], dtype=torch.int32)
    """
    if greedy and uniforms is not None:
        raise ValueError("uniforms must be None with greedy=True: greedy decisions use no random numbers")
    check_values(uniforms, base, forced)
    if uniforms is None and not greedy:
        uniforms = torch.rand(base.shape, generator=generator, device=base.device, dtype=torch.float32)
    like = base.new_empty(0, dtype=wide(base, lags))
    thresholds = boundary_thresholds(uniforms, base.shape, cap=cap, forced=forced, like=like)
    if force_first:
        thresholds[..., :1] = float("-inf")  # every logit exceeds it
    return _solve(base, lags, thresholds, method)


def _solve(base: Tensor, lags: Tensor, thresholds: Tensor, method: str) -> Tensor:
    """Solve the recurrence for checked thresholds."""
    device, num_lags = base.device.type, lags.shape[-1]
    if method == "auto":
        method = choose_method(device, num_lags)
    if method not in METHODS:
        raise ValueError(f"method must be one of {['auto', *METHODS]}, got {method!r}")
    solver = METHODS[method]
    missing = solver.missing(device, num_lags)
    if missing is not None:
        raise ValueError(f"method {method!r} cannot run here: {missing}")
    independent = num_lags == 0 or base.numel() == 0
    if independent or not solver.checks:
        _check_finite(base, lags)
    dtype = wide(base, lags)  # one for all methods, so that their sums are equal
    if independent:
        return base.to(dtype) > thresholds.to(dtype)
    rows = base.shape[:-1].numel()
    base_rows, lag_rows = base.detach().to(dtype).reshape(rows, -1), lags.detach().to(dtype).reshape(rows, -1, num_lags)
    flat = base_rows, lag_rows, thresholds.detach().to(dtype).reshape(rows, -1)
    try:
        return solver.solve(*flat).view(base.shape)
    except FloatingPointError:
        _check_finite(base, lags)  # names the term
        return solvers.loop(*flat).view(base.shape)  # all terms are finite: only the solver's checksum overflowed


def _check_finite(base: Tensor, lags: Tensor) -> None:
    """Require finite terms; their sum is checked first, because it is cheap."""
    for name, terms in (("base", base), ("lags", lags)):
        if terms.device.type != "cpu":  # exactly, because a sum may overflow
            torch._assert_async(terms.isfinite().all())
        elif not bool(terms.sum(dtype=wide(terms)).isfinite()):
            wrong = (~terms.isfinite()).nonzero().tolist()
            if wrong:
                raise NotFiniteError(
                    f"{name} must be finite, got {terms[tuple(wrong[0])].item()} at index {wrong[0]} "
                    f"({len(wrong)} of {terms.numel()} values are not finite)"
                )
