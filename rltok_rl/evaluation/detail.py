"""Per-byte metrics of a text: probabilities, costs, rewards, returns and advantages, as the viewer shows them.

The text is read in the windows and with the random numbers of :func:`~rltok_rl.evaluation.read_text`, so costs and
boundaries equal those of ``rltok eval``.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.evaluation.windowed import BATCH_BYTES, check_rate, lay_windows, run_window
from rltok_rl.functional.baselines import BASELINES
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.returns import check_gamma, discounted_return
from rltok_rl.functional.rewards import REWARDS, charge_boundaries, prediction_entropy
from rltok_rl.models import UNet
from rltok_rl.renamed import renamed_word
from rltok_rl.text import text_to_ids
from rltok_rl.utils import check_count

COMPARING = ("batch_mean", "leave_one_out")
"""Baselines that compare the rows of a position, and therefore need several draws."""


@dataclass(frozen=True)
class Detail:
    """Metrics of N bytes, NaN where undefined; [N] float64 on the CPU unless stated otherwise."""

    text: bytes
    boundaries: Tensor  # [N] bool, a_t; False after the last byte, which is not read
    forced: Tensor  # [N] bool, the first byte of a window, whose boundary is not a decision
    probabilities: Tensor  # sigmoid(l_t); NaN if forced or drawn by a rule
    scores: Tensor  # what a rule compares with its threshold, if it has one
    final_bits: Tensor  # -log2 p(x_t), NaN for x_0
    early_bits: Tensor  # the same by the early exit
    rewards: Tensor  # R_{t+1} of decision t, nats
    returns: Tensor  # G_t, nats; windows are episodes
    advantages: Tensor  # A_t, nats; NaN if nothing is decided at random

    @property
    def summary(self) -> dict[str, float]:
        """Means over the N - 1 predictions."""
        count, tokens = len(self.text) - 1, int(self.boundaries.sum())
        return {
            "bits_per_byte": float(self.final_bits[1:].mean()),
            "early_bits_per_byte": float(self.early_bits[1:].mean()),
            "rate": tokens / count,
            "bytes_per_token": count / tokens,
            "tokens": tokens,
        }


@dataclass(frozen=True)
class _Pass:
    """One pass over the text; n = N - 1 decisions, float64 unless stated otherwise."""

    boundaries: Tensor  # [n] bool
    probabilities: Tensor
    scores: Tensor
    final: Tensor  # log p(x_{t+1})
    early: Tensor
    rewards: Tensor


@torch.no_grad()
def read_detail(
    model: UNet,
    text: str | bytes,
    *,
    context: int,
    gamma: float,
    reward: str = "early_exit",
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
        text: at least 2 bytes; nothing predicts the first, and no decision follows the last.
        context: bytes that a window reads at most.
        gamma: discount in [0, 1].
        reward: a key of :data:`~rltok_rl.functional.rewards.REWARDS`.
        price: nats per boundary.
        baseline: a key of :data:`~rltok_rl.functional.baselines.BASELINES`.
        draws: passes that a baseline compares, the shown one included; rules and other baselines use one.
        greedy: thresholds the shown boundaries at one half; those that they are compared with are drawn.
        generator: on the CPU, source of the random numbers.
        segmenter: draws the boundaries; None uses the model's own policy.
        target_rate: boundaries per byte, for a model with ``rate_embedding``.
        estimator: old name of ``baseline``.

    Example:
        >>> from rltok_rl.models import preset
        >>> detail = read_detail(UNet(preset("tiny")), "to be or not to be", context=8, gamma=0.9)
        >>> len(detail.returns), detail.forced.nonzero().squeeze(1).tolist()
        (18, [0, 8, 16])
    """
    if reward not in REWARDS:
        raise ValueError(f"reward must be one of {list(REWARDS)}, got {reward!r}")
    if estimator is not None:
        warnings.warn("estimator is now baseline", DeprecationWarning, stacklevel=2)
        baseline = "none" if estimator == "discounted_return" else estimator
    baseline = renamed_word("baseline", baseline)
    if baseline not in BASELINES:
        raise ValueError(f"baseline must be one of {list(BASELINES)}, got {baseline!r}")
    check_gamma(gamma)
    at_random = segmenter is None or segmenter.draws_at_random
    if greedy and segmenter is not None and at_random:
        raise ValueError(f"greedy belongs to the model's own policy, got it with {type(segmenter).__name__}")
    check_rate(segmenter, target_rate)
    rows = check_count("draws", draws, minimum=2) if at_random and baseline in COMPARING else 1
    byte_ids = text_to_ids(text)  # [N]
    size = len(byte_ids) - 1
    check_count("num_bytes", len(byte_ids), minimum=2)
    windows = lay_windows([(0, len(byte_ids))], context)

    def read(uniforms: Tensor | None) -> _Pass:
        """Read all windows once, with random numbers [n]; None draws greedily."""
        boundaries = torch.zeros(size, dtype=torch.bool)
        probabilities, scores, final, early, rewards = torch.full((5, size), math.nan, dtype=torch.float64)
        for batch in windows.batches(BATCH_BYTES):
            place = windows.start[batch, None] + torch.arange(int(windows.reads[batch[0]]))  # [B, T] in 0..n - 1
            drawn = None if uniforms is None else uniforms[place]
            out = run_window(model, segmenter, byte_ids[place], drawn, greedy=drawn is None, target_rate=target_rate)
            following = byte_ids[place + 1].to(out.boundaries.device)
            log_probs = byte_log_prob(out.final_logits, following), byte_log_prob(out.early_logits, following)
            rewarded = REWARDS[reward](*log_probs, prediction_entropy(out.early_logits))
            boundaries[place] = out.boundaries.cpu()
            final[place], early[place] = (values.double().cpu() for values in log_probs)
            rewards[place] = charge_boundaries(rewarded, out.boundaries, price).double().cpu()
            if out.boundary_logits is not None:
                probabilities[place] = out.boundary_logits.sigmoid().double().cpu()
            if out.scores is not None:
                scores[place] = out.scores.double().cpu().nan_to_num(math.nan, math.nan, math.nan)  # infinite: no score
        return _Pass(boundaries, probabilities, scores, final, early, rewards)

    passes = [read(None if greedy and row == 0 else torch.rand(size, generator=generator)) for row in range(rows)]
    shown = passes[0]
    forced = torch.zeros(size, dtype=torch.bool)
    forced[windows.start] = True
    rewards = torch.stack([one.rewards for one in passes])  # [draws, n]
    returns = discounted_return(rewards, gamma, done=forced.roll(-1).expand_as(rewards))
    advantages = torch.full((size,), math.nan, dtype=torch.float64)
    if at_random:
        decided = (~forced).expand_as(returns)
        advantages = BASELINES[baseline](returns, mask=decided)[0].masked_fill(forced, math.nan)
    return Detail(
        text=bytes(byte_ids.tolist()),
        boundaries=pad(shown.boundaries, (0, 1)),
        forced=pad(forced, (0, 1)),
        probabilities=pad(shown.probabilities.masked_fill(forced, math.nan), (0, 1), value=math.nan),
        scores=pad(shown.scores.masked_fill(forced, math.nan), (0, 1), value=math.nan),
        final_bits=pad(shown.final / -math.log(2), (1, 0), value=math.nan),
        early_bits=pad(shown.early / -math.log(2), (1, 0), value=math.nan),
        rewards=pad(rewards[0], (0, 1), value=math.nan),
        returns=pad(returns[0], (0, 1), value=math.nan),
        advantages=pad(advantages, (0, 1), value=math.nan),
    )
