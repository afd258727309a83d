"""Byte layers that stay inside their token: the first byte that each byte may see (``byte_scope="token"``).

A boundary at byte t closes a token, whose vector is pooled at byte t and serves the bytes from t on. So byte t is the
last byte of a token in the encoder, and the first byte of the next one in the decoder:

    encoder:  e_t = 1 + max {0 < s < t : a_s = 1},  0 without one        decoder:  d_t = max {s <= t : a_s = 1}

The forced boundary a_0 ends no token in the encoder, so the first word of a text is read whole. Encoder states depend
on the boundaries before them, so the boundaries of a window must be known before it is encoded.

Shapes: B rows, T bytes, n rows of a step. Byte layers of ``byte_scope="window"`` have no first byte (None).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.models.checks import check_boundaries
from rltok_rl.models.config import UNetConfig


def encoder_starts(boundaries: Tensor) -> Tensor:
    """Return e [B, T] of boundaries [B, T] bool.

    Example:
        >>> encoder_starts(torch.tensor([[1, 0, 1, 0, 0, 1, 0]]).bool())  # to be or: the spaces end words
        tensor([[0, 0, 0, 3, 3, 3, 6]])
    """
    places = torch.arange(boundaries.shape[1], device=boundaries.device)
    follows = F.pad(boundaries, (1, 0))[:, :-1] & (places > 1)  # the byte before has closed a token
    return torch.where(follows, places, 0).cummax(1).values


def decoder_starts(boundaries: Tensor) -> Tensor:
    """Return d [B, T] of boundaries [B, T] bool.

    Example:
        >>> decoder_starts(torch.tensor([[1, 0, 1, 0, 0, 1, 0]]).bool())
        tensor([[0, 0, 2, 2, 2, 5, 5]])
    """
    places = torch.arange(boundaries.shape[1], device=boundaries.device)
    return torch.where(boundaries, places, 0).cummax(1).values


def window_starts(config: UNetConfig, boundaries: Tensor | None, shape: torch.Size) -> Tensor | None:
    """Return the encoder's first bytes [B, T] for a window of this shape, whose boundaries must be known."""
    if config.byte_scope == "window":
        return None
    if boundaries is None:
        raise ValueError(
            "boundaries must be given with byte_scope='token' before bytes are encoded, got None: the encoder stops at "
            "them. Draw them by a segmenter that reads bytes alone (rltok_rl.agents.segmenters), not by a policy that "
            "reads encoder states"
        )
    check_boundaries(boundaries, shape, first=False)
    return encoder_starts(boundaries.bool())


def step_starts(config: UNetConfig, position: Tensor, since: Tensor, *, decoder: bool = False) -> Tensor | None:
    """Return the first byte [n] that a byte at ``position`` [n] sees, ``since`` [n] bytes after the last boundary.

    The encoder counts bytes before the current one; the decoder also the current one, unless it has a boundary.
    """
    if config.byte_scope == "window":
        return None
    start = (position - since).clamp(min=0)
    return start if decoder else start.masked_fill(start == 1, 0)  # only the forced boundary can precede byte 1
