"""Load what a command line names: models with their segmenters, and documents; progress and colours of commands."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter, load_segmenter
from rltok_rl.experiments.commands.parsers import BUILT_IN, CONTEXT, Parser
from rltok_rl.experiments.runs.saved_options import read_options

from rltok_rl.data import DocumentSource, read_documents
from rltok_rl.data.files import LINES, TABLES, kind
from rltok_rl.foreign import read_config_file
from rltok_rl.functional.likelihood import bits_per_byte
from rltok_rl.models import UNet
from rltok_rl.models.heads import row_rates
from rltok_rl.models.pretrained import model_folder
from rltok_rl.models.weights import check_one_dtype
from rltok_rl.text import ids_to_bytes
from rltok_rl.training.progress import Progress
from rltok_rl.utils import printable

_FRESH = 1 << 16  # bytes drawn from a language, which has no end
_PATIENCE = 2.0  # seconds before progress is shown


def without_subject(error: Exception, *names: str) -> str:
    """Drop the name of a Python parameter from the start of a message, if the option is named already.

    Example:
        >>> without_subject(ValueError("source must be a folder, got 'x'"), "source", "path")
        "must be a folder, got 'x'"
    """
    text = str(error)
    return next((text[len(name) + 1 :] for name in names if text.startswith(f"{name} must ")), text)


def load_with_segmenter(parser: Parser, options: argparse.Namespace) -> tuple[UNet, Segmenter | None]:
    """Load the model ``options.model`` and its segmenter (None: its own policy), or end the command with an error."""
    argument = f"argument {options.model_argument}"
    try:
        device = torch.device(options.device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"argument --device: {options.device!r} cannot be used: {str(error).splitlines()[0]}")
    run = Path(options.model)
    if (run / "config.yaml").is_file() and not any((run / at / "config.json").is_file() for at in ("", "model")):
        unfinished = "without a model yet; it is written when the run ends or is asked to stop"
        reason = "whose model was left out" if (run / "summary.json").is_file() else unfinished
        parser.error(f"{argument}: {options.model} is a run {reason}")
    try:
        model = UNet.from_pretrained(options.model, device=device)
        check_one_dtype(model, options.model)
        folder = model_folder(options.model)
        segmenter = load_segmenter(folder or options.model, model, options.trust_code)
    except (OSError, ValueError, TypeError, ImportError) as error:
        parser.error(f"{argument}: {without_subject(error, 'source')}")
    if segmenter is not None and segmenter.draws_at_random and options.greedy:
        parser.error(f"argument --greedy: belongs to learned policies, got {type(segmenter).__name__}")
    check_rate(parser, options, model, segmenter)
    return model, segmenter


def check_rate(parser: Parser, options: argparse.Namespace, model: UNet, segmenter: Segmenter | None) -> None:
    """End the command if ``--rate`` is given and has no effect."""
    if options.rate is None:
        return
    if segmenter is not None:
        parser.error(f"argument --rate: belongs to learned policies, got {type(segmenter).__name__}")
    if not model.config.rate_embedding:
        rate = model.config.target_rate
        parser.error(f"argument --rate: needs a model with rate_embedding, got one of a single rate, {rate}")
    try:
        row_rates(model.config, options.rate, torch.zeros(1))
    except ValueError as error:
        parser.error(f"argument --rate: {without_subject(error, 'target_rate')}")


def typed_bytes(parser: Parser, argument: str, text: str) -> bytes:
    """Return the bytes of a typed text, or end the command if it has none."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as error:  # half of a surrogate pair
        parser.error(f"argument {argument}: must be UTF-8, got {error.reason} at character {error.start}")


def run_config(parser: Parser, model: str) -> Any:
    """Read the options of a run's folder; None if the model is no run."""
    path = Path(model) / "config.yaml"
    try:
        return read_config_file(path) if os.path.lexists(path) else None
    except (OSError, ValueError) as error:
        parser.error(f"argument MODEL: {error}")


def trained_context(run: Any) -> int:
    """Return the bytes of a window in training, or a default if the model is no run."""
    return CONTEXT if run is None else (run.get("data") or {}).get("num_steps") or CONTEXT


