"""The texts that commands are given: files, folders of documents, and what a run held out."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from rltok_rl.experiments.commands.arguments import read_bytes, without_subject
from rltok_rl.experiments.commands.parsers import BUILT_IN

from rltok_rl.data import DocumentSource, read_documents
from rltok_rl.data.files import LINES, TABLES, kind
from rltok_rl.text import ids_to_bytes
from rltok_rl.utils import read_config_file

_FRESH = 1 << 16  # bytes of a language that never ends


def run_config(parser: argparse.ArgumentParser, model: str) -> Any:
    """Read the configuration of a run's folder; None if it is no run. An unreadable one ends the command."""
    path = Path(model) / "config.yaml"
    if not path.is_file():
        return None
    try:
        return read_config_file(path)
    except ValueError as error:
        parser.error(f"argument MODEL: {error}")


def complete_config(run: Any) -> Any:
    """Return a run's configuration as a ``TrainConfig``, with defaults for options that it does not have.

    Args:
        run: from :func:`run_config`.
    """
    from omegaconf import OmegaConf
    from rltok_rl.experiments.config import TrainConfig  # what it needs takes seconds to import

    config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), run))
    if config.data.options.get("trust_remote_code"):
        raise ValueError("data.options.trust_remote_code must be left out, because it executes code of the corpus")
    return config


def find_texts(parser: argparse.ArgumentParser, options: argparse.Namespace, run: Any) -> tuple[str, list[bytes]]:
    """What a command reads, its name and its documents, up to ``options.bytes`` in all; none ends the command.

    Args:
        parser: of the command.
        options: model, data (None is what the run held out), column, bytes and seed.
        run: configuration of the model's run; None where it is of no run.
    """
    name, texts = _texts(parser, options, run)
    given = _taken(parser, texts, options.bytes)
    if not given:
        parser.error(f"{name} must hold a document of at least 2 bytes, got none")
    return name, given


def _documents(parser: argparse.ArgumentParser, name: str, column: str | None = None) -> Iterable[bytes]:
    """The documents of a table or a folder; any other file is a single one, of any bytes.

    Args:
        parser: of the command, which what cannot be read ends.
        name: of a file or a folder; ``-`` is standard input.
        column: where tables have their text.
    """
    path = Path(name)
    if path.is_dir() or (path.is_file() and kind(path) in (*LINES, *TABLES)):
        try:
            return read_documents(path, column)
        except (OSError, ValueError) as error:
            _cannot_read(parser, error)
    if column is not None:
        parser.error(f"argument --column: belongs to tables, got {name}")
    return [read_bytes(parser, name, least=2)]


def read_given(parser: argparse.ArgumentParser, name: str, num_bytes: int | None) -> list[bytes]:
    """The documents of a file, up to a number of bytes in all; what cannot be read ends the command.

    Args:
        parser: of the command.
        name: of a file; ``-`` is standard input.
        num_bytes: at least 2; None for all.
    """
    return _taken(parser, _documents(parser, name), num_bytes)


def _taken(parser: argparse.ArgumentParser, texts: Iterable[bytes], num_bytes: int | None) -> list[bytes]:
    """The beginning of texts that are read as they are taken."""
    try:
        return beginning(texts, num_bytes)
    except (OSError, ValueError, TypeError) as error:
        _cannot_read(parser, error)


def _cannot_read(parser: argparse.ArgumentParser, error: Exception) -> NoReturn:
    """End the command because of its text, or of the column of its table."""
    if str(error).startswith("column must "):
        parser.error(f"argument --column: {without_subject(error, 'column')}")
    parser.error(f"argument {parser.get_default('data_argument') or 'DATA'}: {without_subject(error, 'path')}")


def _texts(parser: argparse.ArgumentParser, options: argparse.Namespace, run: Any) -> tuple[str, Iterable[bytes]]:
    data = options.data
    if data is None and run is None:
        parser.error(f"the following arguments are required: DATA ({options.model} is not the folder of a run)")
    if data is not None and data not in BUILT_IN:
        return data, _documents(parser, data, options.column)
    if options.column is not None:
        parser.error(f"argument --column: belongs to tables, got {'no DATA' if data is None else data}")
    from rltok_rl.experiments.texts import BUILT_IN as READERS  # what it needs takes seconds to import
    from rltok_rl.experiments.texts import read_texts

    if data is not None:
        return data, [READERS[data]()]
    try:
        there = complete_config(run).data
        texts = read_texts(there)
    except (OSError, ValueError) as error:
        parser.error(f"the text of {options.model} cannot be read again: {error}; name another as DATA")
    held = texts.held_out
    if isinstance(held, DocumentSource):
        return f"held out of {there.source}", held.documents()
    fresh = held.draw(1, options.bytes or _FRESH, torch.Generator().manual_seed(options.seed))
    return f"fresh {there.source}", [ids_to_bytes(fresh.byte_ids[0])]


def beginning(texts: Iterable[bytes], num_bytes: int | None) -> list[bytes]:
    """Texts up to a number of bytes in all, without those of a single byte or none; the last one is cut.

    Args:
        texts: in order; no more of them are looked at than it takes.
        num_bytes: at least 2; None for all.

    Example:
        >>> beginning([b"to be", b"", b"or not", b"to be"], 8)
        [b'to be', b'or ']
    """
    return list(_beginning(texts, num_bytes))


def _beginning(texts: Iterable[bytes], left: int | None) -> Iterator[bytes]:
    for text in texts:
        if left is not None and left < 2:
            return
        if len(text) > 1:
            taken = text[:left]
            yield taken
            left = None if left is None else left - len(taken)
