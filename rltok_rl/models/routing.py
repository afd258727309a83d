"""What decides by H-Net's rule where tokens become tokens of tokens.

Shapes: B rows, S tokens of the longest row, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltok_rl.functional.routing import confidence, routing_probability, smoothing_shares
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.layers import RMSNorm
from rltok_rl.models.mixing import Mixing


class Routing(nn.Module):
    """H-Net's rule between neighbouring tokens, and what it makes of their values.

        p_s = (1 - cos(W_q x_{s-1}, W_k x_s)) / 2,   p_0 = 1,   b_s = [p_s > 1/2]
        U_j = P_j M_j + (1 - P_j) U_{j-1},           P = p cut to [1e-4, 1 - 1e-4]
        y_s = R(x_s) + STE(c_s) U_{j(s)},            c_s = p_s at a boundary, 1 - p_s elsewhere

    With ``second_residual="projection"``, x = RMSNorm(z), M = RMSNorm(layers(x)) and R is linear and zero at first;
    with ``"identity"`` there are no norms and R(x) = x = z.

    Reference: https://arxiv.org/abs/2507.07955
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        width, projects = config.width, config.second_residual == "projection"
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.token_norm = RMSNorm(width, config.norm_eps) if projects else nn.Identity()
        self.update_norm = RMSNorm(width, config.norm_eps) if projects else nn.Identity()
        self.residual = nn.Linear(width, width) if projects else nn.Identity()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Neighbours are compared as they are; nothing goes past the second level."""
        for projection in (self.query, self.key):
            projection.weight.copy_(torch.eye(len(projection.weight)))
        for parameter in self.residual.parameters():
            parameter.zero_()

    def probabilities(self, states: Tensor) -> Tensor:
        """[B, S, D] token states to [B, S]; 1 at the first token."""
        x = self.token_norm(states)
        free = routing_probability(self.query(x[:, :-1]), self.key(x[:, 1:]))  # [B, S - 1]
        return nn.functional.pad(free, (1, 0), value=1.0)

    def mixing(self, probs: Tensor, boundaries: Tensor) -> Mixing:
        """What goes into tokens of tokens and comes of them."""
        return Mixing(
            token_norm=self.token_norm,
            update_norm=self.update_norm,
            smoothing=smoothing_shares(probs),
            residual=self.own,
            receive=confidence(probs, boundaries),
        )

    def own(self, states: Tensor) -> Tensor:
        """What of a token goes on beside its token of tokens: R(x), [*L, D] to [*L, D]."""
        return self.residual(self.token_norm(states))
