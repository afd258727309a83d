"""Cut texts into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch

from rltok_rl.models.segmentation import segment as draw_boundaries
from rltok_rl.models.unet import UNet


@overload
def segment(
    model: UNet,
    texts: str | bytes,
    *,
    greedy: bool = ...,
    generator: torch.Generator | None = ...,
    target_rate: float | None = ...,
) -> list[bytes]: ...
@overload
def segment(
    model: UNet,
    texts: list[str] | list[bytes] | list[str | bytes] | tuple[str | bytes, ...],
    *,
    greedy: bool = ...,
    generator: torch.Generator | None = ...,
    target_rate: float | None = ...,
) -> list[list[bytes]]: ...
def segment(
    model: UNet,
    texts: str | bytes | list[str] | list[bytes] | list[str | bytes] | tuple[str | bytes, ...],
    *,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    target_rate: float | None = None,
) -> list[bytes] | list[list[bytes]]:
    """Cut a text into tokens, or each text of a list, with the model's boundary policy.

    Tokens are bytes, since a token may end inside a character; joined they are the text. Use
    :func:`rltok_rl.models.segment` for the boundaries of a text and their probabilities.

    Args:
        model: the U-Net, in the mode it should run in (``model.eval()`` lifts the soft cap of boundary logits).
        texts: one text or a list of texts, of any lengths, none empty.
        greedy: draw a boundary where its probability exceeds one half, and use no random numbers.
        generator: source of the random numbers; texts draw from it in order.
        target_rate: boundaries per byte to aim at, for models with ``rate_embedding``; None is the configured rate.

    Returns:
        The tokens of the text; for a list of texts, a list of tokens per text.

    Example:
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny")).eval()
        >>> b"".join(segment(model, "to be or not to be"))
        b'to be or not to be'
        >>> [b"".join(tokens) for tokens in segment(model, ["to be", "or not"], greedy=True)]
        [b'to be', b'or not']
    """
    single = isinstance(texts, (str, bytes))
    if not single and not isinstance(texts, (list, tuple)):
        raise TypeError(f"texts must be str or bytes, or a list of them, got {type(texts).__name__}")
    rows: Sequence[str | bytes] = [texts] if isinstance(texts, (str, bytes)) else texts
    for number, row in enumerate(rows):
        if not isinstance(row, (str, bytes)):
            raise TypeError(f"texts must be str or bytes, or a list of them, got {type(row).__name__} at {number}")
        if not row:
            raise ValueError(f"texts must not be empty, got an empty text at {number}")
    found = []
    for row in rows:
        drawn = draw_boundaries(model, row, greedy=greedy, generator=generator, target_rate=target_rate)
        found.append([token.content for token in drawn.tokens()])
    return found[0] if single else found
