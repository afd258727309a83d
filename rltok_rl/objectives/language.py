"""Next-byte cross-entropy of the whole model and of the early exit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey

from rltok_rl.objectives.base import StepLoss, read, under_next


class _NextByteLoss(StepLoss):
    """Mean cost of the next byte under one of the two heads."""

    tensor_keys: Any

    @property
    def in_keys(self) -> list[NestedKey]:
        """The log-likelihood under ``next``."""
        return [under_next(self.tensor_keys.log_prob)]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the loss and its metric in a tensordict without batch dimension."""
        nats = -read(tensordict, under_next(self.tensor_keys.log_prob))
        mask = self.steps(tensordict)
        loss, bits = self.out_keys
        return TensorDict({loss: self.reduce(nats, mask), bits: self.metric(nats, mask) / math.log(2)})


class LanguageModelLoss(_NextByteLoss):
    """Next-byte cross-entropy of the whole model, from a rollout that carries gradients.

        L_auto = -mean_t log p(x_{t+1} | x_<=t, a_<=t)

    Writes ``loss_language_model`` in nats per byte, and ``bits_per_byte``.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys under ``next``."""

        log_prob: NestedKey = "final_log_prob"

    default_keys = _AcceptedKeys
    out_keys = ["loss_language_model", "bits_per_byte"]


class EarlyExitLoss(_NextByteLoss):
    """Next-byte cross-entropy of the early exit; its gradient reaches the encoder.

        L_early = -mean_t log p_early(x_{t+1} | x_<=t)

    Writes ``loss_early_exit`` in nats per byte, and ``early_bits_per_byte``.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys under ``next``."""

        log_prob: NestedKey = "early_log_prob"

    default_keys = _AcceptedKeys
    out_keys = ["loss_early_exit", "early_bits_per_byte"]
