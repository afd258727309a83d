"""A tighter bound than draws apart from each other: particles, of which likely ones branch as the text is read.

K particles read a window side by side, each with boundaries of its own from the policy. Now and then those that predict
the window well so far are drawn several times and others not at all, and all go on from there. So the draws go where
they matter, and the bound does not fall behind as windows get longer, as that of draws apart does.

Shapes: W windows, B of them at once, K particles, T bytes that a window reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.evaluation.reading import BATCH_BYTES, CHUNK_BYTES, Progress, check_rate
from rltok_rl.evaluation.streaming import Stepper
from rltok_rl.evaluation.windows import Windows, join_texts, windows_of_texts
from rltok_rl.functional.likelihood import byte_log_prob, log_mean_exp
from rltok_rl.functional.numbers import check_count
from rltok_rl.models import UNet

EVERY = 8
"""Bytes between two looks at whether particles are to be drawn anew."""


def systematic_resampling(log_weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw K of K particles in proportion to their weights, with one random number.

        i_k = min {j : sum_{m<=j} w_m > (u + k) / K sum_m w_m},    k = 0 .. K - 1
        E #{k : i_k = j} = K w_j / sum_m w_m

    Args:
        log_weights: [*B, K] log w.
        uniforms: [*B] u in [0, 1).

    Returns:
        [*B, K] int64, in rising order.

    Example:
        >>> systematic_resampling(torch.tensor([0.1, 0.6, 0.3]).log(), torch.tensor(0.5))
        tensor([1, 1, 2])
    """
    count = log_weights.shape[-1]
    shares = log_weights.double().softmax(-1).cumsum(-1)
    marks = (uniforms.double().unsqueeze(-1) + torch.arange(count, device=uniforms.device)) / count
    return torch.searchsorted(shares.contiguous(), marks.contiguous(), right=True).clamp(max=count - 1)


def effective_number(log_weights: Tensor) -> Tensor:
    """How many particles carry the weight: ``(sum_j w_j)^2 / sum_j w_j^2``, from 1 to K.

    Args:
        log_weights: [*B, K] log w.

    Example:
        >>> effective_number(torch.tensor([[0.0, 0.0], [0.0, -1000.0]]))
        tensor([2., 1.])
    """
    return 1 / log_weights.softmax(-1).square().sum(-1)


@torch.no_grad()
def particle_nats(
    model: UNet,
    text: str | bytes | Sequence[str | bytes],
    *,
    particles: int,
    context: int,
    stride: int | None = None,
    most: int | None = None,
    segmenter: Segmenter | None = None,
    generator: torch.Generator | None = None,
    target_rate: float | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """What each window costs by particles, an upper bound of its cost over all boundary strings in expectation.

        C = -sum_m log (1/K) sum_j w_m^j,      w_m^j = prod_t p(x_{t+1} | x_<=t, a^j_<=t) over the bytes of part m

    A part ends where fewer than K/2 particles carry the weight (looked at every :data:`EVERY` bytes); then K are drawn
    in proportion to w_m and go on. The product of the means is an unbiased estimate of p(x), as the mean of draws apart
    from each other is.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes, each.
        particles: K.
        context: bytes that a window reads.
        stride: bytes from one window to the next; None is ``context``. Bytes that a window reads again weigh nothing.
        most: windows at most, evenly spread over all texts; None takes all.
        segmenter: draws the boundaries at random; None is the model's own policy.
        generator: on the CPU, source of the random numbers, window by window in the order of the text.
        target_rate: boundaries per byte that the policy aims at.
        progress: told how far it is.

    Returns:
        [W] float64, of the windows that :func:`~rltok_rl.evaluation.read_text` cuts.

    Example:
        >>> from rltok_rl.models import preset
        >>> particle_nats(UNet(preset("tiny")), "to be or not to be", particles=4, context=8).shape
        torch.Size([3])

    Reference: https://arxiv.org/abs/1705.09279
    """
    count = check_count("particles", particles)
    check_rate(segmenter, target_rate)
    if segmenter is not None and (segmenter.looks_ahead or not segmenter.draws_at_random):
        raise ValueError(
            f"particles belong to boundaries that are drawn at random, byte by byte, got {type(segmenter).__name__}"
        )
    byte_ids, starts = join_texts(text)
    windows = windows_of_texts(starts, context, stride, most)
    nats, total = torch.zeros(len(windows), dtype=torch.float64), int(windows.sizes.sum())
    done, cost = 0, 0.0
    for part in windows.chunks(max(1, CHUNK_BYTES // count)):
        chunk = windows.take(part)
        looks = (chunk.reads - 1) // EVERY * (count > 1)
        needed = chunk.reads * count + looks  # random numbers of each window: boundaries first, then one per look
        uniforms, before = torch.rand(int(needed.sum()), generator=generator), needed.cumsum(0) - needed
        for rows in chunk.of_one_length(max(1, BATCH_BYTES // count)):
            stepper = Stepper(model, segmenter, len(rows) * count, target_rate=target_rate)
            length = int(chunk.reads[rows[0]])
            drawn = uniforms[before[rows, None] + torch.arange(length * count + int(looks[rows[0]]))]
            found = _filter(stepper, byte_ids, chunk.take(rows), drawn, count)
            nats[part.start + rows] = found
            done, cost = done + int(chunk.sizes[rows].sum()), cost + float(found.sum())
            if progress is not None:
                progress(done, total, cost)
    return nats


def _filter(stepper: Stepper, byte_ids: Tensor, windows: Windows, uniforms: Tensor, count: int) -> Tensor:
    """Costs [B] of windows of one length, with ``count`` particles each and the random numbers of each [B, ...]."""
    num_windows, length = len(windows), int(windows.reads[0])
    device = stepper.model.embedding.weight.device
    log_weights, cost = torch.zeros(num_windows, count, dtype=torch.float64), torch.zeros(num_windows).double()
    for t in range(length):
        place = windows.start + t  # [B]
        drawn = uniforms[:, t * count : (t + 1) * count].flatten().to(device)
        final_logits, _, _ = stepper.step(byte_ids[place].repeat_interleave(count).to(device), drawn)
        following = byte_ids[place + 1].repeat_interleave(count).to(device)
        log_probs = byte_log_prob(final_logits, following).double().cpu().view(num_windows, count)
        log_weights += log_probs * (place + 1 >= windows.first)[:, None]
        if count == 1 or t + 1 == length or (t + 1) % EVERY:
            continue
        few = effective_number(log_weights) < count / 2  # [B]
        if not bool(few.any()):
            continue
        taken = systematic_resampling(log_weights, uniforms[:, length * count + t // EVERY])
        taken = torch.where(few[:, None], taken, torch.arange(count)) + torch.arange(num_windows)[:, None] * count
        stepper.take(taken.flatten().to(device))
        cost = torch.where(few, cost - log_mean_exp(log_weights), cost)
        log_weights = log_weights.masked_fill(few[:, None], 0.0)
    return cost - log_mean_exp(log_weights)
