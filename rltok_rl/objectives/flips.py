"""Local flips: advantages from counterfactual decisions."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read
from rltok_rl.objectives.trials import Trials, drawn_boundaries
from rltok_rl.utils import check_count


@register_value_estimator("local_flips", default_kwargs={"gamma": 0.99})
class LocalFlips(Trials):
    """Advantages from flipping one decision in every ``span`` bytes, registered as ``"local_flips"``.

        A_t = pi(a_t) / (n q_t)  sum_{k < span} gamma^k (R_{t+1+k} - R^flip_{t+1+k})

    Every row runs ``num_flips`` more times, without encoder and gradient. In each of these rows one decision per block
    of ``span`` bytes is flipped, drawn with probability ``q_t`` proportional to ``p_t (1 - p_t)`` within its block. The
    others are redrawn with random numbers conditioned on the rollout's decisions. This measures the effect of a
    decision directly, without the noise of all decisions after it.

    The expected gradient is exact if each of these rows has a single flip and the sum reaches the end (``span`` at
    least T, gamma 1). A shorter span ignores later effects, and flips of neighbouring blocks interact: a bias, for
    many more flips per forward pass. The rollout must have whole texts, each row from the first byte of its text.

    This is a stochastic local-expectation gradient (Titsias and Lázaro-Gredilla 2015): both values of a decision are
    summed exactly, with one sample of all others. COMA's counterfactual baseline (Foerster et al. 2018) has the same
    expected gradient. Related: DisARM (Dong et al. 2020; Yin et al. 2020), ARMS (Dimitriev and Zhou 2021), MuProp (Gu
    et al. 2016), RELAX (Grathwohl et al. 2018), VIMCO (Mnih and Rezende 2016), counterfactual credit assignment
    (Mesnard et al. 2021).

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        num_flips: n, extra rows per row of the rollout.
        span: bytes per block, and bytes after a decision that count.
        **options: of :class:`~rltok_rl.objectives.trials.Trials`.
    """

    def __init__(
        self,
        model: UNet,
        *,
        gamma: float,
        num_flips: Annotated[int, "[1, 1000]"] = 3,
        span: Annotated[int, "[1, 1e6]"] = 16,
        **options: Any,
    ) -> None:
        super().__init__(model, gamma=gamma, **options)
        self.num_flips, self.span = check_count("num_flips", num_flips), check_count("span", span)

    def flops(self, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
        """Return the FLOPs of the extra rows: ``num_flips`` passes."""
        return self.num_flips * super().flops(num_bytes, num_tokens, num_second=num_second)

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        where, weight, effect = self._measure_flips(rollout)
        return self._sum_by_byte(rollout, where, weight * effect)

    @staticmethod
    def _sum_by_byte(rollout: TensorDictBase, where: Tensor, values: Tensor) -> Tensor:
        """Sum the values of flips [B, F] by the byte where they are: [B, T]."""
        none = torch.zeros_like(read(rollout, "logits"))
        return none.scatter_add_(1, where, values.to(none.dtype))

    def _measure_flips(self, rollout: TensorDictBase) -> tuple[Tensor, Tensor, Tensor]:
        """Flip decisions: places of F flips per row, weights of their effects, and the effects, [B, F] each.

        An effect is what the rollout's decision gains over the other one. A weight is 0 where no decision was free.
        """
        forced, probs, drawn = read(rollout, "forced"), read(rollout, "logits").sigmoid(), drawn_boundaries(rollout)
        where, chance = self._choose((probs * (1 - probs)).masked_fill(forced, 0.0))  # [B, n, blocks] each
        empty = chance == 0  # no decision of the block is free
        fixed = _fix_flipped(drawn, forced, where.masked_fill(empty, -1))
        gained = self._gained(rollout, *self._redraw(rollout, fixed))  # [B, n, T]
        ahead = discounted_return(gained, self.gamma)
        beyond = self.gamma**self.span * F.pad(ahead[..., self.span :], (0, self.span))[..., : gained.shape[-1]]
        value = (ahead - beyond).gather(-1, where)  # [B, n, blocks] sums over the span from each flip
        prob = torch.where(drawn, probs, 1 - probs).unsqueeze(1).expand_as(gained).gather(-1, where)  # pi(a_t)
        weight = (prob / (self.num_flips * chance.clamp(min=1e-30))).masked_fill(empty, 0.0)
        return where.flatten(1), weight.flatten(1), value.flatten(1)

    def _choose(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """One decision per block and flipped row, and its probability; 0 in blocks without free decisions."""
        mine = self._own_rows(len(weights))
        if self.process_group is not None:  # [B, T] of this process to [W B, T] of all, in the order of their ranks
            gathered = [torch.empty_like(weights) for _ in range(self.process_group.size())]
            dist.all_gather(gathered, weights.contiguous(), group=self.process_group)
            weights = torch.cat(gathered)
        num_rows, length = weights.shape
        blocks = F.pad(weights, (0, -length % self.span)).unflatten(-1, (-1, self.span))  # [B, blocks, span]
        total = blocks.sum(-1, keepdim=True)
        chances = blocks / total.clamp(min=1e-30)
        first = torch.arange(self.span, device=weights.device) == 0
        drawn_from = torch.where(total > 0, chances, first.to(chances.dtype)).flatten(0, 1)
        picks = torch.multinomial(drawn_from, self.num_flips, replacement=True, generator=self.generator)
        picks = picks.view(num_rows, -1, self.num_flips)  # [B, blocks, n]
        chance = chances.gather(-1, picks)
        start = self.span * torch.arange(blocks.shape[1], device=weights.device)
        return (picks + start[:, None]).transpose(1, 2)[mine], chance.transpose(1, 2)[mine]


def _fix_flipped(drawn: Tensor, forced: Tensor, where: Tensor) -> Tensor:
    """Fix the flipped decisions at ``where`` [B, n, blocks] (-1: none) and the forced ones: [B, n, T], -1 is free."""
    num_flips, length = where.shape[1], drawn.shape[1]

    def repeated(x: Tensor) -> Tensor:
        return F.pad(x.long(), (0, 1)).unsqueeze(1).expand(-1, num_flips, -1)  # an extra column for -1

    target = where % (length + 1)
    fixed = repeated(torch.where(forced, drawn.long(), -1))
    return fixed.scatter(2, target, repeated(~drawn).gather(2, target))[..., :-1]


@register_value_estimator("budgeted_flips", default_kwargs={"gamma": 0.99})
class BudgetedFlips(LocalFlips):
    """Local flips with ``num_flips=2``, ``every=4`` and ``settled=0.1``, registered as ``"budgeted_flips"``.

    Both estimators have their own bias: of flips, that of ``span`` and of neighbouring flips; of returns, that of
    gamma. Options are those of :class:`LocalFlips`, and ``baseline`` with its options.
    """

    def __init__(
        self,
        model: UNet,
        *,
        gamma: float,
        num_flips: Annotated[int, "[1, 1000]"] = 2,
        every: Annotated[int, "[1, 1e6]"] = 4,
        settled: Annotated[float, "[0, inf)"] | None = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(model, gamma=gamma, num_flips=num_flips, every=every, settled=settled, **options)
