"""What a model makes of text that it was not trained on: bits per byte, rates, where boundaries lie."""

from __future__ import annotations

from rltok_rl.evaluation.bits import (
    corpus_bits_per_byte,
    corpus_standard_error,
    document_bits_per_byte,
    document_standard_error,
    loss_figures,
)
from rltok_rl.evaluation.particles import particle_nats
from rltok_rl.evaluation.reading import Reading, document_nats, read_text, summarise
from rltok_rl.evaluation.samples import Samples, marginal_nats, read_samples, summarise_samples, window_losses
from rltok_rl.evaluation.streaming import read_streamed
from rltok_rl.evaluation.windows import cut_windows
from rltok_rl.evaluation.words import EDGES, EdgeShare, word_edge_share, word_edges

__all__ = [
    "EDGES",
    "EdgeShare",
    "Reading",
    "Samples",
    "corpus_bits_per_byte",
    "corpus_standard_error",
    "cut_windows",
    "document_bits_per_byte",
    "document_nats",
    "document_standard_error",
    "loss_figures",
    "marginal_nats",
    "particle_nats",
    "read_samples",
    "read_streamed",
    "read_text",
    "summarise",
    "summarise_samples",
    "window_losses",
    "word_edge_share",
    "word_edges",
]
