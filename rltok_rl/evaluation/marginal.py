"""Costs of text under random boundaries: by one draw, by several, by particles, and thresholded.

The probability of a text is a mean over all boundary strings,

    p(x) = E_{a ~ pi} prod_t p(x_{t+1} | x_<=t, a_<=t),        a_t ~ pi(. | x_<=t, a_<t)

which can be computed exactly for short texts only. Draws bound it. Windows draw independently, so each window is
bounded by itself: a product of means over windows is closer than a mean of products.

Shapes: W windows, k draws or K particles, B windows of one length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter, encode_and_draw
from rltok_rl.evaluation.bits import corpus_bits_per_byte, loss_metrics, sum_documents
from rltok_rl.evaluation.streamed import Stepper
from rltok_rl.evaluation.windowed import (
    BATCH_BYTES,
    Progress,
    Reading,
    SegmentedModel,
    TextWindows,
    join_documents,
    lay_windows,
    read_text,
)
from rltok_rl.functional.likelihood import byte_log_prob, log_mean_exp
from rltok_rl.models import UNet
from rltok_rl.utils import check_count

EVERY = 8
"""Bytes between two decisions whether to resample particles."""


@dataclass(frozen=True)
class Samples:
    """Several readings of a text, each with its own boundaries."""

    first: Reading  # the first draw, equal to a single reading
    nats: Tensor  # [W, k] float64, the cost of each window in each draw
    thresholded: Tensor | None  # [W] with boundaries where p > 1/2; None if boundaries have no probability
    thresholded_rate: float | None


def marginal_nats(nats: Tensor) -> Tensor:
    """Bound the cost of a window over all boundary strings from above, by k draws.

        C_k = -log (1/k) sum_j exp(-N_j),        N_j = -sum_t log p(x_{t+1} | x_<=t, a^j_<=t),   a^j ~ pi
        E C_1 >= E C_2 >= ... >= -log p(x)

    Costs N_j are [*L, k], bounds C_k [*L].

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
    """Read a text k = ``samples`` times with random boundaries, and once with boundaries thresholded at one half.

    The first draw equals a single reading. ``read`` is :func:`read_text` or
    :func:`~rltok_rl.evaluation.read_streamed`, with its options; a segmenter must draw at random. ``progress`` is
    called with the bytes of all readings together.
    """
    samples = check_count("samples", samples)
    if segmenter is not None and not segmenter.draws_at_random:
        raise ValueError(f"samples belong to boundaries that are drawn at random, got {type(segmenter).__name__}")
    if options.pop("greedy", False):
        raise ValueError("greedy must be left out: the thresholded reading comes with the samples")
    probable = segmenter is None or _has_probabilities(model, segmenter)
    readings, behind, spent = samples + probable, 0, 0.0

    def report(done: int, total: int, nats: float) -> None:
        if progress is not None:
            progress(behind + done, readings * total, spent + nats)

    def draw(**draw_options: Any) -> Reading:
        nonlocal behind, spent
        reading = read(model, text, segmenter=segmenter, progress=report, **draw_options, **options)
        behind, spent = behind + len(reading.at), spent + float(reading.final_nats.sum())
        return reading

    first = draw(generator=generator)
    nats = torch.stack([window_nats(first), *(window_nats(draw(generator=generator)) for _ in range(samples - 1))], 1)
    if not probable:
        return Samples(first, nats, None, None)
    greedy = draw(greedy=True)
    return Samples(first, nats, window_nats(greedy), greedy.rate)


def window_nats(reading: Reading) -> Tensor:
    """Return the costs [W] of the predictions that each window counts, by the whole model."""
    sizes = reading.window_sizes
    number = torch.arange(len(sizes)).repeat_interleave(sizes)
    return torch.zeros(len(sizes), dtype=torch.float64).index_add(0, number, reading.final_nats)


def summarise_samples(samples: Samples) -> dict[str, Any]:
    """Compute the metrics of several draws.

    ``one_sample``, ``k_samples`` and ``thresholded`` (None if boundaries have no probability) hold
    :func:`~rltok_rl.evaluation.loss_metrics`; ``corpus_spread`` is the standard deviation over draws (None for one).
    """
    reading = samples.first
    each = [corpus_bits_per_byte(reading.window_sizes, nats) for nats in samples.nats.unbind(1)]
    thresholded = None
    if samples.thresholded is not None:
        thresholded = {**window_losses(reading, samples.thresholded), "rate": samples.thresholded_rate}
    return {
        "count": len(each),
        "one_sample": {**window_losses(reading, samples.nats[:, 0]), "rate": reading.rate},
        "k_samples": window_losses(reading, marginal_nats(samples.nats)),
        "thresholded": thresholded,
        "corpus_spread": float(torch.tensor(each, dtype=torch.float64).std()) if len(each) > 1 else None,
    }


def window_losses(reading: Reading, nats: Tensor) -> dict[str, float | None]:
    """Compute :func:`~rltok_rl.evaluation.loss_metrics` from the costs [W] of a reading's windows."""
    sizes = reading.window_sizes
    return loss_metrics(*sum_documents(reading.document[sizes.cumsum(0) - sizes], sizes, nats))


