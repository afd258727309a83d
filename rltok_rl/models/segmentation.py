"""Where a text's tokens end, without the rest of the model.

The policy reads the byte encoder alone, and that sees a sliding window. So a long text is encoded piece by piece, each
with as many bytes before it as the encoder can look back to, and its boundaries are those of one pass over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import sample_boundaries
from rltok_rl.text import text_to_bytes, text_to_ids
from rltok_rl.utils import check_count

PIECE = 4_096
"""Bytes that are encoded at once."""
Texts = list[str] | list[bytes] | list[str | bytes] | tuple[str | bytes, ...]
Told = Callable[[int, int], None]
"""Told how many bytes have been encoded, and of how many."""


@dataclass(frozen=True)
class Token:
    """A piece of a text: the bytes from one boundary to the next."""

    start: int  # in bytes
    end: int  # one beyond its last byte
    content: bytes
    ended: bool  # False for the last piece of a text that has no boundary at its end


@dataclass(frozen=True)
class Segmentation:
    """A text, and what the policy makes of it."""

    text: bytes  # T bytes
    boundaries: Tensor  # [T] bool, on the CPU; a boundary belongs to the byte that it was drawn after
    probabilities: Tensor  # [T] float32, of a boundary given those before; 1 at the first byte, which is not a choice

    def tokens(self) -> Iterator[Token]:
        """Every piece of the text, in order; put together they are the text."""
        start = 0
        for last in self.boundaries.nonzero().squeeze(1).tolist():
            yield Token(start, last + 1, self.text[start : last + 1], ended=True)
            start = last + 1
        if start < len(self.text):
            yield Token(start, len(self.text), self.text[start:], ended=False)


@overload
def segment(
    model: UNet,
    text: str | bytes,
    *,
    greedy: bool = ...,
    generator: torch.Generator | None = ...,
    piece: int = ...,
    target_rate: float | None = ...,
    progress: Told | None = ...,
) -> Segmentation: ...
@overload
def segment(
    model: UNet,
    text: Texts,
    *,
    greedy: bool = ...,
    generator: torch.Generator | None = ...,
    piece: int = ...,
    target_rate: float | None = ...,
    progress: Told | None = ...,
) -> list[Segmentation]: ...
def segment(
    model: UNet,
    text: str | bytes | Texts,
    *,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    piece: int = PIECE,
    target_rate: float | None = None,
    progress: Told | None = None,
) -> Segmentation | list[Segmentation]:
    """Draw the boundaries of texts of any length, in time and memory that grow linearly with it.

    Args:
        model: the U-Net, in the mode it should run in (``model.eval()`` lifts the soft cap of boundary logits).
        text: one text of at least one byte, or a list of such texts.
        greedy: draw a boundary where its probability exceeds one half, and use no random numbers.
        generator: source of the random numbers, which are those that one forward pass would draw; texts of a list draw
            from it in order.
        piece: bytes to encode at once.
        target_rate: boundaries per byte to aim at, for models with ``rate_embedding``; None is the configured rate.
        progress: called after each piece with the bytes encoded so far and the bytes of the text.

    Returns:
        Boundaries and their probabilities; a list of them for a list of texts.

    Example:
        >>> from rltok_rl.models import preset
        >>> model, generator = UNet(preset("tiny")), torch.Generator().manual_seed(0)
        >>> drawn = segment(model, "to be or not to be", generator=generator)
        >>> b"".join(token.content for token in drawn.tokens())
        b'to be or not to be'
        >>> [each.text for each in segment(model, ["to be", "or not"], generator=generator)]
        [b'to be', b'or not']
    """
    options: dict[str, Any] = {"greedy": greedy, "generator": generator, "piece": piece}
    options |= {"target_rate": target_rate, "progress": progress}
    if isinstance(text, (str, bytes)):
        return _segment(model, text, **options)
    if not isinstance(text, (list, tuple)):
        raise TypeError(f"text must be str or bytes, or a list of them, got {type(text).__name__}")
    for number, one in enumerate(text):
        if not isinstance(one, (str, bytes)):
            raise TypeError(f"text must be str or bytes, or a list of them, got {type(one).__name__} at {number}")
        if not one:
            raise ValueError(f"text must have at least 1 byte, got an empty text at {number}")
    return [_segment(model, one, **options) for one in text]


@torch.no_grad()
def _segment(
    model: UNet,
    text: str | bytes,
    *,
    greedy: bool,
    generator: torch.Generator | None,
    piece: int,
    target_rate: float | None,
    progress: Told | None,
) -> Segmentation:
    byte_ids = text_to_ids(text)
    if not len(byte_ids):
        raise ValueError("text must have at least 1 byte, got an empty text")
    terms = policy_terms(model, byte_ids, piece=piece, target_rate=target_rate, progress=progress)
    boundaries = sample_boundaries(*terms, generator=generator, cap=model.boundary_cap, greedy=greedy)  # [1, T]
    probabilities = boundary_logits(*terms, boundaries, cap=model.boundary_cap).sigmoid()
    probabilities[:, 0] = 1.0
    return Segmentation(text_to_bytes(text), boundaries[0].cpu(), probabilities[0].float().cpu())


@torch.no_grad()
def policy_terms(
    model: UNet,
    byte_ids: Tensor,
    *,
    piece: int = PIECE,
    target_rate: float | None = None,
    progress: Told | None = None,
) -> BoundaryTerms:
    """What the policy makes of each byte of a long text.

    Args:
        model: the U-Net.
        byte_ids: [T] the bytes.
        piece: bytes to encode at once.
        target_rate: as for :func:`segment`.
        progress: as for :func:`segment`.

    Returns:
        base [1, T] and lags [1, T, w], equal (to rounding) to those of one pass over the whole text.
    """
    pieces = encode_pieces(model, byte_ids, piece=piece, target_rate=target_rate, progress=progress)
    parts = [model.boundary_terms(states, target_rate=target_rate) for states in pieces]
    return BoundaryTerms(*(torch.cat(columns, dim=1) for columns in zip(*parts, strict=True)))


@torch.no_grad()
def encode_pieces(
    model: UNet,
    byte_ids: Tensor,
    *,
    piece: int = PIECE,
    target_rate: float | None = None,
    progress: Told | None = None,
) -> Iterator[Tensor]:
    """Encoder states [1, <= piece, D] of a long text, piece by piece; those of one pass over it, to rounding.

    Args:
        model: the U-Net.
        byte_ids: [T] the bytes.
        piece: bytes to encode at once.
        target_rate: as for :func:`segment`.
        progress: as for :func:`segment`.
    """
    piece = check_count("piece", piece)
    # Bytes that a state can depend on before its own.
    reach = model.config.num_encoder_layers * (model.config.window - 1) + model.config.bytes_before
    for start in range(0, len(byte_ids), piece):
        before = min(reach, start)
        read = byte_ids[None, start - before : start + piece].to(model.embedding.weight.device)
        states = model.encode(read, target_rate=target_rate)
        yield states[:, before:]
        if progress is not None:
            progress(min(start + piece, len(byte_ids)), len(byte_ids))
