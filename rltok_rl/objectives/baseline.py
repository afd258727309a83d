"""Baselines by name, by function or by module, for estimators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from rltok_rl.functional.baselines import (
    BASELINES,
    RunningMean,
    group_mean,
    no_baseline,
    per_rows,
    running_mean,
)
from rltok_rl.functional.reduction import Group, Mask
from rltok_rl.functional.takes import check_call
from rltok_rl.ranges import check_number
from rltok_rl.renamed import renamed_word
from rltok_rl.utils import check_count, did_you_mean

Baseline: TypeAlias = Callable[..., Tensor]
"""``(returns, *, mask, process_group) -> advantages``, all [*B, T]."""


class RunningMeanBaseline(nn.Module):
    """:func:`~rltok_rl.functional.baselines.running_mean` with its memory of ``num_steps`` positions.

    In training mode each call adds its batch to the mean, so call it once per batch.
    """

    total: Tensor
    count: Tensor

    def __init__(self, num_steps: int, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = check_number("decay", decay, "[0, 1]")
        check_count("num_steps", num_steps)
        for name, value in RunningMean.empty(num_steps)._asdict().items():
            self.register_buffer(name, value)

    def forward(self, returns: Tensor, *, mask: Mask = None, process_group: Group = None) -> Tensor:
        """Advantages [*B, T]."""
        if len(self.total) != returns.shape[-1]:
            raise ValueError(f"num_steps must be the {returns.shape[-1]} steps of the rollout, got {len(self.total)}")
        state = RunningMean(self.total, self.count)
        advantages, state = running_mean(returns, state, decay=self.decay, mask=mask, process_group=process_group)
        if self.training:
            self.total.copy_(state.total)
            self.count.copy_(state.count)
        return advantages


BASELINE_NAMES = (*BASELINES, "group_mean", "running_mean")
"""Every name of a baseline; ``group_mean`` and ``running_mean`` have options that must be given."""


def as_baseline(
    baseline: str | Baseline | type[nn.Module], *, rows_per_mean: int | None = None, **options: Any
) -> Baseline:
    """Return the function of a baseline. A class is instantiated, so that no two estimators share a memory.

    Args:
        baseline: one of :data:`BASELINE_NAMES`; a function ``(returns, *, mask, process_group) -> advantages``; a
            :class:`torch.nn.Module` of that signature; or such a class, alone or with options in a partial.
        rows_per_mean: apply the baseline to each group of so many consecutive rows
            (:func:`~rltok_rl.functional.baselines.per_rows`); None to all rows of all processes.
        **options: of a baseline given by name, such as ``group_size``.

    Example:
        >>> as_baseline("leave_one_out").__name__
        'leave_one_out'
    """
    if rows_per_mean is not None:
        function = as_baseline(baseline, **options)
        if isinstance(function, nn.Module) or name_of(function) == "group_mean":
            reason = "which has a memory of all rows" if isinstance(function, nn.Module) else "which has its own groups"
            raise ValueError(f"rows_per_mean must be None with {name_of(function)}, {reason}, got {rows_per_mean}")
        rows_per_mean = check_count("rows_per_mean", rows_per_mean)
        return (
            function if function is no_baseline else partial(per_rows, baseline=function, rows_per_mean=rows_per_mean)
        )
    if isinstance(baseline, str):
        return _by_name(renamed_word("baseline", baseline), options)
    if options:
        raise TypeError(f"only baselines given by name take options, got {sorted(options)} with {name_of(baseline)!r}")
    kind: Any = baseline.func if isinstance(baseline, partial) else baseline
    if isinstance(kind, type):
        if not issubclass(kind, nn.Module):
            raise TypeError(
                f"baseline must be a torch.nn.Module if it is a class, so that its memory is in checkpoints, "
                f"got {kind.__name__}"
            )
        try:
            return baseline()  # type: ignore[return-value]
        except TypeError as error:
            raise TypeError(
                f"baseline {kind.__name__} must be made without arguments, or given as an instance: {error}"
            ) from error
    if isinstance(kind, nn.Module) and kind is not baseline:
        raise TypeError("baseline must be a module itself, not a partial of one, whose memory no checkpoint would have")
    if not callable(baseline):
        raise TypeError(f"baseline must be a name, a function or a module, got {baseline!r}")
    return baseline  # type: ignore[return-value]


def _by_name(name: str, options: dict[str, Any]) -> Baseline:
    if name not in BASELINE_NAMES:
        raise ValueError(
            f"baseline must be one of {list(BASELINE_NAMES)}, a function or a module, got {name!r}"
            f"{did_you_mean(name, BASELINE_NAMES)}"
        )
    function: Any = {"group_mean": group_mean, "running_mean": RunningMeanBaseline, **BASELINES}[name]
    try:
        inspect.signature(function).bind(*() if name == "running_mean" else (None,), **options)
    except TypeError as error:
        raise TypeError(f"options of baseline {name!r} must fit, got {sorted(options)}: {error}") from None
    if name == "running_mean":
        return RunningMeanBaseline(**options)
    check_call(function, **options)
    return partial(function, **options) if options else function


def name_of(function: Any) -> str:
    """Return the name of a baseline for messages."""
    named = function
    while isinstance(named, partial):
        named = named.keywords["baseline"] if named.func is per_rows else named.func
    return getattr(named, "__name__", type(named).__name__)
