"""Read the documents that a configuration names, and split them into training and held-out text."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.experiments.run_config import DataConfig
from torch import Tensor

from rltok_rl.data import (
    CORPORA,
    CachedSource,
    DocumentSource,
    FilterReport,
    OrderedSource,
    TextSource,
    local_code,
    local_prose,
    prepare_cache,
    split_documents,
)
from rltok_rl.data.byte_cache import INDEX
from rltok_rl.data.files import PLAIN, kind, list_files, passed_over
from rltok_rl.data.languages import TASKS, Language, Lexicon, Recall
from rltok_rl.data.languages.suite_tasks import switched_source
from rltok_rl.data.prepare import fingerprint
from rltok_rl.data.windows import WindowSource
from rltok_rl.ranges import check_number
from rltok_rl.text import ids_to_bytes
from rltok_rl.utils import check_options

BUILT_IN = {"python-code": local_code, "python-docs": local_prose}
"""Texts that come with Python."""
LANGUAGES: dict[str, Callable[..., Language]] = {
    "recall": Recall,
    "lexicon": Lexicon,
    **{name: task.language for name, task in TASKS.items()},
}
"""Generated texts; tasks have the option ``grade``, and ``switch`` the bytes ``after`` which it changes."""
ORDERS = ("random", "epochs")
_WINDOW_SEED = 0x6A7564  # of the held-out windows of an endless language
_SHOWN = 2_000_000_000
"""Bytes of a cache whose hashes take seconds."""
_BOOK = "book"
"""``data.split_by`` of ``data=books``, which plain files may keep: they have no columns, and each is a group."""


@dataclass(frozen=True)
class Texts:
    """Sources of windows."""

    train: WindowSource
    held_out: WindowSource
    language: Language | None
    """The language with a known answer, if the text is generated."""
    described: str
    """A summary of the documents, and of dropped ones."""
    sha256: str | None
    """Hash of the documents before the split; None for a language."""
    held_out_groups: Tensor | None = None
    """[documents] group of each held-out document; None if single documents are held out."""


def read_texts(data: DataConfig, *, seed: int = 0, marks: int = 0, verify: bool = True) -> Texts:
    """Read, filter, cache, split and order documents; epochs are ordered by the seed.

    ``marks`` is the model's ``num_marks``: a window has so many bytes fewer. ``verify`` compares the hashes of a cache
    that was there before with its files.
    """
    length = data.num_steps + 1 - marks
    if data.order not in ORDERS:
        raise ValueError(f"data.order must be one of {list(ORDERS)}, got {data.order!r}")
    if data.source in LANGUAGES:
        options = dict(data.options)
        after = options.pop("after", None) if data.source == "switch" else None
        check_number("data.options.after", after, "[1, inf)", whole=True, optional=True)
        check_options("data.options", LANGUAGES[data.source], options, of=data.source)
        language = LANGUAGES[data.source](**options)
        if data.order != "random":
            raise ValueError(f"data.order must be 'random' for a language, which never ends, got {data.order!r}")
        drawn = language if after is None else switched_source(options.get("grade", 1), after)
        return Texts(drawn, language, language, f"{data.source}, fresh text without end", None)
    if data.source not in CORPORA and not (data.source and Path(data.source).exists()) and data.source not in BUILT_IN:
        names = [*BUILT_IN, *LANGUAGES, *CORPORA]
        raise FileNotFoundError(f"data.source must be one of {names}, a file or a folder, got {data.source!r}")
    if data.options and data.source not in CORPORA:
        raise ValueError(f"data.options belong to a language or a corpus, got {data.options} with {data.source!r}")
    if data.source in BUILT_IN:
        memory = TextSource(BUILT_IN[data.source]())
        source: DocumentSource = memory
        content, dropped = memory.bytes.numpy().tobytes(), ""
    else:
        source = cache = _cached(data, verify)
        content = json.dumps(cache.index.sha256, sort_keys=True).encode()
        dropped = _dropped(data, cache)
    try:
        parts = split_documents(source, data.held_out)
    except ValueError as error:
        raise ValueError(f"data.source={data.source!r} cannot be split: data.{error}") from None
    for side, name in ((parts.train, "the training text"), (parts.held_out, "the held-out text")):
        try:
            side.check_length(length)
        except ValueError as error:
            reason = str(error).replace("short_documents='whole'", "data.short_documents=whole")
            steps = f"data.num_steps={data.num_steps} is too much for {name}"
            raise ValueError(f"{steps} ({parts}; data.held_out={data.held_out}): {reason}") from None
    train: WindowSource = parts.train
    if data.order == "epochs":
        train = OrderedSource(parts.train, length=length, seed=seed, shared=1 - marks)
    groups = parts.held_out.keys() if parts.by == "group" else None
    return Texts(train, parts.held_out, None, f"{parts}{dropped}", hashlib.sha256(content).hexdigest(), groups)


def held_out_texts(texts: Texts, windows: int, length: int) -> list[bytes]:
    """Return held-out documents; for an endless language, fresh windows of ``length`` bytes."""
    held = texts.held_out
    if isinstance(held, DocumentSource):
        return list(held.documents())
    drawn = held.draw(windows, length, torch.Generator().manual_seed(_WINDOW_SEED))
    return [ids_to_bytes(row) for row in drawn.byte_ids]


def data_config(config: Mapping[str, Any]) -> DataConfig:
    """Return the options of a run's text, from the content of its ``config.yaml``."""
    options: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DataConfig), config["data"]))
    assert isinstance(options, DataConfig)
    return options


