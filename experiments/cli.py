"""The command ``rltok``. Help, versions and mistyped commands are answered without importing torch."""

from __future__ import annotations

import importlib
import platform
import sys
from importlib.metadata import version
from typing import Any

from rltok_rl.experiments.commands import help as option_help
from rltok_rl.experiments.commands.parsers import OPTIONS, make_parser, quiet
from rltok_rl.experiments.commands.schema import HERE, module_doc

from rltok_rl.utils import did_you_mean
from rltok_rl.version import __version__

COMMANDS = {
    "train": ("train", "train a boundary policy and its language model (Hydra options)"),
    "segment": ("commands.segment", "show where a model ends its tokens"),
    "generate": ("commands.generate", "continue a prompt, byte by byte"),
    "eval": ("commands.evaluate", "measure a model on text that it was not trained on"),
    "tasks": ("commands.tasks", "PIQA, HellaSwag, ARC-Easy and LAMBADA in bits per byte"),
    "lm-eval": ("commands.lm_eval", "run EleutherAI's lm-evaluation-harness with a model"),
    "boundaries": ("commands.boundaries", "measure where boundaries lie and how far models agree"),
    "view": ("commands.view", "write an HTML page of a text, its boundaries and their rewards"),
    "play": ("commands.play", "evaluate a policy in a gymnasium environment, against a reference"),
    "sweep": ("sweep", "train every combination of options over several seeds, in parallel, and compare the runs"),
    "report": ("commands.report", "write the report of a run, or compare several"),
    "check": ("commands.check", "find damage in the folder of a run"),
    "leaderboard": ("commands.leaderboard", "write the page of all committed results"),
    "demo": ("demo.__main__", "train boundary policies for a few minutes and see what they learned"),
    "bench": ("bench.__main__", "time the fast paths against their references"),
    "credit": ("studies.credit", "show the advantage of each decision of a text next to its counterfactual truth"),
    "estimators": ("studies.estimators", "measure what advantage estimators do to the gradient"),
    "suite": ("studies.suite", "compare estimators on ten tasks with known optima, with intervals and paired tests"),
    "rate-control": ("studies.rate_control", "measure how rate controls hold their target"),
    "info": ("cli", "print versions and devices"),
}
"""Module below ``rltok_rl.experiments`` and description, by command."""


def info() -> str:
    """Return versions, and the devices that torch finds."""
    import torch

    names = ("torch", "torchrl", "tensordict", "gymnasium", "datasets", "hydra-core")
    lines = {"rltok_rl": __version__, **{name: version(name) for name in names}}
    lines |= {"Python": platform.python_version(), "threads": str(torch.get_num_threads())}
    lines |= {"GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none"}
    return "\n".join(f"{name:<12} {value}" for name, value in lines.items())


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<14}{text}" for name, (_, text) in COMMANDS.items()]
    end = "rltok COMMAND --help lists the options of a command; rltok --version prints the version."
    return "\n".join(["usage: rltok COMMAND [options]", "", *lines, "", end])


@quiet
def main(arguments: list[str] | None = None) -> int:
    """Run a command; its options follow its name."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help", "-V", "--version"):
        print(f"rltok {__version__}" if name in ("-V", "--version") else usage())
        return 0
    if name not in COMMANDS:
        suggestion = did_you_mean(name, [*COMMANDS, "--help", "--version"]) or f"; commands are {', '.join(COMMANDS)}"
        print(f"rltok: {name!r} is not a command{suggestion}", file=sys.stderr)
        return 2
    flags = rest[:1] if name == "lm-eval" else rest  # the harness's sub-commands have help of their own
    if name in option_help.PAGES and {"-h", "--help"} & {*flags}:
        print(option_help.PAGES[name]())
        return 0
    (module, text), checked = COMMANDS[name], []
    if name in ("train", "estimators"):
        try:
            checked = [_read_run_options(name, rest)]
        except ValueError as error:
            print(f"rltok {name}: {error}", file=sys.stderr)
            return 1
    elif name in OPTIONS:  # answers --help and wrong options before anything is imported
        file = HERE / f"{module.replace('__main__', '__init__').replace('.', '/')}.py"
        make_parser(name, text if name == "info" else module_doc(file)).parse_args(rest)
    if name == "info":
        print(info())
        return 0
    sys.argv = [f"rltok {name}", *rest]  # Hydra and argparse read their options here
    return importlib.import_module(f"rltok_rl.experiments.{module}").main(*checked) or 0


def _read_run_options(name: str, arguments: list[str]) -> Any:
    """Check the options of a Hydra command without importing torch."""
    from rltok_rl.experiments.commands.run_checks import read_run_options
    from rltok_rl.experiments.studies import estimator_options  # noqa: F401  registers its schema

    return read_run_options(name, arguments)


if __name__ == "__main__":
    sys.exit(main())
