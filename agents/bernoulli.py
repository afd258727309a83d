"""Stochastic boundary actors: the model's own policy, a constant rate, and the policy that scores stored logits.

With :func:`torchrl.modules.set_recurrent_mode` off, ``forward`` decides one byte per row. With it on, ``forward`` draws
all boundaries of rows ``[*B, T]`` with the exact sampler. ``get_dist`` scores decisions in both modes alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torchrl.modules import ProbabilisticActor
from torchrl.modules.tensordict_module.rnn import recurrent_mode

from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob, lagged_logit, recent_boundaries
from rltok_rl.models.heads import BoundaryTerms, rate_logits, row_rates
from rltok_rl.models.unet import UNet
from rltok_rl.ranges import check_number
from rltok_rl.sampling import draw_boundary, sample_boundaries

Shape = torch.Size | list[int] | tuple[int, ...]


class BernoulliBoundary(Distribution):
    """Integer boundary decisions with probability ``sigmoid(logits)``, logits [*L].

    Boundaries ``forced`` [*L] are drawn for any logit; their log-probability and entropy are 0.
    ``torch.distributions.Bernoulli`` samples floats, rejects integers in ``log_prob`` and has no mode at p = 1/2.

    Example:
        >>> policy = BernoulliBoundary(torch.tensor([0.0, 2.0]))
        >>> policy.mode, policy.log_prob(torch.tensor([1, 1])).exp()
        (tensor([0, 1]), tensor([0.5000, 0.8808]))
    """

    arg_constraints = {"logits": constraints.real}
    support = constraints.boolean
    has_enumerate_support = True

    def __init__(self, logits: Tensor, forced: Tensor | None = None) -> None:
        self.logits, self.forced = logits, forced
        super().__init__(logits.shape, validate_args=False)

    @property
    def probs(self) -> Tensor:
        """Probability of a boundary, 1 where forced."""
        probs = self.logits.sigmoid()
        return probs if self.forced is None else probs.masked_fill(self.forced, 1.0)

    mean = probs

    @property
    def variance(self) -> Tensor:
        """Variance of each decision."""
        return self.probs * (1 - self.probs)

    @property
    def mode(self) -> Tensor:
        """The likelier decision; a tie at p = 1/2 draws no boundary."""
        return self._with_forced(self.logits > 0)

    deterministic_sample = mode  # TorchRL reads it when exploration is off

    @torch.no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw int64 decisions as the sampler does: a boundary where the logit exceeds ``logit(u)``."""
        shape = self._extended_shape(torch.Size(sample_shape))
        uniforms = torch.rand(shape, device=self.logits.device)
        return self._with_forced(draw_boundary(self.logits.expand(shape), uniforms))

    def log_prob(self, value: Tensor) -> Tensor:
        """Compute the log-probability of decisions of any dtype, 0 where forced."""
        logits, value = torch.broadcast_tensors(self.logits, value)
        # Samples may have further dimensions.
        forced = None if self.forced is None else self.forced.expand(logits.shape)
        return boundary_log_prob(logits, value, forced=forced)

    def entropy(self) -> Tensor:
        """Compute the entropy in nats, 0 where forced."""
        return boundary_entropy(self.logits, forced=self.forced)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return both decisions along a new first dimension."""
        values = torch.arange(2, device=self.logits.device).view(2, *(1 for _ in self.logits.shape))
        return values.expand(2, *self.logits.shape) if expand else values

    def expand(self, batch_shape: Shape, _instance: Distribution | None = None) -> BernoulliBoundary:
        """Expand to a larger batch."""
        forced = None if self.forced is None else self.forced.expand(batch_shape)
        return BernoulliBoundary(self.logits.expand(batch_shape), forced)

    def _with_forced(self, drawn: Tensor) -> Tensor:
        return (drawn if self.forced is None else drawn | self.forced).to(torch.int64)


class Terms(nn.Module):
    """Terms of the boundary logits, computed from features of each byte."""

    @property
    def cap(self) -> float | None:
        """Soft cap of the logits; None for no cap."""
        return None

    @property
    def num_lags(self) -> int:
        """Earlier boundaries that the logits depend on, w."""
        return 0

    def forward(self, *features: Tensor) -> BoundaryTerms:
        """Map features [*L, ...] to base [*L] and lags [*L, w]."""
        raise NotImplementedError


def lags_of(actor: Any) -> int:
    """Return how many earlier boundaries the logits of an actor depend on, 0 for actors without such logits."""
    return getattr(getattr(actor, "terms", None), "num_lags", 0)


class _BoundaryPolicy(ProbabilisticActor):
    """An actor that draws ``action`` from :class:`BernoulliBoundary`, at random by default."""

    def __init__(self, logits: TensorDictModule) -> None:
        super().__init__(
            logits,
            in_keys=["logits", "forced"],
            out_keys=["action"],
            distribution_class=BernoulliBoundary,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        )


class BernoulliActor(_BoundaryPolicy):
    """A boundary actor whose logits are sums over lags.

    Reads ``recent``, ``forced`` and ``in_keys``, the keys of its terms. Writes ``logits``, ``entropy``, ``action``
    (int64) and ``action_log_prob``, all without a trailing dimension.
    """

    draws_windows = True
    """Whole windows are drawn in recurrent mode, so an environment may use its parallel path."""

    def __init__(self, terms: Terms, in_keys: list[str]) -> None:
        keys = [*in_keys, "recent", "forced"]
        super().__init__(TensorDictModule(_Logits(terms), in_keys=keys, out_keys=["logits", "entropy"]))
        self.terms_in_keys = in_keys

    @property
    def draws_at_random(self) -> bool:
        """Whether decisions are random now; ``set_exploration_type`` switches to the likelier decision."""
        return not self._greedy()

    @property
    def terms(self) -> Terms:
        """The module that computes the terms of the logits."""
        return self.module[0].module.terms

    def forward(self, tensordict: TensorDictBase, **options: object) -> TensorDictBase:
        """Decide one byte per row; in recurrent mode draw the boundaries of whole windows.

        Windows [*B, T] begin with the first byte of a text. They may hold ``uniform``, random numbers to draw with.
        """
        if not recurrent_mode():
            return super().forward(tensordict, **options)
        terms: BoundaryTerms = self.terms(*(tensordict[key] for key in self.terms_in_keys))
        forced = tensordict.get("forced")
        boundaries = sample_boundaries(
            *(x.detach() for x in terms),
            uniforms=None if self._greedy() else tensordict.get("uniform", None),
            cap=self.terms.cap,
            force_first=False,
            forced=2 * forced - 1,  # 1 is forced, -1 is free
            greedy=self._greedy(),
        )
        recent = recent_boundaries(boundaries, terms.lags.shape[-1])
        logits = lagged_logit(*terms, recent, cap=self.terms.cap)
        tensordict.set("logits", logits)
        tensordict.set("entropy", boundary_entropy(logits, forced=forced))
        tensordict.set("action", boundaries.long())
        tensordict.set("action_log_prob", boundary_log_prob(logits, boundaries, forced=forced))
        return tensordict

    def _greedy(self) -> bool:
        kind = interaction_type() or self.module[-1].default_interaction_type
        if kind not in (InteractionType.RANDOM, InteractionType.MODE, InteractionType.DETERMINISTIC):
            allowed = ["RANDOM", "MODE", "DETERMINISTIC"]
            raise ValueError(f"exploration type must be one of {allowed} to draw boundaries, got {kind.name}")
        return kind is not InteractionType.RANDOM


class _Logits(nn.Module):
    """Logits and entropies, from the terms and the earlier boundaries."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self.terms = terms

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *features, recent, forced = inputs
        base, lags = self.terms(*features)
        if recent.shape[-1] < lags.shape[-1]:
            raise ValueError(f"recent must hold the last {lags.shape[-1]} boundaries, got {recent.shape[-1]}")
        logits = lagged_logit(base, lags, recent[..., : lags.shape[-1]], cap=self.terms.cap)
        return logits, boundary_entropy(logits, forced=forced)


