"""Bernoulli distribution over integer boundary decisions.

``torch.distributions.Bernoulli`` samples floats, rejects integers in ``log_prob`` and has no mode at p = 1/2. A
boundary is an action of a categorical space with two values, where all three occur.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob
from rltok_rl.sampling import draw_boundary

Shape = torch.Size | list[int] | tuple[int, ...]


class BernoulliBoundary(Distribution):
    """Boundaries with probability ``sigmoid(logits)``, logits [*L].

    Boundaries ``forced`` [*L] are drawn for any logit; their log-probability and entropy are 0.

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
        return boundary_log_prob(logits, value, forced=self.forced)

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
