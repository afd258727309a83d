"""H-Net's dynamic chunking: boundaries where neighbouring states are dissimilar, and a learning rate per stage.

The second stage is the model's second level; its target rate is set here, and its loss is the model's. Shapes: B rows,
T bytes, D width. Reference: https://arxiv.org/abs/2507.07955
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from rltok_rl.agents.segmenters.segmenter import (
    Probability,
    Segmenter,
    Segments,
    State,
    Weight,
    check_choice,
    rate_or_default,
)
from torch import Tensor, nn

from rltok_rl.functional.rate import check_target, load_balance
from rltok_rl.functional.routing import confidence, routing_probability, smoothing_shares
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.layers import RMSNorm
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.unet import UNet
from rltok_rl.ranges import check_number

Variant = Literal["faithful", "baseline"]
RATIO_WEIGHT = 0.03
"""The published weight of the ratio loss."""
_GPT_CHUNK = 4.6  # bytes per token of the tokenizer that the base learning rate was tuned with


class HNetSegmenter(Segmenter):
    """Cosine routing, straight-through confidence, smoothing over tokens, a residual projection that starts at zero.

        p_t = (1 - cos(W_q x_{t-1}, W_k x_t)) / 2,   p_0 = 1,   a_t = [p_t > 1/2],   x = RMSNorm(X)
        U_j = P_j Mid_j + (1 - P_j) U_{j-1},         P = p clipped to [1e-4, 1 - 1e-4]
        Y_t = R(x_t) + STE(c_t) U_{i(t)},            c_t = p_t at a boundary, 1 - p_t elsewhere

    ``rate`` is 1/N of the ratio loss, whose weight is ``ratio_weight``, and ``second_rate`` that of the second of two
    ``stages``. The variant ``"baseline"`` adds byte states unprojected (R is the identity) and normalises neither
    them nor the tokens.
    """

    coefficients = {"ratio": RATIO_WEIGHT}
    target_rate: float

    def __init__(
        self,
        model: UNet,
        rate: Probability | None = None,
        variant: Variant = "faithful",
        stages: Literal[1, 2] = 1,
        second_rate: Probability | None = None,
        ratio_weight: Weight = RATIO_WEIGHT,
    ) -> None:
        super().__init__()
        self.coefficients = {"ratio": check_number("ratio_weight", ratio_weight, "[0, inf)")}
        faithful = check_choice("variant", variant, Variant) == "faithful"
        config, width = model.config, model.config.width
        if check_choice("stages", stages, Literal[1, 2]) == 2:
            _check_second_stage(config, "projection" if faithful else "identity")
            rate = 1 / 3 if rate is None else rate  # N = 3, 3
            self.second_rate = check_target(config.second_rate if second_rate is None else second_rate)
        elif second_rate is not None:
            raise ValueError(f"second_rate must be left out with stages=1, got {second_rate}")
        self.target_rate = check_target(rate_or_default(model, rate))
        self.widths = [width, config.of_tokens.width, config.of_second.width]  # of bytes, tokens, tokens of tokens
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.byte_norm = RMSNorm(width, config.norm_eps) if faithful else nn.Identity()
        self.token_norm = RMSNorm(width, config.norm_eps) if faithful else nn.Identity()
        self.residual = nn.Linear(width, width) if faithful else nn.Identity()
        for projection in (self.query, self.key):
            nn.init.eye_(projection.weight)
        for parameter in self.residual.parameters():
            nn.init.zeros_(parameter)

    @property
    def multipliers(self) -> list[float]:
        """Learning-rate factors of the stages, outermost first, for ``LoopOptions.stage_factors``."""
        rates = [rate for rate in (self.target_rate, self.second_rate) if rate is not None]
        return stage_multipliers([1 / rate for rate in rates], self.widths[: len(rates) + 1])

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        x = self.byte_norm(states)  # [B, T, D]
        free = routing_probability(self.query(x[:, :-1]), self.key(x[:, 1:]))  # [B, T - 1]
        return self._segments(nn.functional.pad(free, (1, 0), value=1.0))

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        x = self.byte_norm(states)  # [B, n, D]
        query = self.query(x)
        before = torch.cat((state["query"][:, None], query[:, :-1]), 1)
        probs = routing_probability(before, self.key(x))  # [B, n]
        return Segments(probs > 0.5, scores=probs), {"query": query[:, -1]}

    def _start(self, num_rows: int, device: torch.device) -> State:
        weight = self.query.weight
        return {"query": weight.new_zeros(num_rows, weight.shape[0])}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        x = self.byte_norm(states)  # [B, D]
        probs = routing_probability(state["query"], self.key(x))  # [B]
        return self._segments(torch.where(state["position"] == 0, 1.0, probs)), {"query": self.query(x)}

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``ratio``: the load-balancing loss, 1 at the target; p_0 = 1 counts, as in the released code."""
        assert segments.scores is not None
        probs = segments.scores
        return {"ratio": load_balance(segments.boundaries.to(probs.dtype).mean(), probs.mean(), self.target_rate)}

    def _segments(self, probs: Tensor) -> Segments:
        boundaries = probs > 0.5
        mixing = Mixing(
            pooling="select",
            token_norm=self.byte_norm,  # tokens are pooled from the same states as routing reads
            update_norm=self.token_norm,
            smoothing=smoothing_shares(probs),
            residual=lambda states: self.residual(self.byte_norm(states)),
            receive=confidence(probs, boundaries),
        )
        return Segments(boundaries, scores=probs, mixing=mixing)


