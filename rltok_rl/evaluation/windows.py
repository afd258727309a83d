"""Windows of text, laid so that every byte but the first is predicted exactly once.

A window of context T reads up to T bytes and predicts the byte after each. The next window begins S bytes (the stride)
further on and predicts the bytes that no window before it has: all of its own where S = T, the last S where S < T, so
that each of these has at least T - S + 1 bytes before it. Of a text of N bytes, N - 1 are predicted; nothing predicts
the first.

Shapes: W windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.functional.numbers import check_count
from rltok_rl.functional.text import text_to_bytes


@dataclass(frozen=True)
class Windows:
    """Where windows lie in a text, in order; each reads ``start`` to ``end - 2``, predicts ``first`` to ``end - 1``."""

    start: Tensor  # [W] int64
    first: Tensor  # [W] int64, the first byte that no window before it has predicted
    end: Tensor  # [W] int64

    @property
    def reads(self) -> Tensor:
        """[W] bytes that each window reads."""
        return self.end - self.start - 1

    @property
    def sizes(self) -> Tensor:
        """[W] bytes that count as its own: those that it predicts first."""
        return self.end - self.first

    def __len__(self) -> int:
        """W."""
        return len(self.start)

    def take(self, rows: Tensor | slice) -> Windows:
        """Some of them."""
        return Windows(self.start[rows], self.first[rows], self.end[rows])

    def spread(self, most: int | None) -> Windows:
        """At most so many, evenly spread; None takes all."""
        if most is None or check_count("most", most) >= len(self):
            return self
        return self.take(torch.arange(most) * len(self) // most)

    def places(self) -> Tensor:
        """[n] where the bytes lie that are read just before each byte that is predicted, in order."""
        sizes = self.sizes
        skipped = self.first - 1 - (sizes.cumsum(0) - sizes)  # from a prediction's number to its place
        return torch.arange(int(sizes.sum())) + skipped.repeat_interleave(sizes)

    def chunks(self, num_bytes: int) -> Iterator[slice]:
        """Neighbours that together read about so many bytes, at least one window each."""
        ends = self.reads.cumsum(0)
        start = 0
        while start < len(self):
            before = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(torch.searchsorted(ends, before + num_bytes, right=True)))
            yield slice(start, end)
            start = end

    def of_one_length(self, num_bytes: int) -> Iterator[Tensor]:
        """Numbers of windows that read equally many bytes, together at most ``num_bytes`` where there are several."""
        reads = self.reads
        for length in reads.unique().tolist():
            yield from (reads == length).nonzero().squeeze(1).split(max(1, num_bytes // length))


def lay_windows(num_bytes: int, context: int, stride: int | None = None) -> Windows:
    """Lay windows over a text of ``num_bytes``; see :func:`cut_windows`."""
    num_bytes, context = check_count("num_bytes", num_bytes, minimum=2), check_count("context", context)
    stride = context if stride is None else check_count("stride", stride)
    if stride > context:
        raise ValueError(f"stride must be at most the context, {context}, so that no byte is left out, got {stride}")
    start = torch.arange(0, max(num_bytes - 1 - (context - stride), 1), stride)
    end = (start + context + 1).clamp(max=num_bytes)
    return Windows(start, torch.cat((torch.ones(1, dtype=torch.int64), end[:-1])), end)


def cut_windows(num_bytes: int, context: int, stride: int | None = None) -> list[tuple[int, int]]:
    """Cut a text into windows that predict every byte but the first once.

    Args:
        num_bytes: bytes of the text, at least 2.
        context: bytes that a window reads; the last window is as long as what is left.
        stride: bytes from the beginning of one window to that of the next, at most ``context``; None is ``context``.

    Returns:
        (start, end) of each window in the text, ``end`` exclusive; a window predicts what lies beyond the end of the
        one before it, the first ``end - 1`` bytes.

    Example:
        >>> cut_windows(8, 3)
        [(0, 4), (3, 7), (6, 8)]
        >>> cut_windows(8, 3, stride=2)
        [(0, 4), (2, 6), (4, 8)]
    """
    windows = lay_windows(num_bytes, context, stride)
    return list(zip(windows.start.tolist(), windows.end.tolist(), strict=True))


def windows_of_texts(
    starts: Sequence[tuple[int, int]], context: int, stride: int | None = None, most: int | None = None
) -> Windows:
    """Windows of several texts that stand one after the other; none reaches from one into the next.

    Args:
        starts: (start, end) of each text.
        context: bytes that a window reads.
        stride: bytes from one window to the next.
        most: windows at most, evenly spread over all texts.
    """
    each = [(start, lay_windows(end - start, context, stride)) for start, end in starts]
    whole = Windows(*(torch.cat([getattr(w, name) + at for at, w in each]) for name in ("start", "first", "end")))
    return whole.spread(most)


def join_texts(text: str | bytes | Sequence[str | bytes]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Texts as [N] int64 with a byte 0 between them, which belongs to no word, and where each begins and ends."""
    texts = [text] if isinstance(text, (str, bytes)) else text
    if not len(texts):
        raise ValueError("text must hold at least one text, got none")
    raw, places, start = [text_to_bytes(one) for one in texts], [], 0
    for number, one in enumerate(raw):
        if len(one) < 2:
            which = f" in text {number}" if len(raw) > 1 else ""
            raise ValueError(f"text must have at least 2 bytes (one to read, one to predict), got {len(one)}{which}")
        places.append((start, start + len(one)))
        start += len(one) + 1
    return torch.frombuffer(bytearray(b"\0".join(raw)), dtype=torch.uint8).long(), places
