"""What is given as a baseline, as a function from returns to advantages: a name, a function, or one with a memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from rltok_rl.functional.baselines import BASELINES, WORDS
from rltok_rl.utils import did_you_mean

Baseline: TypeAlias = Callable[..., Tensor]
"""``(returns, *, mask, process_group) -> advantages``, all [*B, T]."""


def as_baseline(baseline: str | Baseline | type[nn.Module]) -> Baseline:
    """The function that is meant: by its name, itself, or a module, of which a class is made into one.

    A class is made anew each time, so that no two estimators share a memory.

    Args:
        baseline: a key of :data:`~rltok_rl.functional.baselines.BASELINES`; a function of their signature; a
            :class:`torch.nn.Module` of that signature; or a class of such, alone or with options in a partial.

    Example:
        >>> as_baseline("leave_one_out").__name__
        'leave_one_out'
    """
    if isinstance(baseline, str):
        if baseline not in BASELINES:
            raise ValueError(
                f"baseline must be one of {list(BASELINES)}, a function or a module, got {baseline!r}"
                f"{did_you_mean(baseline, BASELINES, WORDS)}"
            )
        return BASELINES[baseline]
    given: Any = baseline
    made = given.func if isinstance(given, partial) else given
    if isinstance(made, type):
        if not issubclass(made, nn.Module):
            raise TypeError(
                f"baseline must be a torch.nn.Module where it is a class, so that its memory is in checkpoints, "
                f"got {made.__name__}"
            )
        try:
            return given()
        except TypeError as error:
            raise TypeError(
                f"baseline {made.__name__} must be made without arguments, or given made: {error}"
            ) from error
    if isinstance(made, nn.Module) and made is not given:
        raise TypeError("baseline must be a module itself, not a partial of one, whose memory no checkpoint would have")
    if not callable(given):
        raise TypeError(f"baseline must be a name, a function or a module, got {given!r}")
    return given


def name_of(function: Any) -> str:
    """What messages call a baseline."""
    named = function.func if isinstance(function, partial) else function
    return getattr(named, "__name__", type(named).__name__)


def check_advantages(advantages: Any, returns: Tensor, maker: str) -> Tensor:
    """Require advantages of the shape of returns, whatever made them.

    Args:
        advantages: what was made.
        returns: [*B, T], of what.
        maker: what the message calls the function.
    """
    if not isinstance(advantages, Tensor) or advantages.shape != returns.shape:
        shown = [*advantages.shape] if isinstance(advantages, Tensor) else type(advantages).__name__
        raise ValueError(
            f"{maker} must return advantages {[*returns.shape]}, what is left of the returns, one for one, got {shown}"
        )
    return advantages
