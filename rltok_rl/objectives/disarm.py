"""DisARM: the advantage of a decision is what its row gains over one that draws with 1 - u."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.policy_gradient import disarm_advantage
from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives.base import read
from rltok_rl.objectives.trials import Trials, below_one, drawn_boundaries


@register_value_estimator("disarm", default_kwargs={"gamma": 0.99})
class DisARM(Trials):
    """Advantages over an antithetic row of each text that runs forward only, registered as ``"disarm"``.

        A_t = (G_t - G'_t) max(p_t, 1 - p_t) / (2 |a_t - p_t|)    where the rows decide differently, and 0 elsewhere

    The second row draws with random numbers 1 - u where the first has u. It runs forward only, so that the language
    model does not learn from it. See :func:`~rltok_rl.functional.policy_gradient.disarm_advantage`. The expected
    gradient is exact for gamma 1 and a policy without lags; with lags it is biased where the rows have drifted apart.
    The rollout must have whole texts, each row from the first byte of its text.

    Reference: Dong et al. 2020 (https://arxiv.org/abs/2006.10680); independently Yin et al. 2020
    (https://arxiv.org/abs/2006.06448).

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        **options: of :class:`~rltok_rl.objectives.trials.Trials`.
    """

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        forced, logits = read(rollout, "forced"), read(rollout, "logits")
        others, gained = self._run_second_row(rollout, below_one(1 - self._random_numbers(rollout)))
        differences = discounted_return(gained, self.gamma)  # G - G'
        advantages = disarm_advantage(differences, logits, drawn_boundaries(rollout), others, mask=~forced)
        return advantages.to(logits.dtype)
