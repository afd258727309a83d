"""Modules run as programs in processes that begin with everything imported: torch and torchrl take seconds to load.

The fork server of Python loads them once; a process that it makes is one of its own in all else: memory, signals, files
that it claims, a SIGKILL that ends it at any moment.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from types import TracebackType

# All that a training imports, but not what is run: that is loaded anew under the name __main__.
_LOADED = ["pytest", "numba", "hydra", "torch.distributed", "torch._dynamo", "torchrl.modules"]
_LOADED += [f"rltok_rl.experiments.{name}" for name in ("runs.run", "reports.run_report", "compare.systems")]
#: For what takes a context of multiprocessing, or the name of one, ``forkserver``.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*_LOADED, "tests.fixed_text"])


class Forked:
    """``python -m module arguments``, as far as it can be told from outside; what it says goes to files.

    Args:
        module: to run.
        arguments: of its command line.
        out: a file for what it prints; by default with the errors.
        err: a file for errors.
        cwd: where it runs; by default here.
        environment: variables that are set there, beside those that are set here.
        quiet: no warnings, as with ``-W ignore``.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        err: Path,
        out: Path | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        given = (module, list(arguments), str(out or err), str(err), str(cwd or Path.cwd()), quiet)
        self.process = CONTEXT.Process(target=_run, args=(*given, {**os.environ, **(environment or {})}), daemon=True)
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        """As of :class:`subprocess.Popen`: less than 0 for a signal."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, once it has."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.process.kill()
        self.process.join()


def run_forked(
    module: str,
    *arguments: str,
    cwd: Path | None = None,
    timeout: float = 120.0,
    environment: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> CompletedProcess[str]:
    """Run to the end, as :func:`subprocess.run` does; arguments as of :class:`Forked`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        more = {"cwd": cwd, "environment": environment, "quiet": quiet}
        with Forked(module, arguments, out=out, err=err, **more) as process:
            ended = process.wait(timeout)
        return CompletedProcess([module, *arguments], ended, out.read_text(), err.read_text())


def _run(
    module: str, arguments: list[str], out: str, err: str, cwd: str, quiet: bool, environment: dict[str, str]
) -> None:
    for name, stream in ((out, 1), (err, 2)):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, stream)
        os.close(opened)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = [module, *arguments]
    if quiet:
        warnings.simplefilter("ignore")
    runpy.run_module(module, run_name="__main__", alter_sys=True)
