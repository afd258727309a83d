"""Dynamic token pooling with stochastic boundaries (Nawrot et al.): a Gumbel-sigmoid, straight through to pooling.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments, State
from torch import Tensor, nn

from rltok_rl.functional.boundary_rules import entropy_spikes
from rltok_rl.functional.rate import binomial_cost, check_target
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models.mixing import Mixing
from rltok_rl.sampling import draw_boundary

Evaluation = Literal["sample", "round"]
Fidelity = Literal["paper", "released"]


def relaxed_boundaries(logits: Tensor, boundaries: Tensor, uniforms: Tensor | None, temperature: float) -> Tensor:
    """Decisions straight through a Gumbel-sigmoid.

        s_t = sigmoid((l_t - logit(u_t)) / tau),        a_t = [s_t > 1/2],        a_t + s_t - sg(s_t)

    With the threshold at one half, a_t is exactly Bernoulli(sigmoid(l_t)); the temperature shapes the gradient alone.

    Args:
        logits: [*L] l.
        boundaries: [*L] the decisions a, drawn with the same random numbers.
        uniforms: [*L] in [0, 1) u; None is without noise.
        temperature: tau.

    Returns:
        [*L], 0 or 1 in value.

    Example:
        >>> l = torch.tensor([1.0], requires_grad=True)
        >>> relaxed_boundaries(l, torch.tensor([True]), torch.tensor([0.5]), 0.5)
        tensor([1.], grad_fn=<AddBackward0>)
    """
    noise = 0.0 if uniforms is None else torch.logit(uniforms.to(logits.dtype), eps=1e-7)
    relaxed = ((logits - noise) / temperature).sigmoid()
    return boundaries.to(relaxed.dtype) + (relaxed - relaxed.detach())  # the bracket is 0 exactly


def group_weights(soft: Tensor) -> Tensor:
    """How the number of boundaries before a byte says which group it is in, as a factor of its part in the group.

        w_t = 1 + g_t - sg(g_t),        g_t = sum_{0 < u < t} a_u

    In the paper byte t has weight ``1 - |s - g_t|`` in group s, 1 where s = g_t, with the gradient of g_t. Other groups
    are cut off, so that one factor per byte says all of it without a matrix of bytes and groups.

    Args:
        soft: [*B, T] decisions, straight through; the first, which opens the text, is not one.

    Returns:
        [*B, T], 1 in value.
    """
    free = nn.functional.pad(soft[..., 1:], (1, 0))  # [*B, T]
    count = free.cumsum(-1) - free
    return 1 + (count - count.detach())


def decision_cost(logits: Tensor, targets: Tensor, fidelity: Fidelity) -> Tensor:
    """Mean binary cross-entropy of boundary logits, in nats.

    Args:
        logits: [*L] l.
        targets: [*L] bool, the boundaries that should have been drawn.
        fidelity: ``"released"`` passes probabilities to a loss that takes logits, so that they go through a sigmoid
            twice.

    Example:
        >>> decision_cost(torch.zeros(2), torch.tensor([True, False]), "paper")
        tensor(0.6931)
    """
    given = logits if fidelity == "paper" else logits.sigmoid()
    return nn.functional.binary_cross_entropy_with_logits(given, targets.to(given.dtype))


class NullGroup(nn.Module):
    """Tokens as in Nawrot et al.: means, LayerNorm, and a learned token that serves bytes before the first group.

    The model's forced boundary at byte 0 stands for that token, so that byte 0 itself waits for the next boundary.

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.null = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, weights: Tensor | None = None) -> Mixing:
        """The mixing of a window or a step, with straight-through weights [B, T] or None."""
        return Mixing(pooling="mean", pool_weights=weights, first_token=self.null, token_norm=self.norm)


def perceptron(width: int, hidden: int, activation: Literal["gelu", "relu"] = "gelu") -> nn.Sequential:
    """One hidden layer from encoder states [*L, D] to boundary logits [*L, 1].

    Args:
        width: D.
        hidden: hidden width.
        activation: of the hidden layer.
    """
    if activation not in ("gelu", "relu"):
        raise ValueError(f"activation must be one of ['gelu', 'relu'], got {activation!r}")
    act = nn.GELU() if activation == "gelu" else nn.ReLU()
    return nn.Sequential(nn.Linear(width, hidden), act, nn.Linear(hidden, 1))


