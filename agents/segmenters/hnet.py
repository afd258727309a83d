"""H-Net's dynamic chunking: boundaries where neighbouring states are unlike.

A second stage is the model's second level; its target rate is set here, and its loss is the model's.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments, State
from torch import Tensor, nn

from rltok_rl.functional.rate import check_target, load_balance
from rltok_rl.functional.routing import Method, confidence, routing_probability, smoothing_shares
from rltok_rl.models.layers import RMSNorm
from rltok_rl.models.mixing import Mixing


def stage_multipliers(chunk_sizes: list[float], widths: list[int], *, gpt_chunk: float = 4.6) -> list[float]:
    """Learning-rate factors of the stages, outermost first.

        m_s = sqrt(N_GPT  prod_{i >= s} N_i / prod_{i >= 0} N_i  D_S / D_s),        N_S = 1

    Args:
        chunk_sizes: N_0 .. N_{S-1}, bytes (or tokens of the stage before) per token.
        widths: D_0 .. D_S, one more than there are chunk sizes.
        gpt_chunk: bytes per token of the tokenizer that the base learning rate was tuned with.

    Example:
        >>> [round(m, 2) for m in stage_multipliers([6.0], [1024, 1536])]
        [2.63, 0.88]

    Reference: https://arxiv.org/abs/2507.07955
    """
    if len(widths) != len(chunk_sizes) + 1:
        raise ValueError(f"widths must have one entry more than chunk_sizes, got {len(widths)} and {len(chunk_sizes)}")
    sizes = [*chunk_sizes, 1.0]
    everything = math.prod(sizes)
    return [
        math.sqrt(gpt_chunk * math.prod(sizes[s:]) / everything * widths[-1] / width) for s, width in enumerate(widths)
    ]


class HNetSegmenter(Segmenter):
    """Cosine routing, confidence straight through, smoothing over tokens, a residual projection that starts at zero.

        p_t = (1 - cos(W_q x_{t-1}, W_k x_t)) / 2,   p_0 = 1,   a_t = [p_t > 1/2],   x = RMSNorm(X)
        U_j = P_j Mid_j + (1 - P_j) U_{j-1},         P = p clipped to [1e-4, 1 - 1e-4]
        Y_t = R(x_t) + STE(c_t) U_{i(t)},            c_t = p_t at a boundary, 1 - p_t elsewhere

    The learning-rate factors of the paper are ``multipliers``; ``LoopOptions.stage_factors`` takes them, and
    :func:`~rltok_rl.agents.segmenters.stages.stage_groups` hands them to any optimizer.

    Args:
        width: D.
        target_rate: boundaries per byte, 1/N of the ratio loss.
        second_rate: tokens of tokens per token, 1/N of the second stage; None with one stage.
        residual: ``"projection"``, zero at first, or ``"identity"``, all of a byte's state.
        norms: normalise byte states before routing and pooling, and tokens after the token layers.
        smoothing: how windows are smoothed.
        norm_eps: of the norms.

    Reference: https://arxiv.org/abs/2507.07955
    """

    coefficients = {"ratio": 0.03}

    def __init__(
        self,
        width: int,
        *,
        target_rate: float,
        second_rate: float | None = None,
        residual: Literal["projection", "identity"] = "projection",
        norms: bool = True,
        smoothing: Method = "scan",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if residual not in ("projection", "identity"):
            raise ValueError(f"residual must be one of ['projection', 'identity'], got {residual!r}")
        self.target_rate, self.smoothing = check_target(target_rate), smoothing
        self.second_rate = None if second_rate is None else check_target(second_rate)
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.byte_norm = RMSNorm(width, norm_eps) if norms else nn.Identity()
        self.token_norm = RMSNorm(width, norm_eps) if norms else nn.Identity()
        self.residual = nn.Linear(width, width) if residual == "projection" else None
        with torch.no_grad():
            for projection in (self.query, self.key):
                projection.weight.copy_(torch.eye(width))
            if self.residual is not None:
                self.residual.weight.zero_()
                self.residual.bias.zero_()

    @property
    def multipliers(self) -> list[float]:
        """Learning-rate factors of the stages, outermost first; widths are equal."""
        rates = [rate for rate in (self.target_rate, self.second_rate) if rate is not None]
        width = self.query.in_features
        return stage_multipliers([1 / rate for rate in rates], [width] * (len(rates) + 1))

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        x = self.byte_norm(states)  # [B, T, D]
        free = routing_probability(self.query(x[:, :-1]), self.key(x[:, 1:]))  # [B, T - 1]
        return self._segments(nn.functional.pad(free, (1, 0), value=1.0))

    def _start(self, num_rows: int, device: torch.device) -> State:
        weight = self.query.weight
        return {"query": weight.new_zeros(num_rows, weight.shape[0])}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        x = self.byte_norm(states)  # [B, D]
        probs = routing_probability(state["query"], self.key(x))  # [B]
        return self._segments(torch.where(state["position"] == 0, 1.0, probs)), {"query": self.query(x)}

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """``ratio``: the load-balancing loss, 1 at the target; p_0 = 1 counts, as in the released code."""
        assert segments.scores is not None and self.target_rate is not None
        probs = segments.scores
        return {"ratio": load_balance(segments.boundaries.to(probs.dtype).mean(), probs.mean(), self.target_rate)}

    def _segments(self, probs: Tensor) -> Segments:
        boundaries = probs > 0.5
        mixing = Mixing(
            pooling="select",
            token_norm=self.byte_norm,  # of a selected byte: what routing reads goes into tokens
            update_norm=self.token_norm,
            smoothing=smoothing_shares(probs),
            smoothing_method=self.smoothing,
            residual=self._own,
            receive=confidence(probs, boundaries),
        )
        return Segments(boundaries, scores=probs, mixing=mixing)

    def _own(self, states: Tensor) -> Tensor:
        x = self.byte_norm(states)
        return x if self.residual is None else self.residual(x)
