"""Actors that draw boundaries at random: the model's own policy, and one that knows nothing but a rate.

Both act step by step and on whole windows. TorchRL's switch :func:`torchrl.modules.set_recurrent_mode` says which: off,
``forward`` decides one byte per row; on, it draws all boundaries of rows ``[*B, T]`` at once with the exact sampler.
Scoring (``get_dist``, as losses do) is the same in both: it reads the earlier boundaries from ``recent``.
"""

from __future__ import annotations

import math

import torch
from rltok_rl.agents.distribution import BernoulliBoundary
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor
from torchrl.modules.tensordict_module.rnn import recurrent_mode

from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob, lagged_logit, recent_boundaries
from rltok_rl.models.embeddings import rate_logits, row_rates
from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import sample_boundaries


class Terms(nn.Module):
    """Makes the terms of boundary logits from some features of a byte."""

    @property
    def cap(self) -> float | None:
        """Soft cap of the logits, None for none."""
        return None

    @property
    def num_lags(self) -> int:
        """Earlier boundaries that the logits read, w."""
        return 0

    def forward(self, *features: Tensor) -> BoundaryTerms:
        """Features [*L, ...] to base [*L] and lags [*L, w]."""
        raise NotImplementedError


class BernoulliActor(ProbabilisticActor):
    """A boundary actor whose logits are sums over lags.

    Reads ``recent`` and ``forced`` beside the keys of its terms; writes ``logits``, ``entropy``, ``action`` (int64) and
    ``action_log_prob``, all without a trailing dimension.

    Args:
        terms: what the logits are made of.
        in_keys: what ``terms`` reads.
    """

    draws_windows = True
    """``forward`` serves whole windows in recurrent mode, so that an environment may take its parallel path."""

    @property
    def draws_at_random(self) -> bool:
        """Whether it needs random numbers now, rather than the likelier decision (``set_exploration_type``)."""
        return not self._greedy()

    def __init__(self, terms: Terms, in_keys: list[str]) -> None:
        logits = TensorDictModule(
            _Logits(terms), in_keys=[*in_keys, "recent", "forced"], out_keys=["logits", "entropy"]
        )
        super().__init__(
            logits,
            in_keys=["logits", "forced"],
            out_keys=["action"],
            distribution_class=BernoulliBoundary,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        )
        self.terms_in_keys = in_keys

    @property
    def terms(self) -> Terms:
        """The module that makes the terms of the logits."""
        return self.module[0].module.terms

    def forward(self, tensordict: TensorDictBase, **options: object) -> TensorDictBase:
        """Decide one byte per row; in recurrent mode draw the boundaries of whole windows.

        Args:
            tensordict: one step per row, or windows [*B, T] of which each is one text from its first byte on. Windows
                may hold ``uniform``, the random numbers in [0, 1) to draw with.
            **options: passed on when single steps are decided.
        """
        if not recurrent_mode():
            return super().forward(tensordict, **options)
        terms: BoundaryTerms = self.terms(*(tensordict.get(key) for key in self.terms_in_keys))
        forced = tensordict.get("forced")
        boundaries = sample_boundaries(
            *(x.detach() for x in terms),
            uniforms=None if self._greedy() else tensordict.get("uniform", None),
            cap=self.terms.cap,
            force_first=False,
            forced=forced.long() * 2 - 1,  # 1 where forced, -1 (free) elsewhere
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
            raise ValueError(
                f"exploration type must be one of ['RANDOM', 'MODE', 'DETERMINISTIC'] to draw boundaries, "
                f"got {kind.name}"
            )
        return kind is not InteractionType.RANDOM


class _Logits(nn.Module):
    """Logits and entropies from terms and the boundaries before."""

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
    """The boundary policy of a U-Net (Eq. 19-23), sharing its parameters.

    The actor holds the boundary head and the norm before it. It reads ``encoder_state``; where that carries a gradient,
    so does all that is written, down to the encoder. Where the model has ``rate_embedding`` it reads ``target_rate``
    too, [*B, 1].

    Args:
        model: the U-Net.
        target_rate: one rate for all rows, of a model with ``rate_embedding``; ``target_rate`` is not read then.
    """

    def __init__(self, model: UNet, *, target_rate: float | None = None) -> None:
        row_rates(model.config, target_rate, torch.zeros(1))  # refuse a wrong rate now
        reads = ["target_rate"] if model.config.rate_embedding and target_rate is None else []
        super().__init__(_HeadTerms(model, target_rate), in_keys=["encoder_state", *reads])


class _HeadTerms(Terms):
    def __init__(self, model: UNet, target_rate: float | None) -> None:
        super().__init__()
        self.norm, self.head, self.config, self.target_rate = (
            model.encoder_norm,
            model.boundary_head,
            model.config,
            target_rate,
        )

    @property
    def cap(self) -> float | None:
        return self.head.cap

    @property
    def num_lags(self) -> int:
        return self.head.num_lags

    def forward(self, *features: Tensor) -> BoundaryTerms:
        states, *given = features
        rates = row_rates(self.config, given[0].squeeze(-1) if given else self.target_rate, states[..., 0])
        # Observations are float32 whatever the model is.
        normed = self.norm(states.to(self.norm.weight.dtype))
        return self.head(normed, None if rates is None else rate_logits(rates))


class RandomActor(BernoulliActor):
    """Boundaries with one probability everywhere.

    Args:
        rate: boundaries per byte, in (0, 1).
    """

    def __init__(self, rate: float) -> None:
        if not 0.0 < rate < 1.0:
            raise ValueError(f"rate must lie strictly between 0 and 1, got {rate}")
        super().__init__(_ConstantTerms(rate), in_keys=["position"])


class _ConstantTerms(Terms):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.logit = math.log(rate) - math.log1p(-rate)

    def forward(self, *features: Tensor) -> BoundaryTerms:
        (position,) = features
        base = torch.full(position.shape[:-1], self.logit, device=position.device)
        return BoundaryTerms(base, base.new_zeros(*base.shape, 0))
