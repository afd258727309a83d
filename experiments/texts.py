"""The texts that a configuration names: to train on, and held out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from rltok_rl.experiments.config import DataConfig

from rltok_rl.data import (
    CORPORA,
    DocumentSource,
    FilterReport,
    OrderedSource,
    TextSource,
    local_code,
    local_prose,
    prepare_cache,
    split_documents,
)
from rltok_rl.data.languages import Language, Lexicon, Recall
from rltok_rl.data.windows import WindowSource

BUILT_IN = {"python-code": local_code, "python-docs": local_prose}
"""Texts that every Python brings along."""
LANGUAGES = {"recall": Recall, "lexicon": Lexicon}
ORDERS = ("random", "epochs")


@dataclass(frozen=True)
class Texts:
    """Where windows come from."""

    train: WindowSource
    held_out: WindowSource
    language: Language | None
    """The language with a known answer that both are of."""
    described: str
    """One line on what there is, and what was dropped."""


def read_texts(data: DataConfig, *, seed: int = 0) -> Texts:
    """Read, filter, cache, split and order the texts of a configuration.

    Args:
        data: the configuration.
        seed: of the order of epochs.
    """
    if data.order not in ORDERS:
        raise ValueError(f"data.order must be one of {list(ORDERS)}, got {data.order!r}")
    if data.source in LANGUAGES:
        language = LANGUAGES[data.source](**data.options)
        if data.order != "random":
            raise ValueError(f"data.order must be 'random' for a language, which never ends, got {data.order!r}")
        return Texts(language, language, language, f"{data.source}, fresh text without end")
    if data.source in BUILT_IN:
        _refuse_options(data)
        source: DocumentSource = TextSource(BUILT_IN[data.source]())
        dropped = ""
    else:
        _check_source(data.source)
        if data.source not in CORPORA:
            _refuse_options(data)
        source = cache = prepare_cache(
            data.source if data.source in CORPORA else Path(data.source),
            data.cache or _cache_folder(data),
            column=data.column,
            min_bytes=data.min_bytes,
            max_bytes=data.max_bytes,
            limit=data.limit,
            short_documents=data.short_documents,  # type: ignore[arg-type]
            progress=True,
            **data.options,
        )
        dropped = f"; {FilterReport(**(cache.index.report or {}))}"
    parts = split_documents(source, data.held_out)
    for side in (parts.train, parts.held_out):
        side.check_length(data.num_steps + 1)
    train: WindowSource = parts.train
    if data.order == "epochs":
        train = OrderedSource(parts.train, length=data.num_steps + 1, seed=seed)
    return Texts(train, parts.held_out, None, f"{parts}{dropped}")


def _check_source(source: str) -> None:
    if source not in CORPORA and not Path(source).exists():
        named = [*BUILT_IN, *LANGUAGES, *CORPORA]
        raise FileNotFoundError(f"data.source must be one of {named}, a file or a folder, got {source!r}")


def _refuse_options(data: DataConfig) -> None:
    if data.options:
        raise ValueError(f"data.options belong to a language or a corpus, got {data.options} with {data.source!r}")


def _cache_folder(data: DataConfig) -> Path:
    """A folder of its own for each source and each way of filtering it."""
    made_from = (data.source, data.column, data.min_bytes, data.max_bytes, data.limit, sorted(data.options.items()))
    return Path("caches") / f"{Path(data.source).stem}-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:8]}"
