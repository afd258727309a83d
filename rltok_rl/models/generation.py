"""Text generation: one byte, one boundary decision, one prediction at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rltok_rl.functional.decoding import sample_bytes
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models.heads import TargetRate
from rltok_rl.models.incremental import decide, observe, prefill
from rltok_rl.models.unet import UNet
from rltok_rl.renamed import warn_caller
from rltok_rl.sampling import draw_boundary
from rltok_rl.text import check_texts, text_to_ids
from rltok_rl.utils import check_count

Prompts = str | bytes | Sequence[str | bytes]


@dataclass(frozen=True)
class GeneratedByte:
    """One step of a stream."""

    byte_ids: Tensor  # [B] int64
    boundaries: Tensor  # [B] bool, drawn after the byte
    log_probs: Tensor  # [B] log-likelihood of the byte under the unfiltered model, in nats
    new: Tensor  # [B] bool, False while the row still reads its prompt, and once it has its ``max_bytes``


@dataclass(frozen=True)
class Generation:
    """New bytes of each prompt."""

    texts: list[bytes]  # without the prompts
    boundaries: list[Tensor]  # [len(text)] bool per row, drawn after each new byte
    log_probs: list[Tensor]  # [len(text)] per row, in nats


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
    boundaries: Literal["sample", "greedy"] | None = None,
) -> Iterator[GeneratedByte]:
    """Continue prompts, and yield every byte with its boundary.

    Rows with shorter prompts write while longer ones still read theirs, and go on until all have written; ``new`` marks
    the ``max_bytes`` new bytes of each. The model runs in the mode it is in; ``model.eval()`` lifts the soft cap of
    boundary logits.

    Args:
        model: the U-Net.
        prompts: one text or several, of any lengths, none empty.
        max_bytes: new bytes per prompt.
        temperature: 1 samples the model's distribution, 0 takes the likeliest byte.
        top_k: keep only the k likeliest bytes.
        top_p: keep only the likeliest bytes that together have this probability.
        greedy: draw a boundary if its probability exceeds one half, without random numbers.
        generator: source of all random numbers.
        target_rate: boundaries per byte, one or [B], for models with ``rate_embedding``; None is the configured rate.
        boundaries: deprecated; ``"greedy"`` is ``greedy=True``, ``"sample"`` is ``greedy=False``.
    """
    rows = [model.mark(text_to_ids(prompt)) for prompt in check_texts("prompts", prompts)]
    if not rows:
        raise ValueError("prompts must hold at least one text, got an empty list")
    max_bytes = check_count("max_bytes", max_bytes, minimum=0)
    if boundaries is not None:
        greedy = _former_greedy(boundaries, greedy)
    draw = partial(sample_bytes, temperature=temperature, top_k=top_k, top_p=top_p)
    # Refuse wrong options now, not at the first byte; with a generator given, torch's own stays as it is.
    draw(torch.zeros(1, 256), generator=None if generator is None else torch.Generator())
    cache, device = model.new_cache(len(rows), target_rate=target_rate), model.embedding.weight.device
    lengths = torch.tensor([len(row) for row in rows], device=device)  # [B]
    shortest, longest = int(lengths.min()), int(lengths.max())
    prompt = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)  # [B, longest]

    @torch.no_grad()
    def steps() -> Iterator[GeneratedByte]:
        output = prefill(model, cache, prompt[:, :shortest], generator=generator, greedy=greedy)
        logits = output.final_logits[:, -1]  # [B, 256]
        for position in range(shortest, longest + max_bytes):
            drawn = draw(logits, generator=generator)  # [B]
            written = lengths <= position  # [B]
            byte_ids = drawn if position >= longest else torch.where(written, drawn, prompt[:, position])
            observation = observe(model, cache, byte_ids)
            uniforms = None if greedy else torch.rand(len(rows), generator=generator, device=device)
            boundaries = draw_boundary(observation.boundary_logit, uniforms)  # [B]
            prediction = decide(model, cache, boundaries)
            new = written & (position < lengths + max_bytes)  # [B]
            yield GeneratedByte(byte_ids, boundaries, byte_log_prob(logits, byte_ids), new)
            logits = prediction.final_logits

    return steps()


def generate(model: UNet, prompts: Prompts, *, max_bytes: int, stop: bytes | None = None, **options: Any) -> Generation:
    """Continue prompts until ``stop``, which is kept, or ``max_bytes``; options are those of :func:`stream`.

    Example:
        >>> from rltok_rl.models import preset
        >>> written = generate(UNet(preset("tiny")), "Once upon", max_bytes=5)
        >>> len(written.texts[0])
        5
    """
    if stop is not None and (not isinstance(stop, bytes) or not stop):
        raise ValueError(f"stop must be a non-empty bytes object or None, got {stop!r}")
    if options.get("boundaries") is not None:
        options["greedy"] = _former_greedy(options.pop("boundaries"), options.get("greedy", False))
    texts = [bytearray() for _ in check_texts("prompts", prompts)]
    boundaries: list[list[Tensor]] = [[] for _ in texts]
    log_probs: list[list[Tensor]] = [[] for _ in texts]

    def finished(text: bytearray) -> bool:
        return len(text) >= max_bytes or (stop is not None and text.endswith(stop))

    for step in stream(model, prompts, max_bytes=max_bytes, **options):
        for row, (byte, new) in enumerate(zip(step.byte_ids.tolist(), step.new.tolist(), strict=True)):
            if new and not finished(texts[row]):
                texts[row].append(byte)
                boundaries[row].append(step.boundaries[row])
                log_probs[row].append(step.log_probs[row])
        if all(finished(text) for text in texts):
            break
    return Generation(
        texts=[bytes(text) for text in texts],
        boundaries=[torch.stack(x) if x else torch.zeros(0, dtype=torch.bool) for x in boundaries],
        log_probs=[torch.stack(x) if x else torch.zeros(0) for x in log_probs],
    )


def _former_greedy(boundaries: str, greedy: bool) -> bool:
    """Read ``greedy`` by its former name."""
    if boundaries not in ("sample", "greedy"):
        raise ValueError(f"boundaries must be one of ['sample', 'greedy'], got {boundaries!r}")
    if greedy and boundaries == "sample":
        raise ValueError("boundaries must be left out if greedy is given, got boundaries='sample' and greedy=True")
    greedy = boundaries == "greedy"
    warn_caller(f"boundaries={boundaries!r} is greedy={greedy} now")
    return greedy
