"""A boundary policy from any network, on stepped and parallel rollouts alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rltok_rl.agents.bernoulli import BernoulliActor, Terms
from torch import Tensor, nn

from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.utils import check_count

AFTER_BOUNDARIES = ("recent", "final_log_prob", "second_boundary", "second_probability")
"""Observations that depend on earlier boundaries, which a parallel rollout has yet to draw."""


class NetworkActor(BernoulliActor):
    """A custom boundary policy: any network from each byte's observations to its logit.

        l_t = base_t + sum_j a_{t-j} lags_{t,j}        network(*observations) = (base_t, lags_{t,1}, ..., lags_{t,w})

    The network takes the entries of ``in_keys`` as positional arguments, ``[*B, ...]`` when stepped and
    ``[*B, T, ...]`` in windows, and returns ``[*B, 1 + w]`` or ``[*B, T, 1 + w]``. It must compute each byte's outputs
    from that byte's entries alone, which the first call checks; ``encoder_state`` summarises all bytes so far.

    Args:
        network: the network. Recurrent ones are refused: they need a stepped rollout.
        in_keys: observations to read, of those that do not depend on earlier boundaries.
        num_lags: w, earlier boundaries that the logit depends on; at most ``num_lags`` of the environment's model.
        cap: soft cap of the logits; None for no cap.
    """

    def __init__(
        self, network: nn.Module, in_keys: Sequence[str], *, num_lags: int = 0, cap: float | None = None
    ) -> None:
        late = [key for key in in_keys if key in AFTER_BOUNDARIES]
        if isinstance(in_keys, str) or late:
            raise ValueError(
                f"in_keys must be a list of observations that do not depend on earlier boundaries, got {in_keys!r}; "
                f"num_lags=w reads the last w boundaries, and TorchRL's ProbabilisticActor steps with any observation"
            )
        if not isinstance(network, nn.Module):
            raise TypeError(f"network must be a torch.nn.Module, got {network!r}")
        check_count("num_lags", num_lags, minimum=0)
        for module in network.modules():
            if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
                raise ValueError(
                    f"network must read each byte alone, got {type(module).__name__}, which reads bytes in order; step "
                    f"a recurrent policy with torchrl.collectors.Collector, or read encoder_state"
                )
        super().__init__(_NetworkTerms(network, num_lags, cap), in_keys=list(in_keys))


class _NetworkTerms(Terms):
    def __init__(self, network: nn.Module, num_lags: int, cap: float | None) -> None:
        super().__init__()
        self.network, self._num_lags, self._cap = network, num_lags, cap
        self._checked = False

    @property
    def cap(self) -> float | None:
        return self._cap

    @property
    def num_lags(self) -> int:
        return self._num_lags

    def forward(self, *features: Tensor) -> BoundaryTerms:
        outputs = self.network(*features)  # [*L, 1 + w]
        if outputs.shape[-1:] != (1 + self.num_lags,):
            raise ValueError(
                f"network must return [*B, T, {1 + self.num_lags}] with num_lags={self.num_lags}, "
                f"got {list(outputs.shape)}"
            )
        if not self._checked and outputs[..., 0].numel() > 1:
            self._check_one_byte(features, outputs.dim() - 1)
            self._checked = True
        return BoundaryTerms(outputs[..., 0], outputs[..., 1:])

    @torch.no_grad()
    def _check_one_byte(self, features: Sequence[Tensor], num_dims: int) -> None:
        """Require that the outputs of the last byte, read alone, are those of the batch, without dropout."""
        modes = [(module, module.training) for module in self.network.modules()]
        try:
            self.network.eval()
            with torch.autocast(features[0].device.type, enabled=False):
                batch = self.network(*features).flatten(0, num_dims - 1)[-1]
                alone = self.network(*(feature.flatten(0, num_dims - 1)[-1:] for feature in features))[0]
        finally:
            for module, training in modes:
                module.training = training
        if not torch.allclose(alone, batch, rtol=1e-2, atol=1e-3):
            raise ValueError(
                f"network must read each byte alone, got {type(self.network).__name__}, whose outputs depend on other "
                f"bytes or rows; read encoder_state, which summarises all bytes so far"
            )
