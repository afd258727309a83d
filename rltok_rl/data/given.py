"""Windows of texts that a user hands over, instead of drawing them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rltok_rl.data.source import Documents
from rltok_rl.data.windows import Windows
from rltok_rl.text import text_to_ids


def given_windows(texts: Documents, num_rows: int, length: int) -> Windows:
    """Windows that begin where given texts begin.

    A text longer than a window is cut there, as a window drawn from a document is: the episode is truncated, not
    terminated.

    Args:
        texts: one text for all rows, or one per row.
        num_rows: rows.
        length: bytes of a window.

    Example:
        >>> given_windows(["abc", "a longer text"], 2, 6).ends
        tensor([ True, False])
    """
    if isinstance(texts, Path):
        raise TypeError(f"text must be one text or one per row that starts, got {texts!r}; read_text() reads it")
    rows: Sequence[str | bytes] = [texts] * num_rows if isinstance(texts, (str, bytes)) else list(texts)
    if len(rows) != num_rows:
        raise ValueError(f"text must be one text or one per row that starts, {num_rows}, got {len(rows)}")
    ids = [text_to_ids(row) for row in rows]
    for number, one in enumerate(ids):
        if len(one) < 2:
            raise ValueError(
                f"text must have at least 2 bytes (one to read, one to predict), got {len(one)} in row {number}"
            )
    byte_ids = torch.zeros(num_rows, length, dtype=torch.int64)
    lengths = torch.tensor([min(len(one), length) for one in ids])
    for row, one in enumerate(ids):
        byte_ids[row, : lengths[row]] = one[:length]
    return Windows(byte_ids, lengths, torch.tensor([len(one) <= length for one in ids]))