def find_documents(parser: Parser, options: argparse.Namespace, run: Any) -> tuple[str, list[bytes]]:
    """Read the documents of ``options.data`` (None: the run's held-out text), and their name, or end the command.

    ``options.bytes`` limits their bytes in all; ``run`` has the run's options, None if the model is no run.
    """
    try:
        name, documents = _documents(parser, options, run)
        read = list(first_bytes(documents, options.bytes))
    except (OSError, ValueError, TypeError) as error:
        if str(error).startswith("column must "):
            parser.error(f"argument --column: {without_subject(error, 'column')}")
        parser.error(f"argument {options.data_argument}: {without_subject(error, 'path')}")
    if not read:
        parser.error(f"{name} must hold a document of at least 2 bytes, got none")
    return printable(name), read


def _documents(parser: Parser, options: argparse.Namespace, run: Any) -> tuple[str, Iterable[bytes]]:
    data, path = options.data, Path(options.data or "")
    if data is not None and (path.is_dir() or (path.is_file() and kind(path) in (*LINES, *TABLES))):
        return data, read_documents(path, options.column)
    if options.column is not None:
        parser.error(f"argument --column: belongs to tables, got {data or f'no {options.data_argument}'}")
    if data in BUILT_IN:
        from rltok_rl.experiments.texts import BUILT_IN as READERS  # takes seconds to import

        return data, [READERS[data]()]
    return _held_out(parser, options, run) if data is None else (data, [read_bytes(parser, data, least=2)])


def _held_out(parser: Parser, options: argparse.Namespace, run: Any) -> tuple[str, Iterable[bytes]]:
    """Read the held-out text of a run."""
    from rltok_rl.experiments.runs.resume import check_texts  # takes seconds to import
    from rltok_rl.experiments.texts import read_run_texts

    if run is None:
        missing = f"{options.data_argument} ({options.model} is not the folder of a run)"
        parser.error(f"the following arguments are required: {missing}")
    try:
        data = read_options(Path(options.model) / "config.yaml").data
        texts = read_run_texts(data, options.trust_data)
        check_texts(Path(options.model), data.source, texts.sha256)
        held_out = texts.held_out
    except (OSError, ValueError) as error:
        parser.error(
            f"the text of {options.model} cannot be read again: {error}; name another as {options.data_argument}"
        )
    if isinstance(held_out, DocumentSource):
        return f"held out of {data.source}", held_out.documents()
    fresh = held_out.draw(1, options.bytes or _FRESH, torch.Generator().manual_seed(options.seed))
    return f"fresh {data.source}", [ids_to_bytes(fresh.byte_ids[0])]


def first_bytes(documents: Iterable[bytes], num_bytes: int | None) -> Iterator[bytes]:
    """Yield documents of at least two bytes, up to a number of bytes in all; the last is cut.

    Example:
        >>> list(first_bytes([b"to be", b"", b"or not", b"to be"], 8))
        [b'to be', b'or ']
    """
    for document in documents:
        if num_bytes is not None and num_bytes < 2:
            return
        if len(document) > 1:
            yield document[:num_bytes]
            num_bytes = None if num_bytes is None else num_bytes - len(document[:num_bytes])


def read_bytes(parser: Parser, name: str, *, least: int = 1) -> bytes:
    """Read the bytes of a file, or of standard input for ``-``."""
    shown = "standard input" if name == "-" else name
    if name == "-":
        if sys.stdin.isatty():
            print("reading from the keyboard; Ctrl-D ends", file=sys.stderr)
        text = sys.stdin.buffer.read()
    else:
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
    allowed = sys.stdout.isatty() or os.environ.get("FORCE_COLOR", "0") not in ("", "0")
    return allowed and not os.environ.get("NO_COLOR")


class Watch:
    """Time a reading, and show its progress after two seconds, or from the start under a title."""

    def __init__(self, title: str | None = None) -> None:
        self.start, self.title = time.perf_counter(), title
        self.bytes_per_second = 0.0
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int, nats: float | None = None) -> None:
        """Report the bytes read so far, of how many, and their cost."""
        seconds = time.perf_counter() - self.start
        self.bytes_per_second = done / seconds
        if self._progress is None:
            if self.title is None and (seconds < _PATIENCE or done == total):
                return
            self._progress = Progress(total)
            self._progress.start = self.start
            if self.title is not None:
                self._progress.print(self.title)
        self._progress.show({} if nats is None else {"bits_per_byte": float(bits_per_byte(nats, done))}, done)
