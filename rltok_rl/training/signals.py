"""Being asked to stop: finish the update, save, leave."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType


class StopRequest:
    """Turns the first SIGTERM or Ctrl-C into a wish that the loop can look at; a second one ends at once.

        with StopRequest() as stop:
            trainer.run(lambda figures: bool(stop))

    Outside the block signals mean what they meant before.

    Args:
        say: whether to write a line that the wish was heard: what is under way may take a while.
    """

    def __init__(self, *, say: bool = False) -> None:
        self.signal: int | None = None
        self._say = say
        self._before: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        """Of the signal that came."""
        return "" if self.signal is None else signal.Signals(self.signal).name

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()  # the next one does what it always does
        if self._say:
            # Past the buffers of Python, which the signal may have found half written.
            os.write(
                2, f"\n{self.name}: stopping when what is under way is done and saved; again ends at once\n".encode()
            )

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]
