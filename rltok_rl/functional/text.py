"""Between text and the tensors that hold its bytes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def text_to_ids(text: str | bytes) -> Tensor:
    """The UTF-8 bytes of a text as [T] int64.

    Example:
        >>> text_to_ids("aé")
        tensor([ 97, 195, 169])
    """
    return torch.tensor(list(text_to_bytes(text)), dtype=torch.int64)


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
    values = byte_ids.tolist() if isinstance(byte_ids, Tensor) else list(byte_ids)
    wrong = [v for v in values if not 0 <= v < 256]
    if wrong:
        raise ValueError(f"byte_ids must lie in 0..255 to be turned into bytes, got {wrong[0]}")
    return bytes(values)
