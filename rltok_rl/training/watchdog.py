"""Find a rank that hangs while others wait for it, name it, and end the job.

In each rank, a thread inspects the main thread nine times in ``seconds`` and publishes a heartbeat. A rank is hung if,
for ``seconds``, it neither computes nor waits for others, or publishes no heartbeat. A rank that has waited for it as
long reports it and exits, and torchrun ends or restarts the job. If the hung process runs on the same machine and may
be stopped, it is killed first, because torchrun would wait for it.

Slow work is not a hang: while one rank downloads, evaluates or saves, the others wait outside collectives
(``Processes.meet``). They exit only if that rank publishes no heartbeat or all its threads are idle; even a slow
download wakes a thread. A rank that compiles, perhaps in other processes, counts as computing.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import cast

from torch.distributed import Store
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

_BEATS = 9  # heartbeats in ``seconds``; a verdict needs so many equal ones in a row
_IDLE = 0.01  # largest share of a processor that an idle rank uses
_STILL = 2e-5  # largest share that a thread uses if it does not even receive data
# Parts of frames as "path function, line".
# Innermost frames of a main thread that waits for other ranks in a collective:
_COLLECTIVES = ("torch/distributed/", "training/metrics.py fetch", "training/distributed.py mean")
_CALLED_THROUGH = "_fully_shard.py wrapped_method"  # FSDP2 calls the model's methods through it
# Frames of a main thread that waits outside collectives:
_MEETING = "training/distributed.py meet"
# Frames of a compiler, in any thread:
_COMPILING = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
# Frames of slow disks and of libraries with their own timeouts, in any thread:
_PATIENT = ("data/disk.py flush", "/huggingface_hub/", "/wandb/")


@contextmanager
def watching(store: Store, rank: int, world_size: int, seconds: float) -> Iterator[None]:
    """Watch the ranks in the block, which is run by the main thread."""
    watchdog = Watchdog(store.clone() if hasattr(store, "clone") else store, rank, world_size, seconds)
    watchdog.beat()  # at once, so that others miss this rank even if it ends before the thread's first heartbeat
    left = threading.Event()

    def watch() -> None:
        while not left.wait(seconds / _BEATS):
            try:
                verdict = watchdog.beat()
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
    """Heartbeat of this rank's main thread, and the last heartbeats of the others."""

    store: Store
    rank: int
    world_size: int
    seconds: float
    _beats: int = 0
    _idle: int = 0  # heartbeats in a row with an idle main thread
    _still: int = 0  # heartbeats in a row with all threads idle
    _waiting: int = 0  # heartbeats in a row with a main thread that waits for other ranks
    _meeting: bool = False  # outside a collective
    _processor: float = 0.0
    _threads: dict[str, int] = field(default_factory=dict)
    _ignored: set[str] = field(default_factory=lambda: {*_nanoseconds()} - {str(os.getpid())})  # of process groups
    _seen: list[bytes] = field(default_factory=list)
    _silent: list[int] = field(default_factory=list)  # heartbeats missed in a row, by rank
    _dead: int | None = None  # the rank without heartbeats

    def __post_init__(self) -> None:
        self.store.set(f"process {self.rank}", f"{_starter()} {os.getpid()}")

    def beat(self) -> str | None:
        """Publish a heartbeat; return the verdict on a hung rank, "" if another rank has reported one, else None."""
        main, threads = _frames()
        # Without the time of this thread, which on a slow machine alone would look busy if heartbeats follow closely.
        before, self._processor = self._processor, time.process_time() - time.thread_time()
        busy = self._processor - before > _IDLE * self.seconds / _BEATS
        moving = self._any_thread_moves()
        inner = [frame for frame in main[:4] if _CALLED_THROUGH not in frame]
        waiting = any(part in frame for part in _COLLECTIVES for frame in inner)
        met, self._meeting = self._meeting, any(_MEETING in frame for frame in main)
        compiling, patient = (any(part in f for part in parts for f in threads) for parts in (_COMPILING, _PATIENT))
        self._waiting = (self._waiting if met == self._meeting else 0) + 1 if waiting or self._meeting else 0
        self._idle = 0 if self._waiting or busy or compiling else self._idle + 1
        self._still = 0 if not self._idle or moving or patient else self._still + 1
        self._beats += 1
        self.store.set(f"{self.rank}", f"{self._beats} {self._idle} {self._still} {' < '.join(main[:3])}")
        if self.store.check(["verdict"]):
            return ""
        return self._judge() if self._waiting else None

    def _any_thread_moves(self) -> bool:
        """Whether a thread began, ended or ran since the last heartbeat; True on systems without ``/proc``."""
        ignored = {*self._ignored, str(threading.get_native_id())}
        before, self._threads = self._threads, {n: ran for n, ran in _nanoseconds().items() if n not in ignored}
        least = _STILL * 1e9 * self.seconds / _BEATS
        same = before.keys() == self._threads.keys() != set()
        return not same or any(ran - before[name] > least for name, ran in self._threads.items())

    def _judge(self) -> str | None:
        keys = [f"{rank}" for rank in range(self.world_size)]
        if not self.store.check(keys):  # a rank that has not begun
            return None
        news = [self.store.get(key) for key in keys]
        if self._waiting == 1 or not self._seen:
            self._seen, self._silent = news, [0] * self.world_size
        for rank, line in enumerate(news):
            self._silent[rank] = self._silent[rank] + 1 if line == self._seen[rank] else 0
            _, idle, still, place = line.decode().split(" ", 3)
            idle_beats = int(still if self._meeting else idle)
            if self._waiting > _BEATS and max(idle_beats, self._silent[rank]) >= _BEATS:
                what = f"has computed nothing, in {place}" if idle_beats >= _BEATS else "has given no sign of life"
                first = self.store.add("verdict", 1) == 1
                self._dead = rank if first and idle_beats < _BEATS else None
                who = f"rank {rank} of {self.world_size} hangs"
                return f"{who}: for {self.seconds:g} seconds it {what}, while others wait for it" if first else ""
        self._seen = news
        return None

    def end(self, verdict: str) -> None:
        """Exit because of a hung rank, without the main thread, which may never return."""
        if verdict:
            print(f"rltok train: {verdict}", file=sys.stderr, flush=True)
            get_error_handler().record_exception(RuntimeError(verdict))
            self._kill_dead()
        os._exit(1)

    def _kill_dead(self) -> None:
        """Kill the rank without heartbeats, which may be stopped, if the same torchrun started it."""
        if self._dead is not None:
            starter, process = self.store.get(f"process {self._dead}").decode().rsplit(" ", 1)
            if starter == _starter():
                with suppress(OSError):  # it has ended
                    os.kill(int(process), signal.SIGKILL)


def _starter() -> str:
    """Name of the parent process, unique across machines and containers."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        space = ""
    return f"{socket.gethostname()} {space} {os.getppid()}"


def _nanoseconds() -> dict[str, int]:
    """Return the time on a processor of each thread of this process; nothing on systems without ``/proc``."""
    times = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended
            times[path.parent.name] = int(path.read_text().split()[0])
    return times


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
