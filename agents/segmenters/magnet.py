"""One boundary predictor per script (MAGNET): a Gumbel-sigmoid whose rate is that of the script it reads.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments, State
from rltok_rl.agents.segmenters.gumbel import (
    Evaluation,
    NullGroup,
    check_evaluation,
    group_weights,
    perceptron,
    relaxed_boundaries,
)
from torch import Tensor, nn

from rltok_rl.functional.rate import binomial_cost, check_target
from rltok_rl.functional.scripts import SCRIPTS, running_script, script_told, scripts_of
from rltok_rl.sampling import draw_boundary

RATES = {"latin": 0.2, "devanagari": 0.08, "cyrillic": 0.1}
"""Boundaries per byte by script, as released."""
_REACH = 3  # bytes before a byte that its character may begin at


class MagnetSegmenter(Segmenter):
    """Boundaries drawn as in :class:`~rltok_rl.agents.segmenters.gumbel.GumbelSegmenter`, by the script's predictor.

        l_t = MLP_{s_t}(X_t),        s_t the script of the text up to byte t
        L   = mean_b -(1/n_b) sum_s log Binomial(k_{s,b}; n_{s,b}, r_s)

    ``k_s`` and ``n_s`` count boundaries and bytes in script s, the first byte of a row left out.

    Args:
        width: D.
        rates: boundaries per byte by script; scripts that are left out keep MAGNET's.
        other_rate: the same for all other scripts, and for what stands before the first letter.
        hidden: hidden width of each predictor.
        temperature: of the relaxation; the draws do not depend on it.
        evaluation: outside training, ``"round"`` probabilities or ``"sample"``.

    Reference: https://arxiv.org/abs/2407.08818
    """

    coefficients = {"binomial": 1.0}

    def __init__(
        self,
        width: int,
        *,
        other_rate: float,
        rates: Mapping[str, float] | None = None,
        hidden: int = 2048,
        temperature: float = 0.5,
        evaluation: Evaluation = "sample",
    ) -> None:
        super().__init__()
        given = dict(rates or {})
        unknown = sorted(set(given) - set(RATES))
        if unknown:
            raise ValueError(f"rates must be by script, one of {sorted(RATES)}, got {unknown}")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        by_name = {"other": other_rate, **RATES, **given}
        self.rates = tuple(check_target(by_name[name]) for name in SCRIPTS)
        self.temperature, self.evaluation = temperature, check_evaluation(evaluation)
        self.predictors = nn.ModuleDict({name: perceptron(width, hidden) for name in SCRIPTS})
        self.tokens = NullGroup(width)

    @property
    def alternatives(self) -> tuple[nn.Module, ...]:
        """The predictors."""
        return tuple(self.predictors.values())

    @property
    def by_script(self) -> dict[str, float]:
        """Boundaries per byte that are aimed at, by script."""
        return dict(zip(SCRIPTS, self.rates, strict=True))

    @property
    def draws_at_random(self) -> bool:
        """In training always; in evaluation where it samples."""
        return self.training or self.evaluation == "sample"

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """``binomial``: how unlikely the numbers of boundaries are at the rates of their scripts, in nats per byte."""
        assert segments.soft is not None
        free, scripts = segments.soft[:, 1:], scripts_of(byte_ids)[:, 1:]  # [B, T - 1]
        nats = free.new_zeros(len(free))
        for number, rate in enumerate(self.rates):
            inside = (scripts == number).to(free.dtype)
            trials = inside.sum(-1)  # [B]
            nats = nats + trials * binomial_cost((free * inside).sum(-1), trials, rate)
        return {"binomial": (nats / max(free.shape[1], 1)).mean()}

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        logits = self._logits(states, scripts_of(byte_ids))  # [B, T]
        boundaries = draw_boundary(logits, uniforms)
        soft = relaxed_boundaries(logits, boundaries, uniforms, self.temperature)
        return Segments(boundaries, logits=logits, soft=soft, mixing=self.tokens(group_weights(soft)))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {
            "bytes": torch.zeros(num_rows, _REACH, dtype=torch.int64, device=device),
            "script": torch.zeros(num_rows, dtype=torch.int64, device=device),
        }

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        seen = torch.cat((state["bytes"], byte_ids.long().unsqueeze(-1)), 1)  # [B, 4]
        script = running_script(script_told(seen)[:, -1:], state["script"]).squeeze(-1)
        logits = self._logits(states, script)  # [B]
        drawn = Segments(draw_boundary(logits, uniforms), logits=logits, mixing=self.tokens())
        return drawn, {"bytes": seen[:, 1:], "script": script}

    def _logits(self, states: Tensor, scripts: Tensor) -> Tensor:
        """Each byte by the predictor of its script; no byte is read by two."""
        flat, which = states.flatten(0, -2), scripts.flatten()
        logits = flat.new_zeros(len(flat), dtype=torch.promote_types(flat.dtype, torch.float32))
        for number, name in enumerate(SCRIPTS):
            mine = (which == number).nonzero().squeeze(-1)
            # Even without bytes, so that in every process all predictors have a gradient.
            logits = logits.index_copy(0, mine, self.predictors[name](flat[mine]).squeeze(-1).to(logits.dtype))
        return logits.view(scripts.shape)
