"""Where a text's tokens end, without the rest of the model.

The policy reads the byte encoder alone, and that sees a sliding window. So a long text is encoded piece by piece, each
with as many bytes before it as the encoder can look back to, and its boundaries are those of one pass over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.functional.numbers import check_count
from rltok_rl.functional.policy import boundary_logits
from rltok_rl.functional.text import text_to_bytes, text_to_ids
from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import sample_boundaries

PIECE = 4_096
"""Bytes that are encoded at once."""
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


@torch.no_grad()
def segment(
    model: UNet,
    text: str | bytes,
    *,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    piece: int = PIECE,
    target_rate: float | None = None,
    progress: Told | None = None,
) -> Segmentation:
    """Draw the boundaries of a text of any length, in time and memory that grow as its length.

    Args:
        model: the U-Net, in the mode it should run in (``model.eval()`` lifts the soft cap of boundary logits).
        text: at least one byte.
        greedy: draw a boundary where its probability exceeds one half, and use no random numbers.
        generator: source of the random numbers, which are those that one forward pass would draw.
        piece: bytes to encode at once.
        target_rate: boundaries per byte to aim at, where the model has ``rate_embedding``; None is the configured.
        progress: told after each piece how many bytes have been encoded, and of how many.

    Returns:
        Boundaries and their probabilities.

    Example:
        >>> from rltok_rl.models import preset
        >>> drawn = segment(UNet(preset("tiny")), "to be or not to be", generator=torch.Generator().manual_seed(0))
        >>> b"".join(token.content for token in drawn.tokens())
        b'to be or not to be'
    """
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
