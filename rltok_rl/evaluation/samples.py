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
from rltok_rl.evaluation.reading import Progress, Reading, read_text
from rltok_rl.functional.likelihood import log_mean_exp
from rltok_rl.functional.numbers import check_count
from rltok_rl.models import UNet


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