def _check_second_stage(config: UNetConfig, residual: str) -> None:
    use = "for segmenter 'hnet' with stages=2"
    for name, value in (("second_level", "routing"), ("second_residual", residual)):
        if getattr(config, name) != value:
            raise ValueError(f"model must have {name}={value!r} {use}, got {getattr(config, name)!r}")
    if not 0 < config.lower_layers < config.num_token_layers:
        raise ValueError(
            f"model must have token layers before and after its second level {use} (num_token_layers=2 at least), "
            f"got num_token_layers={config.num_token_layers}, {config.lower_layers} of them before it"
        )


def stage_multipliers(chunk_sizes: list[float], widths: list[int]) -> list[float]:
    """Compute the learning-rate factors of the stages, outermost first.

        m_s = sqrt(N_GPT  prod_{i >= s} N_i / prod_{i >= 0} N_i  D_S / D_s),        N_S = 1

    Chunk sizes N_0 .. N_{S-1} are bytes (or tokens of the stage before) per token, widths are D_0 .. D_S, and
    N_GPT = 4.6 are the bytes per token of the tokenizer that the base learning rate was tuned with.
    """
    if len(widths) != len(chunk_sizes) + 1:
        raise ValueError(f"widths must have one entry more than chunk_sizes, got {len(widths)} and {len(chunk_sizes)}")
    sizes = [*chunk_sizes, 1.0]
    total = math.prod(sizes)
    return [math.sqrt(_GPT_CHUNK * math.prod(sizes[s:]) / total * widths[-1] / width) for s, width in enumerate(widths)]


def split_stages(model: UNet, parameters: Iterable[nn.Parameter], num_stages: int) -> list[list[nn.Parameter]]:
    """Split parameters by stage, outermost first, in the given order.

    The first of two stages holds everything that reads bytes, and parameters that are not the model's (a segmenter's, a
    critic's). The second holds the token layers and everything between them. The third of three, for a model with a
    second level, holds the layers on tokens of tokens; routing between tokens belongs to the second. The vector that
    widens a level's tokens belongs to that level.
    """
    check_choice("num_stages", num_stages, Literal[2, 3])
    level = model.second_level
    if num_stages == 3 and level is None:
        raise ValueError("model must have a second level for three stages, got second_level=None")
    inner = [*model.token_layers.parameters(), *(() if level is None else level.parameters())]
    inner += [] if model.token_pad is None else [model.token_pad]
    stage_of = {id(p): 1 for p in inner}
    if num_stages == 3 and level is not None:
        innermost = [*level.layers.parameters(), *([] if level.pad is None else [level.pad])]
        stage_of |= {id(p): 2 for p in innermost}
    stages: list[list[nn.Parameter]] = [[] for _ in range(num_stages)]
    for parameter in parameters:
        stages[stage_of.get(id(parameter), 0)].append(parameter)
    return stages
