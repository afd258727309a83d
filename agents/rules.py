"""Boundary actors that follow a fixed rule on one byte and its position, in steps and in windows alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rltok_rl.ranges import check_number
from rltok_rl.utils import check_count


class RuleActor(TensorDictModule):
    """An actor that writes ``action`` by a rule on single positions; the first byte of a text always has a boundary.

    ``rule`` maps ``in_keys`` to bool decisions.
    """

    draws_windows = True
    draws_at_random = False

    def __init__(self, rule: Callable[..., Tensor], in_keys: list[str]) -> None:
        super().__init__(_WithForced(rule), in_keys=[*in_keys, "forced"], out_keys=["action"])


class _WithForced(nn.Module):
    def __init__(self, rule: Callable[..., Tensor]) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, *inputs: Tensor) -> Tensor:
        *features, forced = inputs
        return (self.rule(*features) | forced).long()


def check_rate(rate: float) -> float:
    """Require a rate in (0, 1]."""
    return check_number("rate", rate, "(0, 1]")


class UniformActor(RuleActor):
    """Evenly spaced boundaries at any rate in (0, 1], ``a_t = [ceil(rate (t + 1)) > ceil(rate t)]``."""

    def __init__(self, rate: float) -> None:
        super().__init__(partial(evenly_spaced, rate=check_rate(rate)), in_keys=["position"])


def evenly_spaced(position: Tensor, *, rate: float | Tensor) -> Tensor:
    """Draw boundaries [*B] at positions [*B, 1], evenly at one rate or at rates [*B]."""
    # 1e-9 because 1/5 is not exact, and 0.2 * 5 must count as 1. float64 stays precise for longer texts.
    before, after = ((t.squeeze(-1).double() * rate - 1e-9).ceil() for t in (position, position + 1))
    return after > before


class FixedStrideActor(RuleActor):
    """A boundary at every ``stride``-th byte, beginning with the first, as in MEGABYTE."""

    def __init__(self, stride: int) -> None:
        super().__init__(partial(_multiples, stride=check_count("stride", stride)), in_keys=["position"])


def _multiples(position: Tensor, *, stride: int) -> Tensor:
    return position.squeeze(-1) % stride == 0


class WhitespaceActor(RuleActor):
    """A boundary at every white-space byte, which closes the word before it (Nawrot et al.)."""

    def __init__(self) -> None:
        super().__init__(_whitespace, in_keys=["byte"])


def _whitespace(byte: Tensor) -> Tensor:
    return (byte == ord(" ")) | (ord("\t") <= byte) & (byte <= ord("\r"))
