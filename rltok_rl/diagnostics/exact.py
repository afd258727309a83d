"""The exact gradient of the expected loss, by enumeration of all boundary strings.

    L(theta) = E_{a ~ pi_theta} [ -(1/T) sum_t log p_theta(x_{t+1} | x_<=t, a_<=t) ]

    dL/dtheta = sum_a L(a) dpi(a)/dtheta   +   sum_a pi(a) dL(a)/dtheta
                 through the policy            through the language model

The first half is what score-function estimators estimate; the second is ordinary backpropagation.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.diagnostics.enumeration import Texts, enumerate_rollouts
from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models.unet import UNet


@dataclass(frozen=True)
class ExactGradient:
    """The expected loss of some texts and its gradient, in float64."""

    loss: Tensor  # [] nats per byte, averaged over boundary strings and texts
    base: Tensor  # [M, T] gradient with respect to the base terms of the boundary logits, through the policy
    lags: Tensor  # [M, T, w] the same for the lag terms
    policy: dict[str, Tensor]  # by parameter, what reaches it through the policy
    likelihood: dict[str, Tensor]  # by parameter, what reaches it through the log-likelihoods

    @property
    def total(self) -> dict[str, Tensor]:
        """By parameter, the gradient of the expected loss."""
        return {name: self.policy[name] + self.likelihood[name] for name in self.policy}


def expected_loss(model: UNet, texts: Texts, *, price: float = 0.0) -> Tensor:
    """The expected loss in nats per byte, differentiable through policy and language model.

    Args:
        model: the U-Net, as it is: its mode and its precision.
        texts: M texts of one length, at most 17 bytes each.
        price: nats charged per boundary drawn.

    Returns:
        [] nats per byte, the mean over texts.

    Example:
        >>> from rltok_rl.models import preset
        >>> expected_loss(UNet(preset("tiny")), "to be") > 0
        tensor(True)
    """
    _, weights, losses = _per_string(model, texts, price)
    return (weights * losses).sum(-1).mean()


def exact_gradient(model: UNet, texts: Texts, *, price: float = 0.0) -> ExactGradient:
    """Differentiate the expected loss over all boundary strings, in float64.

    Args:
        model: the U-Net; left as it is, a float64 copy is used.
        texts: M texts of one length, at most 17 bytes each; 13 bytes (2,048 strings) take seconds with a tiny model.
        price: nats charged per boundary drawn.

    Returns:
        The expected loss and its gradients.
    """
    model = copy.deepcopy(model).double().requires_grad_()
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        rollouts, weights, losses = _per_string(model, texts, price)
        through_policy = (weights * losses.detach()).sum(-1).mean()
        through_likelihood = (weights.detach() * losses).sum(-1).mean()
    parameters = dict(model.named_parameters())
    halves = []
    for half in (through_policy, through_likelihood):
        found = torch.autograd.grad(half, list(parameters.values()), retain_graph=True, materialize_grads=True)
        halves.append(dict(zip(parameters, found, strict=True)))
    base, lags = _term_gradients(model, rollouts["encoder_state"][:, 0], rollouts["action"], losses)
    return ExactGradient(through_policy.detach(), base, lags, policy=halves[0], likelihood=halves[1])


def _per_string(model: UNet, texts: Texts, price: float) -> tuple[TensorDictBase, Tensor, Tensor]:
    """Rollouts [M, n, T] of all strings, their probabilities [M, n] and their losses [M, n] in nats per byte."""
    rollouts = enumerate_rollouts(model, texts, price=price)
    charged = price * rollouts["action"].to(rollouts["logits"].dtype)
    losses = (charged - rollouts["next", "final_log_prob"].squeeze(-1)).mean(-1)
    return rollouts, rollouts["log_weight"][..., 0].exp(), losses


def _term_gradients(model: UNet, states: Tensor, boundaries: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the expected loss with respect to the terms of the boundary logits, [M, T] and [M, T, w]."""
    with torch.enable_grad():
        base, lags = (x.detach().requires_grad_() for x in model.boundary_terms(states.detach()))
        count = boundaries.shape[1]
        logits = boundary_logits(
            base.unsqueeze(1).expand(-1, count, -1),
            lags.unsqueeze(1).expand(-1, count, -1, -1),
            boundaries,
            cap=model.boundary_cap,
        )
        free = torch.where(boundaries.bool(), logits, -logits)[..., 1:]  # the first decision is forced
        weights = F.logsigmoid(free).sum(-1).exp()
        expected = (weights * losses.detach()).sum(-1).mean()
        base_gradient, lag_gradient = torch.autograd.grad(expected, (base, lags), materialize_grads=True)
    return base_gradient, lag_gradient
