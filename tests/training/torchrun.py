"""torchrun whose workers are forks of it: they need not import torch anew. Run it with :class:`..forked.Forked`."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

from torch.distributed import run

_read = run.config_from_args


def work(_unbuffered: str, _m: str, module: str, *arguments: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torch raises an error for it in functions, not in programs
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def forking(args: Any) -> tuple[Any, Any, list[str]]:
    config, _, arguments = _read(args)
    config.start_method = "fork"
    return config, work, arguments


if __name__ == "__main__":
    os.setsid()  # nothing outlives the test, which kills the group
    run.config_from_args = forking
    run.main()
