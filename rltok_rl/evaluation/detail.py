"""What a model made of each byte of a text, and what each boundary was worth: all that a viewer shows.

The text is read in the windows of :func:`~rltok_rl.evaluation.reading.cut_windows` and with the random numbers of
:func:`~rltok_rl.evaluation.reading.read_text`, so that costs and boundaries are those that ``rltok eval`` tells of.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter, read_window
from rltok_rl.evaluation.reading import BATCH_BYTES, check_rate, cut_windows
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
    """Figures of N bytes, NaN where there are none; [N] float64 on the CPU unless said otherwise."""

    text: bytes
    boundaries: Tensor  # [N] bool, a_t; False after the last byte, which is not read
    forced: Tensor  # [N] bool, the first byte of a window, whose boundary is not a decision
    probabilities: Tensor  # sigmoid(l_t); none where forced, or where a rule draws
    scores: Tensor  # what a rule read its decisions off, where it says so
    final_bits: Tensor  # -log2 p(x_t), none for x_0
    early_bits: Tensor  # the same by the early exit
    rewards: Tensor  # R_{t+1} of decision t, nats
    returns: Tensor  # G_t, nats; windows are episodes
    advantages: Tensor  # A_t, nats; none where nothing was decided at random

    @property
    def summary(self) -> dict[str, float]:
        """Means over the N - 1 predictions, as :func:`~rltok_rl.evaluation.reading.summarise` names them."""
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
    """One pass over the text; n = N - 1 decisions."""

    boundaries: Tensor  # [n] bool
    probabilities: Tensor  # [n] float64, as the rest
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
    """Read a text window by window, and judge the boundaries that were drawn on the way.

        R_{t+1} = reward(x_{t+1}),    G_t = R_{t+1} + gamma G_{t+1} within a window,    A_t = G_t - baseline

    ``leave_one_out`` and ``batch_mean`` compare the boundaries that are shown with further draws for the same text.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes; nothing predicts the first, and no decision follows the last.
        context: bytes that a window reads.
        gamma: discount in [0, 1].
        reward: a key of :data:`~rltok_rl.functional.rewards.REWARDS`.
        price: nats per boundary.
        baseline: a key of :data:`~rltok_rl.functional.baselines.BASELINES`.
        draws: rows that baselines compare, the shown one included; one pass over the text each. Rules and the other
            baselines need one alone.
        greedy: show a boundary where its probability exceeds one half; what it is compared with is drawn.
        generator: on the CPU, source of the random numbers.
        segmenter: draws the boundaries; None is the model's own policy.
        target_rate: boundaries per byte that the policy aims at, where the model has ``rate_embedding``.
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
    windows = cut_windows(len(byte_ids), context)
    size = len(byte_ids) - 1
    options: dict[str, Any] = {"segmenter": segmenter, "reward": reward, "price": price, "target_rate": target_rate}
    passes = []
    for row in range(rows):
        uniforms = None if greedy and row == 0 else torch.rand(size, generator=generator)
        passes.append(_read(model, byte_ids, windows, uniforms=uniforms, **options))
    forced = torch.zeros(size, dtype=torch.bool)
    forced[[start for start, _ in windows]] = True
    rewards = torch.stack([one.rewards for one in passes])  # [draws, n]
    returns = discounted_return(rewards, gamma, done=forced.roll(-1).expand_as(rewards))
    advantages = torch.full((size,), math.nan, dtype=torch.float64)
    if at_random:
        free = (~forced).expand_as(returns)
        judged = BASELINES[baseline](returns, mask=free)[0]
        advantages = judged.masked_fill(forced, math.nan)
    shown = passes[0]
    return Detail(
        text=bytes(byte_ids.tolist()),
        boundaries=torch.cat((shown.boundaries, torch.zeros(1, dtype=torch.bool))),
        forced=torch.cat((forced, torch.zeros(1, dtype=torch.bool))),
        probabilities=_then_none(shown.probabilities.masked_fill(forced, math.nan)),
        scores=_then_none(shown.scores.masked_fill(forced, math.nan)),
        final_bits=_none_then(shown.final / -math.log(2)),
        early_bits=_none_then(shown.early / -math.log(2)),
        rewards=_then_none(rewards[0]),
        returns=_then_none(returns[0]),
        advantages=_then_none(advantages),
    )


def _read(
    model: UNet,
    byte_ids: Tensor,
    windows: list[tuple[int, int]],
    *,
    uniforms: Tensor | None,
    segmenter: Segmenter | None,
    reward: str,
    price: float,
    target_rate: float | None,
) -> _Pass:
    """All windows of a text once; ``uniforms`` [n], None draws greedily."""
    size, device = len(byte_ids) - 1, model.embedding.weight.device
    probabilities, scores, final, early, rewards = torch.full((5, size), math.nan, dtype=torch.float64)
    boundaries = torch.zeros(size, dtype=torch.bool)
    for place in _places(windows):  # [B, T] in 0..n - 1
        read, following = byte_ids[place].to(device), byte_ids[place + 1].to(device)
        drawn = None if uniforms is None else uniforms[place].to(device)
        if segmenter is None:
            out: Any = model(read, uniforms=drawn, greedy=drawn is None, target_rate=target_rate)
            found, logits, scored = out.boundaries, out.boundary_logits, None
        else:
            out = read_window(model, segmenter, read, uniforms=drawn)
            found, logits, scored = out.segments.boundaries, out.segments.logits, out.segments.scores
        boundaries[place] = found.cpu()
        if logits is not None:
            probabilities[place] = logits.sigmoid().double().cpu()
        if scored is not None:
            scores[place] = scored.double().cpu().nan_to_num(math.nan, math.nan, math.nan)  # infinite: no score
        log_prob = byte_log_prob(out.final_logits, following), byte_log_prob(out.early_logits, following)
        paid = charge_boundaries(REWARDS[reward](*log_prob, prediction_entropy(out.early_logits)), found, price)
        for held, values in ((final, log_prob[0]), (early, log_prob[1]), (rewards, paid)):
            held[place] = values.double().cpu()
    return _Pass(boundaries, probabilities, scores, final, early, rewards)


def _places(windows: list[tuple[int, int]]) -> Iterator[Tensor]:
    """[B, T] places of decisions, windows of one length together; a window of a text reads all but its last byte."""
    starts = torch.tensor([start for start, _ in windows])
    lengths = torch.tensor([end - start - 1 for start, end in windows])
    for length in lengths.unique().tolist():
        for rows in starts[lengths == length].split(max(1, BATCH_BYTES // length)):
            yield rows[:, None] + torch.arange(length)


def _then_none(values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values, (0, 1), value=math.nan)


def _none_then(values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values, (1, 0), value=math.nan)
