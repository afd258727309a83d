"""Conversion between text and tensors of its bytes."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor


def check_texts(name: str, texts: object) -> list[str | bytes]:
    """Require one text or a list of them, each with at least one byte, and return them as a list."""
    kinds = f"{name} must be str or bytes, or a list of them, got"
    if not isinstance(texts, (str, bytes, list, tuple)):
        raise TypeError(f"{kinds} {type(texts).__name__}")
    rows = [texts] if isinstance(texts, (str, bytes)) else [*texts]
    for number, row in enumerate(rows):
        if not isinstance(row, (str, bytes)):
            raise TypeError(f"{kinds} {type(row).__name__} at {number}")
        if not row:
            raise ValueError(f"{name} must have at least 1 byte, got an empty text at {number}")
    return rows


def text_to_ids(text: str | bytes) -> Tensor:
    """Return the UTF-8 bytes of a text as [T] int64.

    Example:
        >>> text_to_ids("aé")
        tensor([ 97, 195, 169])
    """
    content = bytearray(text_to_bytes(text))  # a copy, which torch may write to
    return torch.frombuffer(content, dtype=torch.uint8).long() if content else torch.empty(0, dtype=torch.int64)


def text_to_bytes(text: str | bytes) -> bytes:
    """Return the UTF-8 bytes of a text; bytes are left as they are."""
    if isinstance(text, str):
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise ValueError(f"text must be UTF-8, got {error.reason} at character {error.start}") from None
    if not isinstance(text, bytes):
        raise TypeError(f"text must be str or bytes, got {type(text).__name__}")
    return text


def ids_to_bytes(byte_ids: Tensor | Iterable[int]) -> bytes:
    """Return the bytes of [T] ids; special ids have none and are an error.

    Example:
        >>> ids_to_bytes(torch.tensor([104, 105]))
        b'hi'
    """
    if not isinstance(byte_ids, Tensor):
        byte_ids = torch.tensor(list(map(operator.index, byte_ids)), dtype=torch.int64)
    if byte_ids.dim() != 1 or byte_ids.is_floating_point():
        raise TypeError(f"byte_ids must be integers of shape [T], got {byte_ids.dtype} of {[*byte_ids.shape]}")
    wrong = byte_ids[(byte_ids < 0) | (byte_ids > 255)]
    if len(wrong):
        raise ValueError(f"byte_ids must lie in 0..255 to be turned into bytes, got {wrong[0].item()}")
    return byte_ids.to("cpu", torch.uint8).numpy().tobytes()
