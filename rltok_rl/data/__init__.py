"""Byte streams: documents, what is kept of them, and where windows of text come from."""

from __future__ import annotations

from rltok_rl.data.byte_cache import write_cache
from rltok_rl.data.cached import CachedSource
from rltok_rl.data.corpora import CORPORA, Corpus, stream_corpus
from rltok_rl.data.files import GroupedDocument, read_documents, read_grouped_documents
from rltok_rl.data.filters import FilterReport, LengthFilter
from rltok_rl.data.index import CacheError, CacheIndex
from rltok_rl.data.local import local_code, local_prose
from rltok_rl.data.ordered import OrderedSource
from rltok_rl.data.prepare import prepare_cache
from rltok_rl.data.repeated import RepeatedSource
from rltok_rl.data.sharded import ShardedSource
from rltok_rl.data.source import DocumentSource, TextSource
from rltok_rl.data.split import Split, split_documents
from rltok_rl.data.windows import Places, Windows, WindowSource

__all__ = [
    "CORPORA",
    "CacheError",
    "CacheIndex",
    "CachedSource",
    "Corpus",
    "DocumentSource",
    "FilterReport",
    "GroupedDocument",
    "LengthFilter",
    "OrderedSource",
    "Places",
    "RepeatedSource",
    "ShardedSource",
    "Split",
    "TextSource",
    "WindowSource",
    "Windows",
    "local_code",
    "local_prose",
    "prepare_cache",
    "read_documents",
    "read_grouped_documents",
    "split_documents",
    "stream_corpus",
    "write_cache",
]
