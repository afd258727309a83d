"""What a model makes of text that it was not trained on: bits per byte, rates, where boundaries lie."""

from __future__ import annotations

from rltok_rl.evaluation.reading import Reading, cut_windows, read_text, summarise
from rltok_rl.evaluation.words import EDGES, EdgeShare, word_edge_share, word_edges

__all__ = [
    "EDGES",
    "EdgeShare",
    "Reading",
    "cut_windows",
    "read_text",
    "summarise",
    "word_edge_share",
    "word_edges",
]