class Predicted(Segmenter):
    """Boundary logits from encoder states by a perceptron with one hidden layer."""

    def __init__(self, width: int, hidden: int, activation: Literal["gelu", "relu"]) -> None:
        super().__init__()
        self.predictor = perceptron(width, hidden, activation)
        self.tokens = NullGroup(width)

    def _logits(self, states: Tensor) -> Tensor:
        logits = self.predictor(states).squeeze(-1)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        logits = self._logits(states)  # [B, T]
        return Segments(draw_boundary(logits, uniforms), logits=logits, mixing=self.tokens())

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        logits = self._logits(states)  # [B]
        return Segments(draw_boundary(logits, uniforms), logits=logits, mixing=self.tokens()), {}


class GumbelSegmenter(Predicted):
    """Boundaries drawn from predicted probabilities, trained straight through pooling.

    Args:
        width: D.
        target_rate: boundaries per byte, the prior of the binomial loss.
        hidden: hidden width of the predictor.  # 2048 released; D in the paper this library follows
        activation: of the predictor.
        temperature: of the relaxation; the draws do not depend on it.
        evaluation: outside training, ``"round"`` probabilities (as the paper says) or ``"sample"`` (as its code does).

    Reference: https://arxiv.org/abs/2211.09761
    """

    coefficients = {"binomial": 1.0}

    def __init__(
        self,
        width: int,
        *,
        target_rate: float,
        hidden: int = 2048,
        activation: Literal["gelu", "relu"] = "gelu",
        temperature: float = 0.5,
        evaluation: Evaluation = "sample",
    ) -> None:
        super().__init__(width, hidden, activation)
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.target_rate = check_target(target_rate)
        self.temperature, self.evaluation = temperature, check_evaluation(evaluation)

    @property
    def draws_at_random(self) -> bool:
        """In training always; in evaluation where it samples."""
        return self.training or self.evaluation == "sample"

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        logits = self._logits(states)  # [B, T]
        boundaries = draw_boundary(logits, uniforms)
        soft = relaxed_boundaries(logits, boundaries, uniforms, self.temperature)
        return Segments(boundaries, logits=logits, soft=soft, mixing=self.tokens(group_weights(soft)))

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """``binomial``: how unlikely the number of boundaries is at the target rate, in nats per byte."""
        assert segments.soft is not None and self.target_rate is not None
        free = segments.soft[:, 1:]  # [B, T - 1]
        trials = torch.full_like(free[:, :1].sum(-1), free.shape[-1])
        return {"binomial": binomial_cost(free.sum(-1), trials, self.target_rate).mean()}


class TrainedSpike(Predicted):
    """A predictor that learns where the model's own next-byte entropies spike (Nawrot et al.).

        a_t = [l_t > 0],        L = mean_t BCE(l_t, [H_t > H_{t-j} for j = 1 .. k]),  H of the whole model, no gradient

    Args:
        width: D.
        lags: k.
        hidden: hidden width of the predictor.
        activation: of the predictor.
        fidelity: ``"paper"``, or ``"released"``: the released code passes probabilities to a loss that takes logits, so
            that they go through a sigmoid twice.

    Reference: https://arxiv.org/abs/2211.09761
    """

    coefficients = {"spikes": 1.0}

    def __init__(
        self,
        width: int,
        *,
        lags: int = 2,
        hidden: int = 2048,
        activation: Literal["gelu", "relu"] = "gelu",
        fidelity: Fidelity = "paper",
    ) -> None:
        super().__init__(width, hidden, activation)
        self.lags, self.fidelity = lags, check_fidelity(fidelity)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """``spikes``: binary cross-entropy of the predictor, in nats."""
        assert segments.logits is not None
        spikes = entropy_spikes(prediction_entropy(final_logits.detach()), self.lags)
        return {"spikes": decision_cost(segments.logits, spikes, self.fidelity)}


def check_evaluation(evaluation: Evaluation) -> Evaluation:
    """Require a known way to evaluate."""
    if evaluation not in ("sample", "round"):
        raise ValueError(f"evaluation must be one of ['sample', 'round'], got {evaluation!r}")
    return evaluation


def check_fidelity(fidelity: Fidelity) -> Fidelity:
    """Require a known fidelity."""
    if fidelity not in ("paper", "released"):
        raise ValueError(f"fidelity must be one of ['paper', 'released'], got {fidelity!r}")
    return fidelity
