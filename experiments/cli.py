"""The command ``rltok``: one word for each thing that can be run."""

from __future__ import annotations

import importlib
import platform
import sys
from importlib.metadata import version

from rltok_rl.version import __version__

COMMANDS = {
    "train": ("rltok_rl.experiments.train", "train a boundary policy and its language model (Hydra options)"),
    "segment": ("rltok_rl.experiments.segment", "show where a model ends its tokens"),
    "generate": ("rltok_rl.experiments.generate", "write on from a prompt, byte by byte"),
    "eval": ("rltok_rl.experiments.evaluate", "measure a model on text that it was not trained on"),
    "tasks": ("rltok_rl.experiments.tasks", "PIQA, HellaSwag, ARC-Easy and LAMBADA in bits per byte"),
    "lm-eval": ("rltok_rl.experiments.harness", "run EleutherAI's lm-evaluation-harness with a model"),
    "boundaries": ("rltok_rl.experiments.boundaries", "where boundaries lie, and how far models agree about them"),
    "view": ("rltok_rl.experiments.view", "make a page to look around in: a text, its boundaries, what each was worth"),
    "report": ("rltok_rl.experiments.report", "write the report of a run, or compare several"),
    "leaderboard": ("rltok_rl.experiments.leaderboard", "write the page of all committed results"),
    "demo": (
        "rltok_rl.experiments.demo",
        "a first look: train boundary policies for a few minutes, see what they learned",
    ),
    "bench": ("rltok_rl.experiments.bench.__main__", "time the fast paths against their references"),
    "estimators": ("rltok_rl.experiments.studies.estimators", "what advantage estimators do to the gradient"),
    "rate-control": ("rltok_rl.experiments.studies.rate_control", "how rate controls hold their target"),
}
_PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "datasets", "hydra-core")


def info() -> str:
    """Versions, and what torch sees of this machine."""
    import torch

    lines = [f"{'rltok_rl':<12} {__version__}", *(f"{name:<12} {version(name)}" for name in _PACKAGES)]
    lines += [f"{'Python':<12} {platform.python_version()}", f"{'threads':<12} {torch.get_num_threads()}"]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return "\n".join([*lines, f"{'GPU':<12} {device}"])


def usage() -> str:
    """What can be run."""
    lines = [f"  {name:<14}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: rltok COMMAND [options]", "", *lines, f"  {'info':<14}versions and devices"])


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its options follow its name."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, *rest = given
    if name == "info":
        print(info())
        return 0
    if name not in COMMANDS:
        print(f"rltok: {name!r} is not a command; allowed are {[*COMMANDS, 'info']}\n\n{usage()}", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(COMMANDS[name][0])
        sys.argv = [f"rltok {name}", *rest]  # Hydra and argparse read their options here
        return module.main() or 0
    except KeyboardInterrupt:  # where nothing is to be saved
        return 130


if __name__ == "__main__":
    sys.exit(main())
