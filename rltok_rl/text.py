"""Between text and the tensors that hold its bytes."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor


def text_to_ids(text: str | bytes) -> Tensor:
    """The UTF-8 bytes of a text as [T] int64.

    Example:
        >>> text_to_ids("aé")
        tensor([ 97, 195, 169])
    """
    content = bytearray(text_to_bytes(text))  # a copy, which torch may write to
    return torch.frombuffer(content, dtype=torch.uint8).long() if content else torch.empty(0, dtype=torch.int64)


def text_to_bytes(text: str | bytes) -> bytes:
    r"""The UTF-8 bytes of a text; bytes are left as they are.

    Example:
        >>> text_to_bytes("aé")
        b'a\xc3\xa9'
    """
    if isinstance(text, str):
        return text.encode("utf-8")
    if not isinstance(text, bytes):
        raise TypeError(f"text must be str or bytes, got {type(text).__name__}")
    return text


def ids_to_bytes(byte_ids: Tensor | Iterable[int]) -> bytes:
    """The bytes that a [T] tensor of ids stands for; special ids have none and are an error.

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
