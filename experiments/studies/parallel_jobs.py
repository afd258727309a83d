"""Jobs in several processes with one thread each: progress, ETA, and failures that do not stop the others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from threading import Thread
from typing import Any, NamedTuple

from rltok_rl.experiments.studies.common import StepLines

Work = Callable[[Any], str]
"""Does a job, and returns a note for its line of progress."""
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}
"""Environment of a process beside others."""
_stopping: Event | None = None  # of a worker: set if no other job may begin


class Outcome(NamedTuple):
    """How a job ended."""

    job: Any
    note: str
    failed: bool


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    label: str, work: Work, jobs: Sequence[Any], *, total: int, workers: int = 0, noun: str = "cells"
) -> list[str]:
    """Run the missing jobs of ``total``, ``workers`` at a time, and return a line for each that failed.

    ``workers=0`` is one process per core, and 1 is this process. ``str(job)`` is its name; ``noun`` names jobs
    in lines of progress.
    """
    if not jobs:
        return []
    workers = min(workers or num_cores(), len(jobs))
    print(f"{len(jobs)} of {total} {noun} to train, {workers} at a time", file=sys.stderr)
    failed: list[str] = []
    progress = StepLines(label)
    for done, (job, note, broken) in enumerate(_outcomes(work, jobs, workers), 1):
        failed += [f"{job}: {note}"] if broken else []
        speed = 3600 * done / (time.perf_counter() - progress.start) / workers
        progress(done, len(jobs), f" {job}{' failed' * broken}: {note}; {speed:.0f} {noun} per core-hour")
    return failed


def _attempt(work: Work, job: Any) -> Outcome:
    try:
        return Outcome(job, work(job), failed=False)
    except Exception as error:
        return Outcome(job, f"{type(error).__name__}: {error}", failed=True)


def _start_worker(stopping: Event) -> None:
    global _stopping
    _stopping = stopping
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent is gone: it would go on with the jobs that it has queued."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _attempt_in_worker(work: Work, job: Any) -> Outcome:
    """Do a job unless one was asked to stop: the pool gives workers jobs in advance, which it cannot take back."""
    assert _stopping is not None
    if _stopping.is_set():
        return Outcome(job, "not begun, because another one was asked to stop", failed=True)
    try:
        return _attempt(work, job)
    except SystemExit:  # it was asked to stop, and has saved
        _stopping.set()
        raise


def _outcomes(work: Work, jobs: Sequence[Any], workers: int) -> Iterator[Outcome]:
    """Run jobs, in this process or in several; yield how each ended."""
    if workers == 1:
        yield from (_attempt(work, job) for job in jobs)
        return
    os.environ |= ONE_THREAD  # read when a worker starts; more threads than cores slow all workers down
    context = get_context("spawn")
    stopping = context.Event()
    with ProcessPoolExecutor(workers, context, _start_worker, (stopping,)) as pool:
        futures = {pool.submit(_attempt_in_worker, work, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                error = future.exception()  # of a worker that was killed
                if isinstance(error, SystemExit):
                    raise error
                killed = Outcome(futures[future], f"{type(error).__name__}: {error}", failed=True)
                yield future.result() if error is None else killed
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
