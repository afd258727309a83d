"""Stop requests by SIGTERM, Ctrl-C, and the signals that schedulers send before a limit."""

from __future__ import annotations

import os
import signal
from types import FrameType

_ENDING = ("SIGTERM", "SIGINT")
_WARNINGS = ("SIGHUP", "SIGUSR1", "SIGXCPU")


class StopRequest:
    """Records the first SIGTERM or Ctrl-C, so that a loop can finish its update and save; a second one ends at once.

    SIGHUP, SIGUSR1 and SIGXCPU are recorded too, and may be repeated, as SIGXCPU is every second. One of them that the
    program ignores or handles already (``nohup``, a launcher) is left to it.

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
        for name in (*_ENDING, *_WARNINGS):
            number = getattr(signal, name, None)  # Windows has fewer
            if number is not None and (name in _ENDING or signal.getsignal(number) is signal.SIG_DFL):
                self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore([*self._handlers])

    def _restore(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self._handlers:
                signal.signal(number, self._handlers.pop(number))  # type: ignore[arg-type]

    def _record(self, number: int, frame: FrameType | None) -> None:
        first, self.signal = self.signal is None, self.signal or number
        ends = signal.Signals(number).name in _ENDING
        if ends:
            self._restore([signal.SIGTERM, signal.SIGINT])
        if self._say and (first or ends):  # past Python's buffers, which the signal may have interrupted
            again = "; again ends at once" if ends else ""
            name = signal.Signals(number).name
            try:
                os.write(2, f"\n{name}: stopping after this step and a save{again}\n".encode())
            except OSError:  # SIGHUP: the terminal is gone, and writing to it would fail before the save
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
