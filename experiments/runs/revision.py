"""The commit of a corpus, pinned by the first run that reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from rltok_rl.experiments.run_config import DataConfig
from rltok_rl.experiments.runs.saved_options import read_options

from rltok_rl.data import CORPORA, CacheError
from rltok_rl.data.byte_cache import INDEX, read_index
from rltok_rl.data.corpora import current_commit


def pinned_revision(data: DataConfig, runs: Iterable[Path] = ()) -> str | None:
    """Return the commit of a corpus that is read if ``data.revision`` names none; None for other texts.

    It is what the first of these runs has recorded, so that a resumed run reads the same commit. For a new run it is
    the corpus's own; else that of a cache, so that runs of one working folder compare; else the hub's current one.
    """
    if data.source not in CORPORA or data.revision is not None or "revision" in data.options:
        return data.revision
    for run in runs:
        if (run / "config.yaml").exists() and (
            recorded := read_options(run / "config.yaml").data
        ).source == data.source:
            return recorded.revision
    corpus = CORPORA[data.source]
    return corpus.revision or _cached_commit(data) or current_commit(corpus)


def _cached_commit(data: DataConfig) -> str | None:
    """Return the commit of the newest cache of a corpus, in ``data.cache`` or ``caches``; None if there is none."""
    folders = [Path(data.cache)] if data.cache else Path("caches").glob(f"{data.source}-*")
    indexes = [folder / INDEX for folder in folders if (folder / INDEX).is_file()]
    for index in sorted(indexes, key=lambda path: path.stat().st_mtime, reverse=True):
        with contextlib.suppress(CacheError, FileNotFoundError):
            made_from = read_index(index.parent).settings.get("source")
            if isinstance(made_from, dict) and made_from.get("path") == CORPORA[data.source].path:
                if isinstance(commit := made_from.get("revision"), str):
                    return commit
    return None
