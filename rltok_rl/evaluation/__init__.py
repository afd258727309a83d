"""What a model makes of text that it was not trained on: bits per byte, rates, where boundaries lie."""

from __future__ import annotations

from rltok_rl.evaluation.agreement import agreement_matrix, boundary_correlation, cohen_kappa, jaccard
from rltok_rl.evaluation.boundaries import DrawnTexts, boundary_figures, join_texts
from rltok_rl.evaluation.characters import inside_characters, split_character_share
from rltok_rl.evaluation.matching import BoundaryMatch, boundary_match, count_pairs, move_boundaries
from rltok_rl.evaluation.positions import position_from_end, position_from_start, word_position_share
from rltok_rl.evaluation.reading import Reading, cut_windows, document_nats, read_text, standard_error, summarise
from rltok_rl.evaluation.tokens import TokenLengths, policy_entropy, summarise_lengths, token_lengths
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
    "TokenLengths",
    "agreement_matrix",
    "boundary_correlation",
    "boundary_figures",
    "boundary_match",
    "cohen_kappa",
    "count_pairs",
    "cut_windows",
    "document_nats",
    "inside_characters",
    "jaccard",
    "join_texts",
    "move_boundaries",
    "place_share",
    "policy_entropy",
    "position_from_end",
    "position_from_start",
    "read_text",
    "split_character_share",
    "standard_error",
    "summarise",
    "summarise_lengths",
    "token_lengths",
    "white_space",
    "white_space_share",
    "word_edge_share",
    "word_edges",
    "word_position_share",
]
