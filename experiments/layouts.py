"""How the tokens of a training are laid out, from its configuration."""

from __future__ import annotations

from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.experiments.config import TrainConfig

from rltok_rl.models import UNet
from rltok_rl.models.packing import Layout, Packing

TOKENS = ("padded", "packed")


def make_layout(config: TrainConfig, model: UNet, segmenter: Segmenter | None = None) -> Layout:
    """The layout of tokens; with a room of ``compute.token_room`` above the number that is expected.

    Args:
        config: of the training.
        model: the U-Net.
        segmenter: who draws the boundaries; None leaves that to the policy or the actor.
    """
    tokens, room = config.compute.tokens, config.compute.token_room
    if tokens not in TOKENS:
        raise ValueError(f"compute.tokens must be one of {list(TOKENS)}, got {tokens!r}")
    if room is None:
        return "padded" if tokens == "padded" else Packing()
    if tokens == "padded":
        raise ValueError(f"compute.token_room belongs to compute.tokens='packed', got {room} with 'padded'")
    if not room > 0:
        raise ValueError(f"compute.token_room must be positive, got {room}")
    rate, above = expected_rate(config, model, segmenter), None
    if model.config.second_level is not None:
        said = None if segmenter is None else segmenter.second_rate
        above = (1 + room) * (model.config.second_rate if said is None else said)
    return Packing(tokens=(1 + room) * rate, second=above)


def expected_rate(config: TrainConfig, model: UNet, segmenter: Segmenter | None = None) -> float:
    """Boundaries per byte that a training aims at, the most where it aims at several.

    Args:
        config: of the training.
        model: the U-Net.
        segmenter: who draws the boundaries; None leaves that to the policy or the actor.
    """
    actor, name = config.actor, config.segmenter.name
    rate: float | None
    if segmenter is not None:
        rate = segmenter.target_rate
    else:
        name = actor.name
        told = {"learned": max(actor.rates) if actor.rates else None, "whitespace": None}.get(name, actor.rate)
        rate = None if name == "whitespace" else model.config.target_rate if told is None else told
    if rate is None:
        raise ValueError(
            f"compute.token_room must be null with {name!r}, which aims at no rate, got {config.compute.token_room}"
        )
    return rate
