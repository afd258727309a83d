"""Load what the commands share: models, texts and colours as named on a command line."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rltok_rl.agents.segmenters import Segmenter, load_segmenter

from rltok_rl.functional.likelihood import bits_per_byte
from rltok_rl.models import UNet
from rltok_rl.models.heads import row_rates
from rltok_rl.models.pretrained import model_folder
from rltok_rl.training.progress import Progress
from rltok_rl.utils import read_config_file


def check_rate(
    parser: argparse.ArgumentParser, options: argparse.Namespace, model: UNet, segmenter: Segmenter | None
) -> None:
    """End the command if a rate is given and nothing would follow it."""
    if options.rate is None:
        return
    if segmenter is not None:
        parser.error(f"argument --rate: belongs to learned policies, got {type(segmenter).__name__}")
    if not model.config.rate_embedding:
        parser.error(
            f"argument --rate: needs a model with rate_embedding, got one of a single rate, {model.config.target_rate}"
        )
    try:
        row_rates(model.config, options.rate, torch.zeros(1))
    except ValueError as error:
        parser.error(f"argument --rate: {without_subject(error, 'target_rate')}")


def model_argument(options: argparse.Namespace) -> str:
    """The model as the command's help calls it: ``MODEL``, or ``--model`` where that is an option."""
    return getattr(options, "model_argument", "MODEL")


def without_subject(error: Exception, *names: str) -> str:
    """Drop the name of a Python parameter from the start of a message, where the option is named already.

    Args:
        error: whose message it is.
        names: of parameters.

    Example:
        >>> without_subject(ValueError("source must be a folder, got 'x'"), "source", "path")
        "must be a folder, got 'x'"
    """
    text = str(error)
    return next((text[len(name) + 1 :] for name in names if text.startswith(f"{name} must ")), text)


def load_model(parser: argparse.ArgumentParser, options: argparse.Namespace) -> UNet:
    """The model that was named; what is wrong with it ends the command."""
    try:
        device = torch.device(options.device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"argument --device: {options.device!r} cannot be used: {str(error).splitlines()[0]}")
    run = Path(options.model)
    if (run / "config.yaml").is_file() and not any((run / at / "config.json").is_file() for at in ("", "model")):
        ended = (run / "summary.json").is_file()
        why = (
            "whose model was left out"
            if ended
            else "without a model yet; it is written when the run ends or is asked to stop"
        )
        parser.error(f"argument {model_argument(options)}: {options.model} is a run {why}")
    try:
        return UNet.from_pretrained(options.model, device=device)
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"argument {model_argument(options)}: {without_subject(error, 'source')}")


def find_segmenter(parser: argparse.ArgumentParser, options: argparse.Namespace, model: UNet) -> Segmenter | None:
    """Load the segmenter of the named model; None is its own policy, as of all models of the hub."""
    try:
        folder = model_folder(options.model)
        segmenter = None
        if folder is not None:
            segmenter = load_segmenter(folder, model, options.trust_code) or _rule_of_run(folder, model)
    except (OSError, ValueError, ImportError) as error:
        parser.error(f"argument {model_argument(options)}: {without_subject(error, 'source')}")
    if segmenter is not None and segmenter.draws_at_random and options.greedy:
        parser.error(f"argument --greedy: belongs to learned policies, got {type(segmenter).__name__}")
    return segmenter


def load_with_segmenter(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[UNet, Segmenter | None]:
    """The model that was named and who draws its boundaries, by the options that say how; None is its own policy."""
    model = load_model(parser, options)
    segmenter = find_segmenter(parser, options, model)
    check_rate(parser, options, model, segmenter)
    return model, segmenter


def _rule_of_run(folder: Path, model: UNet) -> Segmenter | None:
    """Return the rule of a run whose version did not write it beside the model; None if a policy was learned."""
    path = folder.parent / "config.yaml"
    if folder.name != "model" or not path.is_file():
        return None
    config = read_config_file(path)
    name = (config.get("segmenter") or {}).get("name", "learned")
    if name != "learned":
        raise ValueError(f"{folder} must hold segmenter.json, because {path} names the segmenter {name!r}")
    actor = config.get("actor") or {"name": "learned"}
    if actor["name"] == "learned":
        return None
    from rltok_rl.experiments.runs.segmenters import actor_segmenter  # what it needs takes seconds to import

    try:
        return actor_segmenter(actor["name"], actor.get("rate"), model)[0].eval()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_bytes(parser: argparse.ArgumentParser, name: str, *, least: int = 1) -> bytes:
    """The bytes of a file, or of standard input for ``-``; any bytes are text here."""
    if name == "-":
        if sys.stdin.isatty():
            print("reading from the keyboard; Ctrl-D ends", file=sys.stderr)
        text, shown = sys.stdin.buffer.read(), "standard input"
    else:
        shown = name
        try:
            text = Path(name).read_bytes()
        except OSError as error:
            parser.error(f"{name} cannot be read: {error.strerror or error}")
    if len(text) < least:
        parser.error(f"{shown} must hold at least {least} byte{'s' * (least > 1)}, got {len(text)}")
    return text


def use_colour(choice: str) -> bool:
    """Whether to write colours: always, never, or (auto) to terminals, as NO_COLOR and FORCE_COLOR allow."""
    if choice != "auto":
        return choice == "always"
    wanted = sys.stdout.isatty() or os.environ.get("FORCE_COLOR", "0") not in ("", "0")
    return wanted and not os.environ.get("NO_COLOR")


def command(main: Callable[..., int]) -> Callable[..., int]:
    """Make a command write what its terminal can show, and end quietly where its reader does, as ``head`` does."""

    @functools.wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            status = main(arguments)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            # Python flushes standard output at its end, and would complain then.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt:
            return 130

    return run


_PATIENCE = 2.0  # seconds before a word on how far it is


class Watch:
    """Times a reading, and says on standard error how far it is where it takes long."""

    def __init__(self) -> None:
        self.start, self.done = time.perf_counter(), 0
        self.seconds = 0.0  # from the start to the last word on it
        self._shown: Progress | None = None

    def __call__(self, done: int, total: int, nats: float | None = None) -> None:
        """Take note of bytes that have been read, of how many, and what predicting them cost."""
        self.done, self.seconds = done, time.perf_counter() - self.start
        if self.seconds < _PATIENCE:
            return
        if self._shown is None:
            if done == total:
                return  # a word on what is over already helps nobody
            self._shown = Progress(total)
            self._shown.start = self.start
        self._shown.show({} if nats is None else {"bits_per_byte": float(bits_per_byte(nats, done))}, done)

    @property
    def bytes_per_second(self) -> float:
        """Bytes read so far, of all readings."""
        return self.done / self.seconds
