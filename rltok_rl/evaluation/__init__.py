"""What a model makes of text that it was not trained on: bits per byte, rates, where boundaries lie."""

from __future__ import annotations

from rltok_rl.evaluation.reading import Reading, cut_windows, document_nats, read_text, standard_error, summarise
from rltok_rl.evaluation.words import EDGES, EdgeShare, word_edge_share, word_edges

__all__ = [
    "EDGES",
    "EdgeShare",
    "Reading",
    "cut_windows",
    "document_nats",
    "read_text",
    "standard_error",
    "summarise",
    "word_edge_share",
    "word_edges",
]
