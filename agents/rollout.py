"""The policy as it stands in a rollout."""

from __future__ import annotations

from rltok_rl.agents.distribution import BernoulliBoundary
from tensordict.nn import InteractionType, TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor


class RolloutPolicy(ProbabilisticActor):
    """Scores decisions by the ``logits`` that a rollout holds, with whatever gradient they carry.

    Losses that want an actor (clipped ratios, importance weights) take the rollout's own logits through it, instead of
    running the policy a second time.
    """

    def __init__(self) -> None:
        logits = TensorDictModule(_Same(), in_keys=["logits", "forced"], out_keys=["logits"])
        super().__init__(
            logits,
            in_keys=["logits", "forced"],
            out_keys=["action"],
            distribution_class=BernoulliBoundary,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        )


class _Same(nn.Module):
    def forward(self, logits: Tensor, forced: Tensor) -> Tensor:
        return logits
