"""Several rows that read one text."""

from __future__ import annotations

import torch

from rltok_rl.data.windows import Places, WindowSource, WindowWrapper


class RepeatedSource(WindowWrapper):
    """Windows of another source, each dealt to several rows in succession.

    Rows that read one text with boundaries of their own differ by what the boundaries did alone, which is what
    the baseline ``group_mean`` compares.

    Args:
        source: where windows come from.
        times: rows per window.

    Example:
        >>> from rltok_rl.data import TextSource
        >>> source = RepeatedSource(TextSource("to be or not to be"), times=2)
        >>> windows = source.draw(4, 8, torch.Generator().manual_seed(0))
        >>> bool((windows.byte_ids[0::2] == windows.byte_ids[1::2]).all())
        True
    """

    def __init__(self, source: WindowSource, times: int) -> None:
        super().__init__(source)
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        self.times = times

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Let the source pick, and name each place ``times`` times.

        Args:
            num_rows: a multiple of ``times``.
            length: bytes of each window, at least 2.
            generator: source of the random numbers.
        """
        if num_rows % self.times:
            raise ValueError(f"num_rows must be a multiple of times={self.times}, got {num_rows}")
        places = self.source.pick(num_rows // self.times, length, generator)
        return Places(*(x.repeat_interleave(self.times) for x in (places.document, places.offset)))