class LearnedBoundaryActor(BernoulliActor):
    """The boundary policy of a U-Net (Eq. 19-23); shares the boundary head and the norm before it.

    Reads ``encoder_state``. A model with ``rate_embedding`` also reads the key ``target_rate`` [*B, 1], unless one
    ``target_rate`` for all rows is given. Gradients flow through ``encoder_state`` to the encoder.
    """

    def __init__(self, model: UNet, *, target_rate: float | None = None) -> None:
        row_rates(model.config, target_rate, torch.zeros(1))  # raise for a wrong rate now
        keys = ["target_rate"] if model.config.rate_embedding and target_rate is None else []
        super().__init__(_HeadTerms(model, target_rate), in_keys=["encoder_state", *keys])


class _HeadTerms(Terms):
    def __init__(self, model: UNet, target_rate: float | None) -> None:
        super().__init__()
        self.norm, self.head = model.encoder_norm, model.boundary_head
        self.config, self.target_rate = model.config, target_rate

    @property
    def cap(self) -> float | None:
        return self.head.cap

    @property
    def num_lags(self) -> int:
        return self.head.num_lags

    def forward(self, *features: Tensor) -> BoundaryTerms:
        states, *rate = features
        rates = row_rates(self.config, rate[0].squeeze(-1) if rate else self.target_rate, states[..., 0])
        normed = self.norm(states.to(self.head.projection.weight.dtype))  # observations are always float32
        return self.head(normed, None if rates is None else rate_logits(rates))


class RandomActor(BernoulliActor):
    """Boundaries with the same probability at every byte; the rate lies in (0, 1)."""

    def __init__(self, rate: float) -> None:
        check_number("rate", rate, "(0, 1)")
        super().__init__(_ConstantTerms(rate), in_keys=["position"])


class _ConstantTerms(Terms):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.logit = math.log(rate) - math.log1p(-rate)

    def forward(self, *features: Tensor) -> BoundaryTerms:
        (position,) = features
        base = torch.full(position.shape[:-1], self.logit, device=position.device)
        return BoundaryTerms(base, base.new_zeros(*base.shape, 0))


class RolloutPolicy(_BoundaryPolicy):
    """Scores decisions by the ``logits`` of a rollout, with the gradient that these carry.

    Losses that need an actor (clipped ratios, importance weights) use it instead of running the policy again.
    """

    def __init__(self) -> None:
        super().__init__(TensorDictModule(_stored_logits, in_keys=["logits", "forced"], out_keys=["logits"]))


def _stored_logits(logits: Tensor, forced: Tensor) -> Tensor:
    return logits