@torch.no_grad()
def _has_probabilities(model: UNet, segmenter: Segmenter) -> bool:
    """Whether a segmenter draws each boundary with a probability; tried on a single byte."""
    byte_ids = torch.zeros(1, 1, dtype=torch.int64, device=model.embedding.weight.device)
    uniforms = torch.zeros(1, 1, device=byte_ids.device)
    return encode_and_draw(model, segmenter, byte_ids, uniforms=uniforms)[1].logits is not None


def systematic_resampling(log_weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw K of K particles in proportion to their weights w, with one random number u: [*B, K] in rising order.

        i_k = min {j : sum_{m<=j} w_m > (u + k) / K sum_m w_m},    k = 0 .. K - 1
        E #{k : i_k = j} = K w_j / sum_m w_m

    Example:
        >>> systematic_resampling(torch.tensor([0.1, 0.6, 0.3]).log(), torch.tensor(0.5))
        tensor([1, 1, 2])
    """
    count = log_weights.shape[-1]
    shares = log_weights.double().softmax(-1).cumsum(-1)
    marks = (uniforms.double().unsqueeze(-1) + torch.arange(count, device=uniforms.device)) / count
    return torch.searchsorted(shares.contiguous(), marks.contiguous(), right=True).clamp(max=count - 1)


def effective_number(log_weights: Tensor) -> Tensor:
    """Compute the effective number of particles, ``(sum_j w_j)^2 / sum_j w_j^2``, from 1 to K."""
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
    """Bound the cost of each window over all boundary strings from above, in expectation, by particles: [W] float64.

        C = -sum_m log (1/K) sum_j w_m^j,      w_m^j = prod_t p(x_{t+1} | x_<=t, a^j_<=t) over the bytes of part m

    A part ends where the effective number of particles is below K/2 (tested every :data:`EVERY` bytes): K particles are
    then drawn in proportion to w_m. The product of the means is an unbiased estimate of p(x), as the mean of
    independent draws is. Bytes that a window reads again weigh nothing.

    Windows and options are those of :func:`~rltok_rl.evaluation.read_text`; a segmenter must draw at random, byte by
    byte.

    Reference: https://arxiv.org/abs/1705.09279
    """
    count = check_count("particles", particles)
    segmented = SegmentedModel(model, segmenter, target_rate)
    if segmenter is not None and (segmenter.looks_ahead or not segmenter.draws_at_random):
        raise ValueError(
            f"particles belong to boundaries that are drawn at random, byte by byte, got {type(segmenter).__name__}"
        )
    byte_ids, spans = join_documents(text)
    windows = lay_windows(spans, context, stride).spread(most)
    nats, total = torch.zeros(len(windows), dtype=torch.float64), int(windows.sizes.sum())
    tests = (windows.reads - 1) // EVERY * (count > 1)
    needed = windows.reads * count + tests  # random numbers of each window: boundaries first, then resampling
    uniforms, before = torch.rand(int(needed.sum()), generator=generator), needed.cumsum(0) - needed
    done = 0
    for rows in windows.batches(max(1, BATCH_BYTES // count)):
        stepper = Stepper(segmented, len(rows) * count)
        drawn = uniforms[before[rows, None] + torch.arange(int(needed[rows[0]]))]
        nats[rows] = _filter(stepper, byte_ids, windows.take(rows), drawn, count)
        done += int(windows.sizes[rows].sum())
        if progress is not None:
            progress(done, total, float(nats.sum()))
    return nats


def _filter(stepper: Stepper, byte_ids: Tensor, windows: TextWindows, uniforms: Tensor, count: int) -> Tensor:
    """Costs [B] of windows of one length, with ``count`` particles each and the random numbers of each [B, ...]."""
    num_windows, length = len(windows), int(windows.reads[0])
    log_weights, cost = torch.zeros(num_windows, count, dtype=torch.float64), torch.zeros(num_windows).double()
    for t in range(length):
        place = windows.start + t  # [B]
        drawn = uniforms[:, t * count : (t + 1) * count].flatten()
        logits = stepper.step(byte_ids[place].repeat_interleave(count), drawn).final_logits
        following = byte_ids[place + 1].repeat_interleave(count).to(logits.device)
        log_probs = byte_log_prob(logits, following).double().cpu().view(num_windows, count)
        log_weights += log_probs * (place + 1 >= windows.first)[:, None]
        if count == 1 or t + 1 == length or (t + 1) % EVERY:
            continue
        few = effective_number(log_weights) < count / 2  # [B]
        if not bool(few.any()):
            continue
        drawn = systematic_resampling(log_weights, uniforms[:, length * count + t // EVERY])
        rows = torch.where(few[:, None], drawn, torch.arange(count)) + torch.arange(num_windows)[:, None] * count
        stepper.take(rows.flatten())
        cost = torch.where(few, cost - log_mean_exp(log_weights), cost)
        log_weights = log_weights.masked_fill(few[:, None], 0.0)
    return cost - log_mean_exp(log_weights)
