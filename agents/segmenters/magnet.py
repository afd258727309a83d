"""One boundary predictor per script (MAGNET): a Gumbel-sigmoid at the rate of the script that it reads.

Shapes: B rows, T bytes, D width. Reference: https://arxiv.org/abs/2407.08818
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rltok_rl.agents.segmenters.gumbel import HIDDEN, NullGroup, Perceptron, draw_segments
from rltok_rl.agents.segmenters.segmenter import (
    Evaluation,
    Hidden,
    Probability,
    Segmenter,
    Segments,
    State,
    check_choice,
    rate_or_default,
)
from torch import Tensor, nn

from rltok_rl.functional.rate import binomial_cost, check_target
from rltok_rl.functional.scripts import SCRIPTS, running_script, script_at, scripts_of
from rltok_rl.models.unet import UNet

RATES = {"latin": 0.2, "devanagari": 0.08, "cyrillic": 0.1}
"""Boundaries per byte by script, as released."""
_REACH = 3  # bytes from the first byte of a character to its last


class MagnetSegmenter(Segmenter):
    """Boundaries of :class:`~rltok_rl.agents.segmenters.gumbel.GumbelSegmenter`, by the predictor of the script.

        l_t = MLP_{s_t}(X_t),        s_t the script of the text up to byte t
        L   = mean_b -(1/n_b) sum_s log Binomial(k_{s,b}; n_{s,b}, r_s)

    ``k_s`` and ``n_s`` count boundaries and bytes in script s, without the first byte of a row. ``rates`` replaces
    MAGNET's by script; ``rate`` is that of all other scripts, and before the first letter.
    """

    coefficients = {"binomial": 1.0}

    def __init__(
        self,
        model: UNet,
        rate: Probability | None = None,
        rates: Mapping[str, float] | None = None,
        evaluation: Evaluation = "sample",
        hidden: Hidden = HIDDEN,
    ) -> None:
        unknown = sorted(set(rates or {}) - set(RATES))
        if unknown:
            raise ValueError(f"rates must be by script, one of {sorted(RATES)}, got {unknown}")
        super().__init__()
        width = model.config.width
        self.predictors = nn.ModuleDict({name: Perceptron(width, hidden) for name in SCRIPTS})
        self.alternatives = tuple(self.predictors.values())
        self.tokens = NullGroup(width)
        by_script = {"other": rate_or_default(model, rate), **RATES, **(rates or {})}
        self.by_script = {name: check_target(by_script[name]) for name in SCRIPTS}
        """Target boundaries per byte, by script."""
        self.evaluation = check_choice("evaluation", evaluation, Evaluation)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``binomial``: minus the log-probability of the boundary counts at their scripts' rates, per byte."""
        assert segments.soft is not None
        free, scripts = segments.soft[:, 1:], scripts_of(byte_ids)[:, 1:]  # [B, T - 1]
        nats = free.new_zeros(len(free))
        for number, rate in enumerate(self.by_script.values()):
            inside = (scripts == number).to(free.dtype)
            trials = inside.sum(-1)  # [B]
            nats = nats + trials * binomial_cost((free * inside).sum(-1), trials, rate)
        return {"binomial": (nats / max(free.shape[1], 1)).mean()}

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        return draw_segments(self._logits(states, scripts_of(byte_ids)), uniforms, self.tokens, temperature=0.5)

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        known = torch.cat((state["bytes"], byte_ids.long()), 1)  # [B, 3 + n]
        scripts = running_script(script_at(known)[:, _REACH:], state["script"])
        segments = draw_segments(self._logits(states, scripts), uniforms, self.tokens)
        return segments, {"bytes": known[:, -_REACH:], "script": scripts[:, -1]}

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {
            "bytes": torch.zeros(num_rows, _REACH, dtype=torch.int64, device=device),
            "script": torch.zeros(num_rows, dtype=torch.int64, device=device),
        }

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        last_bytes = torch.cat((state["bytes"], byte_ids.long().unsqueeze(-1)), 1)  # [B, 4]
        script = running_script(script_at(last_bytes)[:, -1:], state["script"]).squeeze(-1)
        segments = draw_segments(self._logits(states, script), uniforms, self.tokens)
        return segments, {"bytes": last_bytes[:, 1:], "script": script}

    def _logits(self, states: Tensor, scripts: Tensor) -> Tensor:
        """Logits of each byte from the predictor of its script."""
        flat, which = states.flatten(0, -2), scripts.flatten()
        logits = flat.new_zeros(len(flat), dtype=torch.promote_types(flat.dtype, torch.float32))
        for number, name in enumerate(SCRIPTS):
            places = (which == number).nonzero().squeeze(-1)
            # Also without bytes, so that all predictors have a gradient in every process.
            logits = logits.index_copy(0, places, self.predictors[name](flat[places]).to(logits.dtype))
        return logits.view(scripts.shape)
