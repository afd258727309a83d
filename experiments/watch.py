"""How far a command is, said where it takes long."""

from __future__ import annotations

import time

from rltok_rl.functional.likelihood import bits_per_byte
from rltok_rl.training.progress import Progress

_PATIENCE = 2.0  # seconds before a word on how far it is


class Watch:
    """Times a reading, and says on standard error how far it is where it takes long."""

    def __init__(self) -> None:
        self.start, self.done = time.perf_counter(), 0
        self.seconds = 0.0  # from the start to the last word on it
        self._shown: Progress | None = None

    def __call__(self, done: int, total: int, nats: float | None = None) -> None:
        """Take note of bytes that have been read, of how many, and what predicting them cost."""
        self.done, self.seconds = done, time.perf_counter() - self.start
        if self.seconds < _PATIENCE:
            return
        if self._shown is None:
            if done == total:
                return  # a word on what is over already helps nobody
            self._shown = Progress(total)
            self._shown.start = self.start
        self._shown.show({} if nats is None else {"bits_per_byte": float(bits_per_byte(nats, done))}, done)

    @property
    def bytes_per_second(self) -> float:
        """Bytes read so far, of all readings."""
        return self.done / self.seconds
