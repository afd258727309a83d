"""What a model makes of text that it was not trained on: bits per byte, rates, where boundaries lie."""

from __future__ import annotations

from rltok_rl.evaluation.agreement import agreement_matrix, boundary_correlation, cohen_kappa, jaccard
from rltok_rl.evaluation.bits import (
    corpus_bits_per_byte,
    corpus_standard_error,
    document_bits_per_byte,
    document_standard_error,
    loss_figures,
)
from rltok_rl.evaluation.boundaries import DrawnTexts, boundary_figures, join_texts
from rltok_rl.evaluation.characters import inside_characters, split_character_share
from rltok_rl.evaluation.matching import BoundaryMatch, boundary_match, count_pairs, move_boundaries
from rltok_rl.evaluation.particles import particle_nats
from rltok_rl.evaluation.positions import position_from_end, position_from_start, word_position_share
from rltok_rl.evaluation.reading import Reading, document_nats, group_documents, read_text, summarise
from rltok_rl.evaluation.samples import Samples, marginal_nats, read_samples, summarise_samples, window_losses
from rltok_rl.evaluation.streaming import read_streamed
from rltok_rl.evaluation.tokens import TokenLengths, policy_entropy, summarise_lengths, token_lengths
from rltok_rl.evaluation.windows import cut_windows
from rltok_rl.evaluation.words import (
    EDGES,
    EdgeShare,
    place_share,
    white_space,
    white_space_share,
    word_edge_share,
    word_edges,
)

__all__ = [
    "EDGES",
    "BoundaryMatch",
    "DrawnTexts",
    "EdgeShare",
    "Reading",
    "Samples",
    "TokenLengths",
    "agreement_matrix",
    "boundary_correlation",
    "boundary_figures",
    "boundary_match",
    "cohen_kappa",
    "corpus_bits_per_byte",
    "corpus_standard_error",
    "count_pairs",
    "cut_windows",
    "document_bits_per_byte",
    "document_nats",
    "document_standard_error",
    "group_documents",
    "inside_characters",
    "jaccard",
    "join_texts",
    "loss_figures",
    "marginal_nats",
    "move_boundaries",
    "particle_nats",
    "place_share",
    "policy_entropy",
    "position_from_end",
    "position_from_start",
    "read_samples",
    "read_streamed",
    "read_text",
    "split_character_share",
    "summarise",
    "summarise_lengths",
    "summarise_samples",
    "token_lengths",
    "white_space",
    "white_space_share",
    "window_losses",
    "word_edge_share",
    "word_edges",
    "word_position_share",
]
