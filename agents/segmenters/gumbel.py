"""Dynamic token pooling with stochastic boundaries (Nawrot et al.): a Gumbel-sigmoid, straight through to pooling.

Shapes: B rows, T bytes, D width. Reference: https://arxiv.org/abs/2211.09761
"""

from __future__ import annotations

from typing import Literal

import torch
from rltok_rl.agents.segmenters.segmenter import (
    Evaluation,
    Hidden,
    Probability,
    Reach,
    Segmenter,
    Segments,
    State,
    check_choice,
    rate_or_default,
)
from torch import Tensor, nn

from rltok_rl.functional.boundary_rules import entropy_spikes
from rltok_rl.functional.rate import binomial_cost, check_target
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import draw_boundary

Fidelity = Literal["paper", "released"]
Variant = Literal["nawrot", "baseline"]
HIDDEN = 2048
"""Hidden width of the released predictor."""


def relaxed_boundaries(logits: Tensor, boundaries: Tensor, uniforms: Tensor | None, temperature: float) -> Tensor:
    """Give decisions [*L] the gradient of a Gumbel-sigmoid of the uniforms they were drawn with; None is no noise.

        s_t = sigmoid((l_t - logit(u_t)) / tau),        a_t = [s_t > 1/2],        a_t + s_t - sg(s_t)

    Thus a_t is exactly Bernoulli(sigmoid(l_t)), and the temperature only shapes the gradient.
    """
    noise = 0.0 if uniforms is None else torch.logit(uniforms.to(logits.dtype), eps=1e-7)
    relaxed = ((logits - noise) / temperature).sigmoid()
    return boundaries.to(relaxed.dtype) + (relaxed - relaxed.detach())  # the difference is exactly 0


def group_weights(soft: Tensor) -> Tensor:
    """Weigh each byte in its group, with the gradient of the number of boundaries before it.

        w_t = 1 + g_t - sg(g_t),        g_t = sum_{0 < u < t} a_u

    One factor per byte [*B, T] replaces the paper's matrix of bytes and groups, ``1 - |s - g_t|`` where s = g_t and 0
    elsewhere. The first of the straight-through decisions [*B, T] opens the text and does not count.
    """
    free = nn.functional.pad(soft[..., 1:], (1, 0))  # [*B, T]
    count = free.cumsum(-1) - free
    return 1 + (count - count.detach())


def decision_cost(logits: Tensor, targets: Tensor, fidelity: Fidelity) -> Tensor:
    """Compute the mean binary cross-entropy in nats; the released code passes probabilities for logits."""
    inputs = logits if fidelity == "paper" else logits.sigmoid()
    return nn.functional.binary_cross_entropy_with_logits(inputs, targets.to(inputs.dtype))


class NullGroup(nn.Module):
    """Tokens as in Nawrot et al.: means, LayerNorm, and a learned null token for bytes before the first group.

    The model's forced boundary at byte 0 stands for the null token, so byte 0 itself waits for the next boundary.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.null = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, weights: Tensor | None = None) -> Mixing:
        """Return the mixing of a window or a step, with straight-through weights [B, T] or None."""
        return Mixing(pooling="mean", pool_weights=weights, first_token=self.null, token_norm=self.norm)


class Perceptron(nn.Sequential):
    """One hidden layer from encoder states [*L, D] to boundary logits [*L], in float32 at least."""

    def __init__(self, width: int, hidden: int, activation: type[nn.Module] = nn.GELU) -> None:
        super().__init__(nn.Linear(width, hidden), activation(), nn.Linear(hidden, 1))

    def forward(self, states: Tensor) -> Tensor:
        """Compute the logits."""
        logits = super().forward(states).squeeze(-1)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def draw_segments(
    logits: Tensor, uniforms: Tensor | None, tokens: NullGroup, temperature: float | None = None
) -> Segments:
    """Draw by logits [B, T] or [B]; with a temperature, windows are pooled straight through their boundaries."""
    boundaries = draw_boundary(logits, uniforms)
    if temperature is None:
        return Segments(boundaries, logits=logits, mixing=tokens())
    soft = relaxed_boundaries(logits, boundaries, uniforms, temperature)
    return Segments(boundaries, logits=logits, soft=soft, mixing=tokens(group_weights(soft)))


class Predicted(Segmenter):
    """Boundaries from encoder states by a perceptron, and Nawrot's tokens."""

    temperature: float | None = None
    """Temperature of the relaxation through which windows are trained; does not change the draws. None is without."""

    def __init__(self, width: int, hidden: int, activation: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.predictor = Perceptron(width, hidden, activation)
        self.tokens = NullGroup(width)

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        return draw_segments(self.predictor(states), uniforms, self.tokens, self.temperature)

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        return self._window(states, byte_ids, uniforms), {}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        return draw_segments(self.predictor(states), uniforms, self.tokens), {}


class GumbelSegmenter(Predicted):
    """Boundaries drawn from predicted probabilities, trained straight through pooling.

    ``rate`` is the prior of the binomial loss. The variant ``"baseline"`` has a smaller predictor with a ReLU and twice
    the temperature. Outside training, ``"round"`` rounds probabilities as in the paper and ``"sample"`` samples as in
    its code.
    """

    coefficients = {"binomial": 1.0}
    target_rate: float

    def __init__(
        self,
        model: UNet,
        rate: Probability | None = None,
        variant: Variant = "nawrot",
        evaluation: Evaluation = "sample",
        hidden: Hidden | None = None,
    ) -> None:
        width = model.config.width
        variants = {"nawrot": (HIDDEN, nn.GELU, 0.5), "baseline": (width, nn.ReLU, 1.0)}
        default, activation, temperature = variants[check_choice("variant", variant, Variant)]
        super().__init__(width, default if hidden is None else hidden, activation)
        self.temperature = temperature
        self.target_rate = check_target(rate_or_default(model, rate))
        self.evaluation = check_choice("evaluation", evaluation, Evaluation)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``binomial``: minus the log-probability of the number of boundaries at the target rate, per byte."""
        assert segments.soft is not None
        free = segments.soft[:, 1:]  # [B, T - 1]
        trials = torch.full_like(free[:, :1].sum(-1), free.shape[-1])
        return {"binomial": binomial_cost(free.sum(-1), trials, self.target_rate).mean()}


class TrainedSpike(Predicted):
    """A predictor that learns where the model's next-byte entropies spike (Nawrot et al.).

        a_t = [l_t > 0],        L = mean_t BCE(l_t, [H_t > H_{t-j} for j = 1 .. lags]),  H of the whole model, detached

    ``fidelity="released"`` is the released code, which passes probabilities to a loss that takes logits.
    """

    coefficients = {"spikes": 1.0}

    def __init__(self, model: UNet, *, lags: Reach = 2, hidden: Hidden = HIDDEN, fidelity: Fidelity = "paper") -> None:
        super().__init__(model.config.width, hidden)
        self.lags, self.fidelity = lags, check_choice("fidelity", fidelity, Fidelity)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``spikes``: binary cross-entropy of the predictor, in nats."""
        assert segments.logits is not None
        spikes = entropy_spikes(prediction_entropy(final_logits.detach()), self.lags)
        return {"spikes": decision_cost(segments.logits, spikes, self.fidelity)}
