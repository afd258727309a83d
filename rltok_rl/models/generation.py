"""Writing text: one byte, one boundary decision, one prediction at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rltok_rl.functional.decoding import sample_bytes
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.embeddings import TargetRate
from rltok_rl.models.incremental import decide, observe, prefill
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import draw_boundary
from rltok_rl.text import text_to_ids
from rltok_rl.utils import check_count

Prompts = str | bytes | Sequence[str | bytes]
BoundaryMode = Literal["sample", "greedy"]


@dataclass(frozen=True)
class GeneratedByte:
    """One step of a stream."""

    byte_ids: Tensor  # [B] int64
    boundaries: Tensor  # [B] bool, drawn after the byte
    log_probs: Tensor  # [B] log-likelihood of the byte under the unfiltered model, in nats
    new: Tensor  # [B] bool, False while a longer prompt is still being read in this row


@dataclass(frozen=True)
class Generation:
    """What was written after each prompt."""

    texts: list[bytes]
    """The new bytes of each row, without the prompt."""
    boundaries: list[Tensor]
    """[len(text)] bool per row, the boundary drawn after each new byte."""
    log_probs: list[Tensor]
    """[len(text)] per row, in nats."""


def generate(
    model: UNet,
    prompts: Prompts,
    *,
    max_bytes: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    stop: bytes | None = None,
    target_rate: TargetRate | None = None,
    boundaries: BoundaryMode | None = None,
) -> Generation:
    """Continue prompts byte by byte; :func:`stream` does the same and hands out each byte as it is written.

    Args:
        model: the U-Net, in the mode it should run in (``model.eval()`` lifts the soft cap of boundary logits).
        prompts: one text or several, of any lengths, none empty.
        max_bytes: how many bytes to write after each prompt.
        temperature: 1 samples the model's distribution, 0 takes the likeliest byte.
        top_k: keep only the k likeliest bytes.
        top_p: keep only the likeliest bytes that together hold this much probability.
        greedy: draw a boundary where its probability exceeds one half, and use no random numbers for it; bytes are as
            ``temperature`` says.
        generator: source of all random numbers.
        stop: a row ends once it has written this; the stop itself is kept.
        target_rate: boundaries per byte to aim at, of all rows or [B] of each, where the model has
            ``rate_embedding``; None is the configured rate.
        boundaries: what ``greedy`` was called: ``"greedy"`` is True, ``"sample"`` False. Warns, and goes in 0.2.

    Returns:
        New bytes, boundaries and log-likelihoods per row.

    Example:
        >>> from rltok_rl.models import preset
        >>> written = generate(UNet(preset("tiny")), "Once upon", max_bytes=5)
        >>> len(written.texts[0])
        5
    """
    _check_stop(stop)
    greedy = _greedy(greedy, boundaries)
    rows = _as_rows(prompts)
    steps = stream(
        model,
        rows,
        max_bytes=max_bytes,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        greedy=greedy,
        generator=generator,
        target_rate=target_rate,
    )
    texts, kept = [bytearray() for _ in rows], [[] for _ in rows]  # type: list[bytearray], list[list[int]]
    taken: list[GeneratedByte] = []
    for number, step in enumerate(steps):
        taken.append(step)
        for row, (byte, new) in enumerate(zip(step.byte_ids.tolist(), step.new.tolist(), strict=True)):
            if new and not _finished(texts[row], max_bytes, stop):
                texts[row].append(byte)
                kept[row].append(number)
        if all(_finished(text, max_bytes, stop) for text in texts):
            break
    return Generation(
        texts=[bytes(text) for text in texts],
        boundaries=[_column([s.boundaries for s in taken], row, kept[row], torch.bool) for row in range(len(rows))],
        log_probs=[_column([s.log_probs for s in taken], row, kept[row], torch.float32) for row in range(len(rows))],
    )


def stream(
    model: UNet,
    prompts: Prompts,
    *,
    max_bytes: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    target_rate: TargetRate | None = None,
    boundaries: BoundaryMode | None = None,
) -> Iterator[GeneratedByte]:
    """Continue prompts and hand out every byte with its boundary, one by one; arguments as for :func:`generate`.

    Rows whose prompt is longer than the shortest one are still reading while others write (``new`` says which). The
    stream ends when the row with the longest prompt has written ``max_bytes``.
    """
    rows = [text_to_ids(prompt) for prompt in _as_rows(prompts)]
    max_bytes = check_count("max_bytes", max_bytes, minimum=0)
    greedy = _greedy(greedy, boundaries)
    draw = partial(sample_bytes, temperature=temperature, top_k=top_k, top_p=top_p)
    draw(torch.zeros(1, 256))  # refuse wrong options now, not at the first byte
    cache = model.new_cache(len(rows), target_rate=target_rate)
    return _stream(model, cache, rows, max_bytes, draw, greedy, generator)


@torch.no_grad()
def _stream(
    model: UNet,
    cache: UNetCache,
    rows: list[Tensor],
    max_bytes: int,
    draw: Callable[..., Tensor],
    greedy: bool,
    generator: torch.Generator | None,
) -> Iterator[GeneratedByte]:
    device = model.embedding.weight.device
    lengths = torch.tensor([len(row) for row in rows], device=device)  # [B]
    shortest, longest = int(lengths.min()), int(lengths.max())
    prompt = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)  # [B, longest]
    read = prefill(model, cache, prompt[:, :shortest], generator=generator, greedy=greedy)
    logits = read.final_logits[:, -1]  # [B, 256]
    for position in range(shortest, longest + max_bytes):
        drawn = draw(logits, generator=generator)  # [B]
        new = lengths <= position  # [B]
        byte_ids = drawn if position >= longest else torch.where(new, drawn, prompt[:, position])
        observation = observe(model, cache, byte_ids)
        uniforms = None if greedy else torch.rand(len(rows), generator=generator, device=device)
        drawn_boundaries = draw_boundary(observation.boundary_logit, uniforms)  # [B]
        prediction = decide(model, cache, drawn_boundaries)
        yield GeneratedByte(byte_ids, drawn_boundaries, byte_log_prob(logits, byte_ids), new)
        logits = prediction.final_logits


def _as_rows(prompts: Prompts) -> list[str | bytes]:
    if not isinstance(prompts, (str, bytes, list, tuple)):
        raise TypeError(f"prompts must be str or bytes, or a list of them, got {type(prompts).__name__}")
    rows = [prompts] if isinstance(prompts, (str, bytes)) else list(prompts)
    if not rows:
        raise ValueError("prompts must hold at least one text, got an empty list")
    for number, row in enumerate(rows):
        if not isinstance(row, (str, bytes)):
            raise TypeError(f"prompts must be str or bytes, or a list of them, got {type(row).__name__} at {number}")
        if not row:
            raise ValueError(
                f"prompts must not be empty (a byte is needed to predict from), got an empty text at {number}"
            )
    return rows


def _check_stop(stop: bytes | None) -> None:
    if stop is not None and (not isinstance(stop, bytes) or not stop):
        raise ValueError(f"stop must be a non-empty bytes object or None, got {stop!r}")


def _greedy(greedy: bool, boundaries: BoundaryMode | None) -> bool:
    """Whether likelier decisions are taken, by the name of today or of before."""
    if boundaries is None:
        return greedy
    if boundaries not in ("sample", "greedy"):
        raise ValueError(f"boundaries must be one of ['sample', 'greedy'], got {boundaries!r}")
    if greedy and boundaries == "sample":
        raise ValueError("boundaries is the former name of greedy, got boundaries='sample' and greedy=True")
    warnings.warn(f"boundaries={boundaries!r} is greedy={boundaries == 'greedy'} now", DeprecationWarning, stacklevel=3)
    return boundaries == "greedy"


def _finished(text: bytearray, max_bytes: int, stop: bytes | None) -> bool:
    return len(text) >= max_bytes or (stop is not None and text.endswith(stop))


def _column(steps: list[Tensor], row: int, kept: list[int], dtype: torch.dtype) -> Tensor:
    return torch.stack([steps[number][row] for number in kept]) if kept else torch.zeros(0, dtype=dtype)
