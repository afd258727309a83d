"""Segmentation of long texts: boundaries and their probabilities, without token layers and decoder.

The policy's encoder sees a sliding window. So a long text is encoded in pieces, each with the bytes before it that the
encoder can see, and boundaries equal those of one pass over the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import sample_boundaries
from rltok_rl.text import check_texts, text_to_bytes, text_to_ids
from rltok_rl.utils import check_count

PIECE = 4_096  # bytes that are encoded at once
PART = 65_536  # bytes whose boundaries are drawn at once
Texts = list[str] | list[bytes] | list[str | bytes] | tuple[str | bytes, ...]
Progress = Callable[[int, int], None]  # called with the bytes encoded so far and the bytes of the text


@dataclass(frozen=True)
class Token:
    """Bytes of a text from one boundary to the next."""

    start: int  # in bytes
    end: int  # one beyond its last byte
    content: bytes
    ended: bool  # False for the last token of a text without a boundary at its end


@dataclass(frozen=True)
class Segmentation:
    """A text with its boundaries and their probabilities."""

    text: bytes  # T bytes
    boundaries: Tensor  # [T] bool, on the CPU; a boundary belongs to the byte before it
    probabilities: Tensor  # [T] float32, of a boundary given those before; 1 at a forced first byte

    def tokens(self) -> Iterator[Token]:
        """Yield every token in order; their contents concatenate to the text."""
        start = 0
        for last in self.boundaries.nonzero().squeeze(1).tolist():
            yield Token(start, last + 1, self.text[start : last + 1], ended=True)
            start = last + 1
        if start < len(self.text):
            yield Token(start, len(self.text), self.text[start:], ended=False)


@overload
def segment(model: UNet, text: str | bytes, **options: Any) -> Segmentation: ...
@overload
def segment(model: UNet, text: Texts, **options: Any) -> list[Segmentation]: ...
@torch.no_grad()  # type: ignore[misc] # **options stand for the keywords below
def segment(
    model: UNet,
    text: str | bytes | Texts,
    *,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    piece: int = PIECE,
    target_rate: float | None = None,
    progress: Progress | None = None,
) -> Segmentation | list[Segmentation]:
    """Draw the boundaries of a text of any length, or of each text of a list.

    The model runs in the mode it is in; ``model.eval()`` lifts the soft cap of boundary logits.

    Args:
        model: the U-Net.
        text: at least one byte each.
        greedy: draw a boundary if its probability exceeds one half.
        generator: source of random numbers, the same as in one forward pass; texts of a list draw from it in order.
        piece: bytes to encode at once.
        target_rate: boundaries per byte, for models with ``rate_embedding``; None is the configured rate.
        progress: called after each piece with the bytes encoded so far and the bytes of the text.

    Example:
        >>> from rltok_rl.models import preset
        >>> drawn = segment(UNet(preset("tiny")), "to be or not to be")
        >>> b"".join(token.content for token in drawn.tokens())
        b'to be or not to be'
    """
    how: dict[str, Any] = {"greedy": greedy, "generator": generator, "piece": piece}
    how |= {"target_rate": target_rate, "progress": progress}
    texts = check_texts("text", text)
    segmentations = [join_parts(list(segment_parts(model, content, **how))) for content in texts]
    return segmentations[0] if isinstance(text, (str, bytes)) else segmentations


@torch.no_grad()
def segment_parts(
    model: UNet,
    text: str | bytes,
    *,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    piece: int = PIECE,
    target_rate: float | None = None,
    progress: Progress | None = None,
    part: int = PART,
) -> Iterator[Segmentation]:
    """Yield the result of :func:`segment` in parts of about ``part`` bytes, as soon as each is drawn.

    Boundaries are equal to the last bit, probabilities up to rounding. In memory are the text and 12 bytes per byte of
    it (ids and random numbers), and the encoder's states of one part.
    """
    marks, device = model.config.num_marks, model.embedding.weight.device
    content = text_to_bytes(check_texts("text", [text])[0])
    byte_ids, end = model.mark(text_to_ids(content)), 0
    uniforms = None if greedy else torch.rand(1, len(byte_ids), generator=generator, device=device)
    terms: BoundaryTerms | None = None
    forced = torch.empty(1, 0, dtype=torch.int64, device=device)  # boundaries that lags reach back to
    for states in encode_pieces(model, byte_ids, piece=piece, target_rate=target_rate, progress=progress):
        more = model.boundary_terms(states, target_rate=target_rate)
        terms = more if terms is None else BoundaryTerms(*(torch.cat(x, 1) for x in zip(terms, more, strict=True)))
        end, before = end + states.shape[1], forced.shape[1]
        start = end - terms.base.shape[1]  # of the terms
        if end < len(byte_ids) and end - start - before < part:
            continue
        known = F.pad(forced, (0, end - start - before), value=-1)
        numbers = None if uniforms is None else uniforms[:, start:end]
        options: dict[str, Any] = {"uniforms": numbers, "greedy": greedy, "cap": model.boundary_cap}
        boundaries = sample_boundaries(*terms, forced=known, force_first=start == 0, **options)  # [1, T]
        probabilities = boundary_logits(*terms, boundaries, cap=model.boundary_cap).sigmoid()
        new = slice(before if start + before else marks, None)
        if not start + before:
            probabilities[:, 0] = 1.0
        drawn = boundaries[0, new].cpu(), probabilities[0, new].float().cpu()
        yield Segmentation(content[max(start + before - marks, 0) : end - marks], *drawn)
        keep = max(0, end - start - model.config.num_lags)
        forced, terms = boundaries[:, keep:].long(), BoundaryTerms(*(x[:, keep:] for x in terms))


def join_parts(parts: list[Segmentation]) -> Segmentation:
    """Join consecutive parts of a text."""
    if len(parts) == 1:
        return parts[0]
    columns = (torch.cat([getattr(part, name) for part in parts]) for name in ("boundaries", "probabilities"))
    return Segmentation(b"".join(part.text for part in parts), *columns)


@torch.no_grad()
def encode_pieces(
    model: UNet, byte_ids: Tensor, *, piece: int = PIECE, target_rate: Any = None, progress: Progress | None = None
) -> Iterator[Tensor]:
    """Yield the encoder states [1, <= piece, D] of a long text [T], equal to those of one pass up to rounding."""
    piece = check_count("piece", piece)
    # Number of earlier bytes that a state can depend on.
    reach = model.config.num_encoder_layers * (model.config.window - 1) + model.config.bytes_before
    for start in range(0, len(byte_ids), piece):
        before = min(reach, start)
        window = byte_ids[None, start - before : start + piece].to(model.embedding.weight.device)
        states = model.encode(window, target_rate=target_rate)
        yield states[:, before:]
        if progress is not None:
            progress(min(start + piece, len(byte_ids)), len(byte_ids))
