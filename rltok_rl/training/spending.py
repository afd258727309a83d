"""What an update costs: the passes of the model and its segmenter, their padding, and what an estimator tries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from rltok_rl.agents.segmenters import Segmenter, own_parameters
from rltok_rl.models.flops import update_flops
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import JointLoss


@dataclass(frozen=True)
class Costs:
    """FLOPs of a byte, a token and a token of tokens, of both passes, and of an estimator's own forward passes."""

    per_byte: float
    per_token: float
    per_second: float = 0.0
    tried_per_byte: float = 0.0
    tried_per_token: float = 0.0
    tried_per_second: float = 0.0

    @classmethod
    def of(cls, model: UNet, loss: JointLoss, segmenter: Segmenter | None = None) -> Costs:
        """Count them, with the model in one piece.

        Args:
            model: the U-Net.
            loss: whose policy term may have an estimator with a ``flops`` of its own.
            segmenter: who draws the boundaries; None leaves that to the model.
        """
        own = 0 if segmenter is None else segmenter_matrices(segmenter, model)
        policy = loss.terms["policy"] if "policy" in loss.terms else None
        tries = getattr(getattr(policy, "_value_estimator", None), "flops", None)
        of_one = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # byte, token, token of tokens
        levels = [update_flops(model, n, tokens, num_second=second) for n, tokens, second in of_one]
        beside = [] if tries is None else [tries(n, tokens, num_second=second) for n, tokens, second in of_one]
        return cls(levels[0] + 6.0 * own, *levels[1:], *beside)

    def update(self, num_bytes: float, rate: float, second_rate: float = 0.0) -> float:
        """FLOPs of one forward and backward pass.

        Args:
            num_bytes: bytes read.
            rate: tokens per byte, padding included where that is to be counted.
            second_rate: tokens of tokens per token, likewise.
        """
        return num_bytes * (self.per_byte + rate * (self.per_token + self.per_second * second_rate))

    def tried(self, num_bytes: float, rate: float, second_rate: float = 0.0) -> float:
        """FLOPs of what the estimator tries besides; arguments as for :meth:`update`."""
        return num_bytes * (self.tried_per_byte + rate * (self.tried_per_token + self.tried_per_second * second_rate))


def segmenter_matrices(segmenter: Segmenter, model: UNet) -> int:
    """Entries of the weight matrices that a segmenter has of its own and uses for a byte, each once.

    Example:
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> segmenter_matrices(make_segmenter("hnet", model), model) == 3 * 64**2
        True
    """
    looked_up = {id(m.weight) for m in segmenter.modules() if isinstance(m, nn.Embedding)}
    idle = {id(p) for other in segmenter.alternatives[1:] for p in other.parameters()}  # one of them reads a byte
    left_out = looked_up | idle
    return sum(p.numel() for p in own_parameters(segmenter, model) if p.dim() == 2 and id(p) not in left_out)
