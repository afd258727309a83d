"""Find a rank that hangs while others wait for it in a collective, name it, and end the job.

In each rank, a thread looks at the main thread nine times in ``seconds`` and publishes what it sees. A rank hangs if it
computes nothing for ``seconds`` and waits for no other, or if it publishes nothing. A rank that waits for it in a
collective for as long says so and exits, whereupon torchrun ends or restarts all ranks.

Slow work is no hang: while one rank downloads, evaluates or saves, the others wait outside collectives
(``Processes.meet``), and a rank that compiles, perhaps in other processes, counts as computing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import cast

from torch.distributed import Store
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

_LOOKS = 9  # that must all find the same
_IDLE = 0.01  # share of a processor that a rank uses at most if it computes nothing
# Parts of "path function, line": of the innermost frames of a main thread that waits for other ranks in a collective,
_COLLECTIVES = ("torch/distributed/", "training/metrics.py fetch", "training/distributed.py mean")
_CALLED_THROUGH = "_fully_shard.py wrapped_method"  # FSDP2 calls the model's methods through it
# of any frame of a main thread that waits outside collectives, and of any thread that compiles.
_MEETING = "training/distributed.py meet"
_COMPILING = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")


@contextmanager
def watching(store: Store, rank: int, world_size: int, seconds: float) -> Iterator[None]:
    """Watch the ranks in the block, which is run by the main thread."""
    watchdog = Watchdog(store.clone() if hasattr(store, "clone") else store, rank, world_size, seconds)
    left = threading.Event()

    def watch() -> None:
        while not left.wait(seconds / _LOOKS):
            try:
                verdict = watchdog.look()
            except RuntimeError:  # the store is gone, and with it the job
                return
            if verdict is not None and not left.is_set():
                watchdog.end(verdict)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join(timeout=1.0)


@dataclass
class Watchdog:
    """What a rank publishes of its main thread, and has seen of others."""

    store: Store
    rank: int
    world_size: int
    seconds: float
    _looks: int = 0
    _idle: int = 0  # looks in a row that found the main thread idle
    _waiting: int = 0  # looks in a row that found it in a collective
    _processor: float = 0.0
    _seen: list[bytes] = field(default_factory=list)
    _silent: list[int] = field(default_factory=list)  # looks in a row without news, by rank

    def look(self) -> str | None:
        """Publish what the main thread does; return the verdict on a rank that hangs, "" if another rank has one."""
        main, threads = _frames()
        before, self._processor = self._processor, time.process_time()
        busy = self._processor - before > _IDLE * self.seconds / _LOOKS
        inner = [frame for frame in main[:4] if _CALLED_THROUGH not in frame]
        waiting = any(part in frame for part in _COLLECTIVES for frame in inner)
        slow = any(_MEETING in frame for frame in main) or any(part in f for part in _COMPILING for f in threads)
        self._waiting = self._waiting + 1 if waiting else 0
        self._idle = 0 if waiting or busy or slow else self._idle + 1
        self._looks += 1
        self.store.set(f"{self.rank}", f"{self._looks} {self._idle} {' < '.join(main[:3])}")
        if self.store.check(["verdict"]):
            return ""
        return self._judge() if self._waiting else None

    def _judge(self) -> str | None:
        keys = [f"{rank}" for rank in range(self.world_size)]
        if not self.store.check(keys):  # a rank that has not begun
            return None
        news = [self.store.get(key) for key in keys]
        if self._waiting == 1 or not self._seen:
            self._seen, self._silent = news, [0] * self.world_size
        for rank, line in enumerate(news):
            self._silent[rank] = self._silent[rank] + 1 if line == self._seen[rank] else 0
            _, idle, place = line.decode().split(" ", 2)
            if self._waiting > _LOOKS and max(int(idle), self._silent[rank]) >= _LOOKS:
                what = f"has computed nothing, in {place}" if int(idle) >= _LOOKS else "has given no sign of life"
                first = self.store.add("verdict", 1) == 1
                who = f"rank {rank} of {self.world_size} hangs"
                return f"{who}: for {self.seconds:g} seconds it {what}, while others wait for it" if first else ""
        self._seen = news
        return None

    def end(self, verdict: str) -> None:
        """Exit because of a rank that hangs, without the main thread, which may never return."""
        if verdict:
            print(f"rltok train: {verdict}", file=sys.stderr, flush=True)
            get_error_handler().record_exception(RuntimeError(verdict))
        os._exit(1)


def _frames() -> tuple[list[str], list[str]]:
    """Frames as "path function, line", innermost first: of the main thread, and of all threads."""
    main: list[str] = []
    threads: list[str] = []
    for thread, top in sys._current_frames().items():
        stack, frame = [], cast("FrameType | None", top)
        while frame is not None:
            stack.append(_label(frame))
            frame = frame.f_back
        threads += stack
        if thread == threading.main_thread().ident:
            main = stack
    return main, threads


def _label(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.replace(os.sep, '/')} {frame.f_code.co_name}, line {frame.f_lineno}"
