"""Modules run as programs in processes that start with everything imported: torch and torchrl take seconds to load.

Python's fork server loads them once. A process that it forks is separate in all else: memory, signals, locks of files,
and a SIGKILL that ends it at any moment.
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

# All imports of a run, without the module that is run: it is loaded anew under the name __main__.
_LOADED = ["pytest", "numba", "hydra.main", "torch.distributed", "torch._dynamo", "torchrl.modules", "jinja2"]
_LOADED += ["matplotlib.pyplot", "matplotlib.backends.backend_agg"]
_LOADED += [f"rltok_rl.experiments.{name}" for name in ("runs.run", "reports.run_report", "compare.systems")]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*_LOADED, "tests.fixed_text", "tests.warm"])


class Forked:
    """``python -m module arguments`` in a forked process, with a part of the interface of ``subprocess.Popen``.

    Output goes to the files ``out`` and ``err``, or all to ``err``. Only a process that is no daemon may start others.
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
        daemon: bool = True,
    ) -> None:
        passed = (module, list(arguments), str(out or err), str(err), str(cwd or Path.cwd()), quiet)
        passed += ({**os.environ, **(environment or {})},)
        self.process = CONTEXT.Process(target=_run, args=passed, daemon=daemon)
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.process.kill()
        self.process.join()


def run_forked(
    module: str, *arguments: str, cwd: Path | None = None, timeout: float = 120.0, **options
) -> CompletedProcess[str]:
    """Run to the end, as :func:`subprocess.run` does."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        with Forked(module, arguments, out=out, err=err, cwd=cwd, **options) as process:
            status = process.wait(timeout)
        return CompletedProcess([module, *arguments], status, out.read_text(), err.read_text())


def run_code(command: Sequence[str], *, env: Mapping[str, str] | None = None, **_) -> CompletedProcess[str]:
    """Stand in for :func:`subprocess.run` with ``[sys.executable, "-c", code]``."""
    python, option, code = command
    assert (python, option) == (sys.executable, "-c")
    return run_forked("tests.program", code, environment=env)


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
