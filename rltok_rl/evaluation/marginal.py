"""What text costs when boundaries are drawn at random: by one draw, by several at once, and by none.

The probability that such a model gives a text is a mean over all boundary strings,

    p(x) = E_{a ~ pi} prod_t p(x_{t+1} | x_<=t, a_<=t),        a_t ~ pi(. | x_<=t, a_<t)

which can be had exactly for short texts alone. Draws bound it. Windows draw their boundaries apart from each other, so
that the probability of a text is the product of its windows', and each window is bounded by itself: a mean over draws
of a whole text would be a mean of products where a product of means is closer.

Shapes: W windows, k draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.evaluation.bits import corpus_bits_per_byte, loss_figures
from rltok_rl.evaluation.reading import (
    BATCH_BYTES,
    CHUNK_BYTES,
    Progress,
    Reading,
    Windows,
    check_rate,
    join_texts,
    read_text,
    windows_of_texts,
)
from rltok_rl.evaluation.streaming import Stepper
from rltok_rl.functional.likelihood import byte_log_prob, log_mean_exp
from rltok_rl.models import UNet
from rltok_rl.utils import check_count


@dataclass(frozen=True)
class Samples:
    """One text read several times, with other boundaries each time."""

    first: Reading  # the first draw, the same as without any others
    nats: Tensor  # [W, k] float64, what each window cost in each draw
    thresholded: Tensor | None  # [W] with boundaries where p > 1/2; None where boundaries have no probability
    thresholded_rate: float | None


def marginal_nats(nats: Tensor) -> Tensor:
    """What a window costs by several draws of its boundaries, an upper bound of its cost over all boundary strings.

        C_k = -log (1/k) sum_j exp(-N_j),        N_j = -sum_t log p(x_{t+1} | x_<=t, a^j_<=t),   a^j ~ pi
        E C_1 >= E C_2 >= ... >= -log p(x)

    Args:
        nats: [*L, k] N_j.

    Returns:
        [*L] C_k.

    Example:
        >>> marginal_nats(torch.tensor([[1.0, 1.0], [1.0, 1001.0]]))
        tensor([1.0000, 1.6931])

    Reference: https://arxiv.org/abs/1509.00519
    """
    return -log_mean_exp(-nats)


def read_samples(
    model: UNet,
    text: str | bytes | Sequence[str | bytes],
    *,
    samples: int,
    read: Callable[..., Reading] = read_text,
    segmenter: Segmenter | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Samples:
    """Read a text several times, and once with boundaries where they are likelier than not.

    Args:
        model: the U-Net, in the mode it should run in.
        text: at least 2 bytes, each.
        samples: k, how often boundaries are drawn.
        read: how the text is read, window by window or streamed.
        segmenter: draws the boundaries at random; None is the model's own policy.
        generator: source of the random numbers; the first draw takes those that it would take alone.
        progress: told how far it is, in bytes of all readings.
        options: of ``read``.

    Example:
        >>> from rltok_rl.models import preset
        >>> found = read_samples(UNet(preset("tiny")), "to be or not to be", samples=3, context=8)
        >>> found.nats.shape, bool((marginal_nats(found.nats) <= found.nats.mean(1)).all())
        (torch.Size([3, 3]), True)
    """
    samples = check_count("samples", samples)
    if segmenter is not None and not segmenter.draws_at_random:
        raise ValueError(f"samples belong to boundaries that are drawn at random, got {type(segmenter).__name__}")
    if options.get("greedy"):
        raise ValueError("greedy must be left out: the thresholded reading comes with the samples")
    probable = segmenter is None or _has_probabilities(model, segmenter)
    readings, behind, spent = samples + probable, 0, 0.0

    def take(**how: Any) -> Reading:
        nonlocal behind, spent
        told: Progress | None = None
        if progress is not None:
            told = partial(_tell, progress, readings, behind, spent)
        reading = read(model, text, segmenter=segmenter, progress=told, **how, **options)
        behind, spent = behind + len(reading.at), spent + float(reading.final_nats.sum())
        return reading

    first = take(generator=generator)
    nats = [window_nats(first), *(window_nats(take(generator=generator)) for _ in range(samples - 1))]
    if not probable:
        return Samples(first, torch.stack(nats, 1), None, None)
    greedy = take(greedy=True)
    rate = float(greedy.boundaries.double().mean())
    return Samples(first, torch.stack(nats, 1), window_nats(greedy), rate)


def _tell(progress: Progress, readings: int, behind: int, spent: float, done: int, total: int, nats: float) -> None:
    progress(behind + done, readings * total, spent + nats)


def window_nats(reading: Reading) -> Tensor:
    """[num_windows] what the bytes cost that each window predicts, by the whole model."""
    sizes = _sizes(reading)
    number = torch.arange(len(sizes)).repeat_interleave(sizes)
    return torch.zeros(len(sizes), dtype=torch.float64).index_add(0, number, reading.final_nats)


def summarise_samples(samples: Samples) -> dict[str, Any]:
    """The figures of several draws.

    Args:
        samples: what :func:`read_samples` gave.

    Returns:
        ``count`` (k); ``one_sample``, ``k_samples`` and ``thresholded`` (None where boundaries have no probability),
        each with the figures of :func:`~rltok_rl.evaluation.loss_figures`, the first and the last with their ``rate``;
        ``corpus_spread``, the standard deviation of the corpus' bits per byte from draw to draw (None for one).
    """
    reading = samples.first
    each = [corpus_bits_per_byte(_sizes(reading), nats) for nats in samples.nats.unbind(1)]
    thresholded = None
    if samples.thresholded is not None:
        thresholded = {**window_losses(reading, samples.thresholded), "rate": samples.thresholded_rate}
    return {
        "count": len(each),
        "one_sample": {
            **window_losses(reading, samples.nats[:, 0]),
            "rate": float(reading.boundaries.double().mean()),
        },
        "k_samples": window_losses(reading, marginal_nats(samples.nats)),
        "thresholded": thresholded,
        "corpus_spread": float(torch.tensor(each, dtype=torch.float64).std()) if len(each) > 1 else None,
    }


def window_losses(reading: Reading, nats: Tensor) -> dict[str, float | None]:
    """The figures of :func:`~rltok_rl.evaluation.loss_figures` where costs are known by window alone.

    Args:
        reading: of the same windows.
        nats: [W] what each cost.
    """
    sizes = _sizes(reading)
    number = torch.zeros_like(sizes) if reading.document is None else reading.document[sizes.cumsum(0) - sizes]
    _, place = number.unique(return_inverse=True)
    empty = torch.zeros(int(place.max()) + 1)
    return loss_figures(empty.long().index_add(0, place, sizes), empty.double().index_add(0, place, nats))


def _sizes(reading: Reading) -> Tensor:
    if reading.window_sizes is None:
        raise ValueError("reading must say how many predictions each window made (window_sizes), got None")
    return reading.window_sizes


@torch.no_grad()
def _has_probabilities(model: UNet, segmenter: Segmenter) -> bool:
    """Whether decisions of a segmenter are drawn with a probability each; a single byte tells."""
    byte_ids = torch.zeros(1, 1, dtype=torch.int64, device=model.embedding.weight.device)
    uniforms = torch.zeros(1, 1, device=byte_ids.device)
    return segmenter(model.encode(byte_ids), byte_ids, uniforms=uniforms).logits is not None


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
