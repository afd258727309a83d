"""Actors that follow a fixed rule. A rule looks at one byte and its position: it serves steps and windows alike."""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rltok_rl.utils import check_count


class RuleActor(TensorDictModule):
    """An actor that writes ``action`` by a rule on single positions; the first byte of a text always has a boundary.

    Args:
        rule: module from ``in_keys`` and ``forced`` to bool decisions.
        in_keys: what it reads.
    """

    draws_windows = True
    draws_at_random = False

    def __init__(self, rule: nn.Module, in_keys: list[str]) -> None:
        super().__init__(_Forced(rule), in_keys=[*in_keys, "forced"], out_keys=["action"])


class _Forced(nn.Module):
    def __init__(self, rule: nn.Module) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, *inputs: Tensor) -> Tensor:
        *features, forced = inputs
        return (self.rule(*features) | forced).long()


class UniformActor(RuleActor):
    """Evenly spaced boundaries at any rate: after t bytes, ``ceil(rate t)`` have been drawn.

        a_t = [ceil(rate (t + 1)) > ceil(rate t)]

    Args:
        rate: boundaries per byte, in (0, 1].
    """

    def __init__(self, rate: float) -> None:
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"rate must lie in (0, 1], got {rate}")
        super().__init__(_Even(rate), in_keys=["position"])


class _Even(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, position: Tensor) -> Tensor:
        # 1e-9: a rate such as 1/5 is not exact, and 0.2 * 5 must count as 1. float64 keeps positions apart for longer.
        passed = (position.squeeze(-1).double() * self.rate - 1e-9).ceil()
        return ((position.squeeze(-1) + 1).double() * self.rate - 1e-9).ceil() > passed


class FixedStrideActor(RuleActor):
    """A boundary at every ``stride``-th byte from the first on, as in MEGABYTE.

    Args:
        stride: bytes per token, at least 1.
    """

    def __init__(self, stride: int) -> None:
        super().__init__(_Stride(check_count("stride", stride)), in_keys=["position"])


class _Stride(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, position: Tensor) -> Tensor:
        return position.squeeze(-1) % self.stride == 0


class WhitespaceActor(RuleActor):
    """A boundary at every white-space byte, which closes the word before it (Nawrot et al.)."""

    def __init__(self) -> None:
        super().__init__(_Whitespace(), in_keys=["byte"])


class _Whitespace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.space: Tensor
        self.register_buffer("space", torch.tensor(list(b" \t\n\r\v\f")), persistent=False)

    def forward(self, byte: Tensor) -> Tensor:
        return torch.isin(byte, self.space)
