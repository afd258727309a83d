"""Per-byte metrics of a text: probabilities, costs, rewards, returns and advantages, as the viewer shows them.

The text is read by :func:`~rltok_rl.evaluation.read_text`, so costs and boundaries equal those of ``rltok eval``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rltok_rl.agents.segmenters import Segmenter, make_segmenter
from rltok_rl.evaluation.windowed import Output, Reading, SegmentedModel, read_text
from rltok_rl.functional.baselines import BASELINES
from rltok_rl.functional.returns import check_gamma, discounted_return
from rltok_rl.functional.rewards import RELATIVE, Reward, as_reward, charge_boundaries, prediction_entropy
from rltok_rl.models import UNet
from rltok_rl.renamed import renamed_word, warn_caller
from rltok_rl.text import text_to_bytes
from rltok_rl.utils import check_count

COMPARING = ("batch_mean", "leave_one_out")
"""Baselines that compare the rows of a position, and therefore need several draws."""


@dataclass(frozen=True)
class Detail:
    """Metrics of N bytes, NaN where undefined; [N] float64 on the CPU unless stated otherwise."""

    text: bytes
    boundaries: Tensor  # [N] bool, a_t; False after the last byte, which is not read
    forced: Tensor  # [N] bool, a window's first byte, whose boundary is given unless a mark comes before
    probabilities: Tensor  # sigmoid(l_t); NaN if forced or drawn by a rule
    scores: Tensor  # what a rule compares with its threshold, if it has one
    final_bits: Tensor  # -log2 p(x_t), NaN for x_0
    early_bits: Tensor  # the same by the early exit
    rewards: Tensor  # R_{t+1} of decision t, nats
    returns: Tensor  # G_t, nats; windows are episodes
    advantages: Tensor  # A_t, nats; NaN if nothing is decided at random

    tokens: int  # boundaries, those of begin-of-text marks included

    @property
    def summary(self) -> dict[str, float]:
        """Means over all predictions."""
        count = len(self.text) - 1
        return {
            "bits_per_byte": float(self.final_bits[1:].mean()),
            "early_bits_per_byte": float(self.early_bits[1:].mean()),
            "rate": self.tokens / count,
            "bytes_per_token": count / self.tokens,
            "tokens": self.tokens,
        }


@torch.no_grad()
def read_detail(
    model: UNet,
    text: str | bytes,
    *,
    context: int,
    gamma: float,
    reward: str | Reward = "early_exit",
    price: float = 0.0,
    baseline: str = "leave_one_out",
    draws: int = 4,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    segmenter: Segmenter | None = None,
    target_rate: float | None = None,
    estimator: str | None = None,
) -> Detail:
    """Read a text window by window, and compute the reward, return and advantage of each decision.

        R_{t+1} = reward(x_{t+1}),    G_t = R_{t+1} + gamma G_{t+1} within a window,    A_t = G_t - baseline

    ``leave_one_out`` and ``batch_mean`` compare the first draw, which is shown, with further draws for the text.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes; no decision follows the last, and nothing predicts the first.
        context: bytes that a window reads at most.
        gamma: discount in [0, 1].
        reward: as for :class:`~rltok_rl.envs.ByteBoundaryEnv`; ``"relative"`` is relative to evenly spaced boundaries.
        price: nats per boundary.
        baseline: a key of :data:`~rltok_rl.functional.baselines.BASELINES`.
        draws: passes that a baseline compares, the shown one included; rules and other baselines use one.
        greedy: thresholds the shown boundaries at one half; those that they are compared with are drawn.
        generator, segmenter, target_rate: as for :func:`~rltok_rl.evaluation.read_text`.
        estimator: old name of ``baseline``.
    """
    reward_of = as_reward("early_exit" if reward == RELATIVE else reward)
    if estimator is not None:
        warn_caller("estimator is now baseline")
        baseline = "none" if estimator == "discounted_return" else estimator
    baseline = renamed_word("baseline", baseline)
    if baseline not in BASELINES:
        raise ValueError(f"baseline must be one of {list(BASELINES)}, got {baseline!r}")
    check_gamma(gamma)
    segmented = SegmentedModel(model, segmenter, target_rate, greedy)
    segmented.check_own_greedy()
    at_random = segmented.at_random
    rows = check_count("draws", draws, minimum=2) if at_random and baseline in COMPARING else 1
    content = text_to_bytes(text)
    options = {"context": context, "generator": generator, "segmenter": segmenter, "target_rate": target_rate}
    readings, probabilities, scores, entropy = _read_draws(model, content, rows, greedy=greedy, **options)
    first, forced = readings[0], readings[0].forced

    # The early exit sees no boundaries, so its entropy in the shown draw is that in all draws.
    def earned(reading: Reading) -> Tensor:  # [n]
        reward = reward_of(-reading.final_nats, -reading.early_nats, entropy)
        return charge_boundaries(reward, reading.boundaries, price)

    rewards = torch.stack([earned(reading) for reading in readings])  # [draws, n]
    if reward == RELATIVE:
        even = make_segmenter("uniform", model, rate=target_rate)
        rewards -= earned(read_text(model, content, context=context, segmenter=even))
    returns = discounted_return(rewards, gamma, done=first.begins.roll(-1).expand_as(rewards))
    advantages = torch.full_like(entropy, math.nan)
    if at_random:
        advantages = BASELINES[baseline](returns, mask=(~forced).expand_as(returns))[0]

    def at_bytes(values: Tensor) -> Tensor:  # of the decision after each byte
        return pad(values, (0, 1), value=False if values.dtype == torch.bool else math.nan)

    def decided(values: Tensor) -> Tensor:
        return at_bytes(values.masked_fill(forced, math.nan))

    def bits(nats: Tensor) -> Tensor:
        return pad(nats / math.log(2), (1, 0), value=math.nan)

    return Detail(
        text=content,
        boundaries=at_bytes(first.boundaries),
        forced=at_bytes(forced),
        probabilities=decided(probabilities),
        scores=decided(scores),
        final_bits=bits(first.final_nats),
        early_bits=bits(first.early_nats),
        rewards=at_bytes(rewards[0]),
        returns=at_bytes(returns[0]),
        advantages=decided(advantages),
        tokens=first.num_tokens,
    )


def _read_draws(
    model: UNet, content: bytes, count: int, *, greedy: bool, **options: Any
) -> tuple[list[Reading], Tensor, Tensor, Tensor]:
    """Read a text several times, and return the first draw's probabilities, scores and early-exit entropies too.

    Only the first draw may be greedy.
    """
    most = max(0, len(content) - 1)
    probabilities, scores, entropy = torch.full((3, most), math.nan, dtype=torch.float64)

    def observe(numbers: Tensor, out: Output) -> None:
        entropy[numbers] = prediction_entropy(out.early_logits).double().cpu()
        if out.boundary_logits is not None:
            probabilities[numbers] = out.boundary_logits.sigmoid().double().cpu()
        if out.scores is not None:
            scores[numbers] = out.scores.double().cpu().nan_to_num(math.nan, math.nan, math.nan)  # infinite: no score

    first = read_text(model, content, greedy=greedy, observe=observe, **options)
    return [first, *(read_text(model, content, **options) for _ in range(count - 1))], probabilities, scores, entropy