def read_run_texts(data: DataConfig, trust_data: bool) -> Texts:
    """Read the texts that a run's ``config.yaml`` names, if they come with the package or the user trusts them.

    Texts that the user trained on, on this machine, are trusted; see :func:`remember_texts`.
    """
    entry, trusted = _trust_entry(data), _trusted_file()
    if not trust_data and not _is_trusted(entry, trusted):
        options = f" with {dict(data.options)}" if data.options else ""
        raise ValueError(
            f"data.source={data.source!r}{options} was not trained on by you on this machine ({trusted}); pass "
            f"--trust-data if you trust the run"
        )
    return read_texts(data)


def remember_texts(data: DataConfig) -> None:
    """Record that the user trained on these texts, in ``$XDG_STATE_HOME/rltok_rl/trained_on`` as a hash per line."""
    entry, trusted = _trust_entry(data), _trusted_file()
    with contextlib.suppress(OSError):  # a home that cannot be written: then --trust-data is needed
        if not _is_trusted(entry, trusted):
            trusted.parent.mkdir(parents=True, exist_ok=True)
            with trusted.open("a") as file:
                file.write(f"{entry}\n")


def _trusted_file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "rltok_rl" / "trained_on"


def _is_trusted(entry: str | None, trusted: Path) -> bool:
    return entry is None or (trusted.is_file() and entry in trusted.read_text().split())


def _trust_entry(data: DataConfig) -> str | None:
    """Hash the paths and options that texts are read with; None for texts of the package."""
    if data.source in (*BUILT_IN, *LANGUAGES) and not data.options:
        return None
    named = data.source in (*BUILT_IN, *LANGUAGES, *CORPORA)
    paths = [
        None if path is None else str(Path(path).resolve()) for path in (data.cache, None if named else data.source)
    ]
    read = [data.source if named else None, *paths, dict(data.options)]
    read += [] if data.revision is None else [data.revision]  # anyone may propose a commit to a dataset of the hub
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()


def _cached(data: DataConfig, verify: bool) -> CachedSource:
    """The cache of a file, a folder or a corpus; written if it does not exist, else verified."""
    corpus, options = data.source in CORPORA, dict(data.options)
    if data.revision is not None:
        if not corpus or "revision" in options:
            raise ValueError(f"data.revision belongs to a corpus, and is given once, got {data.revision!r}")
        options["revision"] = data.revision
    try:
        plain = not corpus and all(kind(file) in PLAIN for file in list_files(data.source))
    except (ValueError, FileNotFoundError) as error:
        raise type(error)(re.sub("^path ", "data.source ", str(error))) from None
    for name, ignored in (("column", (None,)), ("split_by", (None, _BOOK))):
        if plain and (column := getattr(data, name)) not in ignored:
            raise ValueError(f"data.{name} belongs to tables, got {column!r} with plain text, {data.source!r}")
    sha256 = None if corpus else fingerprint(Path(data.source))
    folder = Path(data.cache or _cache_folder(data, sha256))
    verify &= (folder / INDEX).is_file()
    try:
        cache = prepare_cache(
            data.source if corpus else Path(data.source),
            folder,
            column=data.column,
            split_by=None if plain else data.split_by,  # plain files have no columns: each is a separate group
            min_bytes=data.min_bytes,
            max_bytes=data.max_bytes,
            limit=data.limit,
            short_documents=data.short_documents,  # type: ignore[arg-type]
            progress=True,
            sha256=sha256,
            **options,
        )
        if verify:
            if cache.index.bytes > _SHOWN:
                print(f"comparing {folder} with its hashes", file=sys.stderr)
            cache.verify()
        return cache
    except (ValueError, TypeError):
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # if created for the rejected cache
        raise
    except OSError as error:
        if isinstance(error, FileExistsError) and error.errno is None:  # another cache, or something else
            raise FileExistsError(f"data.cache cannot be used for data.source={data.source!r}: {error}") from None
        if corpus and error.errno is None:  # of the hub
            commit = options.get("revision") or CORPORA[data.source].revision or "null"
            message = f"data.source={data.source!r} with data.revision={commit} cannot be read from the hub: {error}"
            raise OSError(message) from error
        # The error of a full disk names no file, that of a read-only folder a temporary one.
        if corpus or error.errno is None or str(error.filename or "").startswith(data.source):
            raise
        message = f"data.cache must be a folder that can be written, got {str(folder)!r}: {error.strerror}"
        raise OSError(message) from None


def _dropped(data: DataConfig, cache: CachedSource) -> str:
    """Lines on dropped documents, skipped files and the folder of the cache."""
    report = None if cache.index.report is None else FilterReport(**cache.index.report)
    lines = [] if report is None else [f"{report}{'; data.min_bytes=2 keeps all' if report.dropped else ''}"]
    if skipped := [] if data.source in CORPORA else passed_over(data.source):
        endings = ", ".join(sorted({path.suffix or path.name for path in skipped})[:8])
        lines.append(f"skipped {len(skipped):,} of other kinds ({endings})")
    if data.source in CORPORA:
        lines.append(f"commit {cache.index.settings['source']['revision']}")
    return "".join(f"\n  {line}" for line in [*lines, f"cached in {cache.folder}"])


def _cache_folder(data: DataConfig, sha256: str | None) -> Path:
    """A folder for each source, its content and its filters."""
    options = sorted(data.options.items())
    key: tuple[Any, ...] = (data.source, sha256, data.column, data.min_bytes, data.max_bytes, data.limit, options)
    revision = data.revision or (CORPORA[data.source].revision if data.source in CORPORA else None)
    key += tuple(value for value in (data.split_by, revision) if value is not None)
    return Path("caches") / f"{Path(data.source).stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}"
