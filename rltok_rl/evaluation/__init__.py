"""Evaluation on held-out text: bits per byte with standard errors, rates, and boundary metrics."""

from __future__ import annotations

from rltok_rl.evaluation.affixes import AFFIXES, AffixShare, affix_places, affix_shares
from rltok_rl.evaluation.agreement import (
    BoundaryMatch,
    agreement_matrix,
    boundary_correlation,
    boundary_match,
    cohen_kappa,
    count_pairs,
    jaccard,
    move_boundaries,
)
from rltok_rl.evaluation.bits import (
    corpus_bits_per_byte,
    corpus_standard_error,
    document_bits_per_byte,
    document_nats,
    document_standard_error,
    group_documents,
    loss_metrics,
    mean_and_error,
    summarise,
)
from rltok_rl.evaluation.boundaries import (
    DrawnTexts,
    TokenLengths,
    boundary_metrics,
    join_texts,
    policy_entropy,
    summarise_lengths,
    token_lengths,
)
from rltok_rl.evaluation.marginal import (
    Samples,
    marginal_nats,
    particle_nats,
    read_samples,
    summarise_samples,
    window_losses,
)
from rltok_rl.evaluation.policies import PolicyEvaluation, evaluate_policy
from rltok_rl.evaluation.policy_episodes import POLICIES, Episodes
from rltok_rl.evaluation.streamed import read_streamed
from rltok_rl.evaluation.windowed import Reading, read_text
from rltok_rl.evaluation.word_edges import (
    EDGES,
    EdgeShare,
    inside_characters,
    place_share,
    position_from_end,
    position_from_start,
    split_character_share,
    white_space,
    white_space_share,
    word_edge_share,
    word_edges,
    word_position_share,
)
from rltok_rl.renamed import renamed_names

__all__ = [
    "AFFIXES",
    "EDGES",
    "POLICIES",
    "AffixShare",
    "BoundaryMatch",
    "DrawnTexts",
    "EdgeShare",
    "Episodes",
    "PolicyEvaluation",
    "Reading",
    "Samples",
    "TokenLengths",
    "affix_places",
    "affix_shares",
    "agreement_matrix",
    "boundary_correlation",
    "boundary_metrics",
    "boundary_match",
    "cohen_kappa",
    "corpus_bits_per_byte",
    "corpus_standard_error",
    "count_pairs",
    "document_bits_per_byte",
    "document_nats",
    "document_standard_error",
    "evaluate_policy",
    "group_documents",
    "inside_characters",
    "jaccard",
    "join_texts",
    "loss_metrics",
    "marginal_nats",
    "mean_and_error",
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

__getattr__ = renamed_names(globals(), {"boundary_figures": "boundary_metrics", "loss_figures": "loss_metrics"})
