"""The command ``rltok``. Help, versions and mistyped commands are answered without importing torch."""

from __future__ import annotations

import importlib
import os
import sys

from rltok_rl.experiments.commands import help as option_help
from rltok_rl.experiments.commands.parsers import PARSERS

from rltok_rl.utils import did_you_mean
from rltok_rl.version import __version__

COMMANDS = {
    "train": ("rltok_rl.experiments.train", "train a boundary policy and its language model (Hydra options)"),
    "segment": ("rltok_rl.experiments.commands.segment", "show where a model ends its tokens"),
    "generate": ("rltok_rl.experiments.commands.generate", "continue a prompt, byte by byte"),
    "eval": ("rltok_rl.experiments.commands.evaluate", "measure a model on text that it was not trained on"),
    "tasks": ("rltok_rl.experiments.commands.tasks", "PIQA, HellaSwag, ARC-Easy and LAMBADA in bits per byte"),
    "lm-eval": ("rltok_rl.experiments.commands.lm_eval", "run EleutherAI's lm-evaluation-harness with a model"),
    "boundaries": (
        "rltok_rl.experiments.commands.boundaries",
        "where boundaries lie, and how far models agree about them",
    ),
    "view": (
        "rltok_rl.experiments.commands.view",
        "write an HTML page of a text, its boundaries and what each was worth",
    ),
    "report": ("rltok_rl.experiments.commands.report", "write the report of a run, or compare several"),
    "leaderboard": ("rltok_rl.experiments.commands.leaderboard", "write the page of all committed results"),
    "demo": (
        "rltok_rl.experiments.demo",
        "train boundary policies for a few minutes and see what they learned",
    ),
    "bench": ("rltok_rl.experiments.bench.__main__", "time the fast paths against their references"),
    "estimators": ("rltok_rl.experiments.studies.estimators", "measure what advantage estimators do to the gradient"),
    "rate-control": ("rltok_rl.experiments.studies.rate_control", "measure how rate controls hold their target"),
}
_PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "datasets", "hydra-core")


def info() -> str:
    """Return versions, and the devices that torch finds."""
    import platform
    from importlib.metadata import version

    import torch

    lines = [f"{'rltok_rl':<12} {__version__}", *(f"{name:<12} {version(name)}" for name in _PACKAGES)]
    lines += [f"{'Python':<12} {platform.python_version()}", f"{'threads':<12} {torch.get_num_threads()}"]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return "\n".join([*lines, f"{'GPU':<12} {device}"])


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<14}{text}" for name, (_, text) in COMMANDS.items()]
    lines.append(f"  {'info':<14}print versions and devices")
    end = "rltok COMMAND --help lists the options of a command; rltok --version prints the version."
    return "\n".join(["usage: rltok COMMAND [options]", "", *lines, "", end])


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its options follow its name."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `rltok train --help | head`
        # Python flushes standard output at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["help"] and len(given) > 1:
        given = [given[1], "--help"]
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, *rest = given
    if name in ("-V", "--version"):
        print(f"rltok {__version__}")
        return 0
    if name != "info" and name not in COMMANDS:
        commands = [*COMMANDS, "info"]
        meant = did_you_mean(name, [*commands, "--help", "--version"]) or f"; commands are {', '.join(commands)}"
        print(f"rltok: {name!r} is not a command{meant}", file=sys.stderr)
        return 2
    if name == "info":
        PARSERS[name]().parse_args(rest)
        print(info())
        return 0
    if asks_for_help(name, rest):
        print(option_help.PAGES[name]())
        return 0
    if name in ("train", "estimators") and (message := wrong_options(name, rest)):
        print(f"rltok {name}: {message}", file=sys.stderr)
        return 1
    if name in PARSERS:
        PARSERS[name]().parse_args(rest)  # help, or what is wrong with the options, before anything is imported
    try:
        module = importlib.import_module(COMMANDS[name][0])
        sys.argv = [f"rltok {name}", *rest]  # Hydra and argparse read their options here
        return module.main() or 0
    except KeyboardInterrupt:  # where nothing is to be saved
        return 130


def wrong_options(name: str, arguments: list[str]) -> str | None:
    """Return what is wrong with the options of a Hydra command, as far as it can be said without torch.

    Args:
        name: of the command.
        arguments: that follow it.
    """
    from rltok_rl.experiments.commands.options import check_arguments
    from rltok_rl.experiments.config import TrainConfig
    from rltok_rl.experiments.studies.options import Study

    try:
        check_arguments(arguments, TrainConfig if name == "train" else Study)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def asks_for_help(name: str, arguments: list[str]) -> bool:
    """Whether to print a help page of ours; argparse and the harness's sub-commands have their own.

    Args:
        name: of the command.
        arguments: that follow it.
    """
    flags = arguments[:1] if name == "lm-eval" else arguments
    return name in option_help.PAGES and any(one in ("-h", "--help") for one in flags)


if __name__ == "__main__":
    sys.exit(main())
