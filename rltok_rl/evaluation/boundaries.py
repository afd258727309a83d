"""All figures of where boundaries lie, of one text or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rltok_rl.evaluation.characters import split_character_share
from rltok_rl.evaluation.positions import word_position_share
from rltok_rl.evaluation.tokens import policy_entropy, summarise_lengths, token_lengths
from rltok_rl.evaluation.words import EdgeShare, white_space_share, word_edge_share
from rltok_rl.functional.numbers import check_count
from rltok_rl.functional.text import text_to_ids
from rltok_rl.models.segmentation import Segmentation


@dataclass(frozen=True)
class DrawnTexts:
    """Texts with their boundaries, one after the other: [N] each."""

    byte_ids: Tensor
    """int64; bytes 0, which are in no word and no character, stand between texts."""
    boundaries: Tensor
    """bool; True between texts, so that no token goes on from one to the next."""
    probabilities: Tensor
    """float32, of a boundary, given those that were drawn before."""
    counted: Tensor
    """bool, bytes whose boundary is a decision: not the first of a text, nor those between texts."""


def join_texts(drawn: Sequence[Segmentation], *, gap: int = 1) -> DrawnTexts:
    r"""Lay texts out one after the other, so that figures of one text are figures of all.

    Args:
        drawn: texts with their boundaries; one has 2 bytes at least.
        gap: bytes between texts: more than boundaries of one text may be moved and lie from their partners
            (:func:`~rltok_rl.evaluation.matching.boundary_match`).

    Example:
        >>> one = Segmentation(b"to", torch.tensor([True, False]), torch.tensor([1.0, 0.25]))
        >>> bytes(join_texts([one, one]).byte_ids.tolist())
        b'to\x00to'
    """
    gap = check_count("gap", gap)
    if all(len(one.text) < 2 for one in drawn):
        raise ValueError(f"drawn must hold a text of at least 2 bytes (the first has no decision), got {len(drawn)}")
    between = {
        "byte_ids": torch.zeros(gap, dtype=torch.int64),
        "boundaries": torch.ones(gap, dtype=torch.bool),
        "probabilities": torch.ones(gap),
        "counted": torch.zeros(gap, dtype=torch.bool),
    }
    parts: dict[str, list[Tensor]] = {name: [] for name in between}
    for one in drawn:
        of_text = (text_to_ids(one.text), one.boundaries, one.probabilities, torch.arange(len(one.text)) > 0)
        for name, part in zip(between, of_text, strict=True):
            parts[name] += [part, between[name]]
    return DrawnTexts(**{name: torch.cat(found[:-1]) for name, found in parts.items()})


def boundary_figures(drawn: DrawnTexts) -> dict[str, Any]:
    """Where boundaries lie, how long tokens are, how undecided the policy was: plain values, by name.

    Args:
        drawn: texts with their boundaries.

    Returns:
        Of the boundaries that are decisions: ``bytes`` (with a decision), ``boundaries`` and their ``rate``;
        ``white_space``, ``word_edges``, ``word_positions`` and ``split_characters``, each with ``share`` (precision),
        ``chance``, ``covered`` (recall) and ``lift`` (enrichment); ``bytes_per_token`` with ``count``, ``mean``,
        ``spread``, ``quantiles`` and ``histogram``; ``entropy`` with ``bits_per_byte`` and ``most``, which a policy of
        this mean probability could have. nan where a ratio has no denominator.
    """
    byte_ids, boundaries, counted = drawn.byte_ids, drawn.boundaries, drawn.counted
    total, laid = int(counted.sum()), int((boundaries & counted).sum())
    given = (byte_ids, boundaries, counted)
    lengths = asdict(summarise_lengths(token_lengths(boundaries, counted)))
    mean = drawn.probabilities.double()[counted].mean()
    return {
        "bytes": total,
        "boundaries": laid,
        "rate": laid / total,
        "white_space": _plain(white_space_share(*given)),
        "word_edges": {name: _plain(one) for name, one in word_edge_share(*given).items()},
        "word_positions": {
            side: {name: _plain(one) for name, one in found.items()}
            for side, found in word_position_share(*given).items()
        },
        "split_characters": _plain(split_character_share(*given)),
        "bytes_per_token": {
            **lengths,
            "quantiles": {f"{q:g}": value for q, value in lengths["quantiles"].items()},
            "histogram": list(lengths["histogram"]),
        },
        "entropy": {
            "bits_per_byte": policy_entropy(drawn.probabilities, counted),
            "most": policy_entropy(mean[None].clamp(0.0, 1.0)),
        },
    }


def _plain(one: EdgeShare) -> dict[str, float]:
    return {**asdict(one), "lift": one.lift}
