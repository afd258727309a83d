"""Boundary policies as TorchRL modules: the learned one, and fixed rules to compare with.

Installed as ``rltok_rl.agents``; import it by that name only.
"""

from __future__ import annotations

import rltok_rl.start_method  # noqa: F401

# isort: split

from rltok_rl.agents.bernoulli import (
    BernoulliActor,
    BernoulliBoundary,
    LearnedBoundaryActor,
    RandomActor,
    RolloutPolicy,
    Terms,
)
from rltok_rl.agents.critic import BoundaryCritic
from rltok_rl.agents.encoding import EncodingBoundaryActor
from rltok_rl.agents.network import NetworkActor
from rltok_rl.agents.rules import FixedStrideActor, RuleActor, UniformActor, WhitespaceActor

__all__ = [
    "BernoulliActor",
    "BernoulliBoundary",
    "BoundaryCritic",
    "EncodingBoundaryActor",
    "FixedStrideActor",
    "LearnedBoundaryActor",
    "NetworkActor",
    "RandomActor",
    "RolloutPolicy",
    "RuleActor",
    "Terms",
    "UniformActor",
    "WhitespaceActor",
]
