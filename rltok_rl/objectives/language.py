"""Next-byte cross-entropy of the whole model and of the early exit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.objectives.base import StepLoss, read


class LanguageModelLoss(StepLoss):
    """Next-byte cross-entropy of the whole model, from a rollout that carries gradients.

        L_auto = -mean_t log p(x_{t+1} | x_<=t, a_<=t)

    Writes ``loss_language_model`` in nats per byte, and ``bits_per_byte``.
    """

    @dataclass
    class _AcceptedKeys:
        log_prob: NestedKey = "final_log_prob"

    keys_under_next = ("log_prob",)
    out_keys = ["loss_language_model", "bits_per_byte"]

    def compute(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Compute the loss and its metric."""
        nats = -read(tensordict, *self.in_keys)
        mask = self.steps(tensordict)
        loss = self.reduce(nats, mask)
        whole = self.reduction == "mean" and self.process_group is None
        mean = loss.detach() if whole else self.metric(nats, mask)
        return dict(zip(self.out_keys, (loss, mean / math.log(2)), strict=True))


class EarlyExitLoss(LanguageModelLoss):
    """Next-byte cross-entropy of the early exit; its gradient reaches the encoder.

        L_early = -mean_t log p_early(x_{t+1} | x_<=t)

    Writes ``loss_early_exit`` in nats per byte, and ``early_bits_per_byte``.
    """

    @dataclass
    class _AcceptedKeys:
        log_prob: NestedKey = "early_log_prob"

    out_keys = ["loss_early_exit", "early_bits_per_byte"]
