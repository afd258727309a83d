"""Stop requests by SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
from types import FrameType


class StopRequest:
    """Records the first SIGTERM or Ctrl-C, so that a loop can finish its update and save; a second one ends at once.

        with StopRequest() as stop:
            trainer.run(lambda metrics: bool(stop))

    After the block, signals have their former handlers. With ``say``, a line is printed when the signal arrives.
    """

    def __init__(self, *, say: bool = False) -> None:
        self.signal: int | None = None
        self._say = say
        self._handlers: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        """Name of the signal; empty before it."""
        return "" if self.signal is None else signal.Signals(self.signal).name

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        if self._say:  # past Python's buffers, which the signal may have interrupted
            os.write(2, f"\n{self.name}: stopping after this step and a save; again ends at once\n".encode())
