"""Byte streams: documents, filters, caches and splits, and the sources that draw windows from them."""

from __future__ import annotations

from rltok_rl.data.byte_cache import CachedSource, CacheError, CacheIndex, write_cache
from rltok_rl.data.corpora import CORPORA, Corpus, local_code, local_prose, packaged_novel, stream_corpus
from rltok_rl.data.files import GroupedDocument, read_documents, read_grouped_documents
from rltok_rl.data.filters import FilterReport, LengthFilter
from rltok_rl.data.prepare import prepare_cache
from rltok_rl.data.source import DocumentSource, TextSource
from rltok_rl.data.split import Split, split_documents
from rltok_rl.data.windows import Places, Windows, WindowSource
from rltok_rl.data.wrappers import OrderedSource, RepeatedSource

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
    "Split",
    "TextSource",
    "WindowSource",
    "Windows",
    "local_code",
    "local_prose",
    "packaged_novel",
    "prepare_cache",
    "read_documents",
    "read_grouped_documents",
    "split_documents",
    "stream_corpus",
    "write_cache",
]
