"""One boundary predictor per script (MAGNET): a Gumbel-sigmoid at the rate of the script that it reads.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rltok_rl.agents.segmenters.gumbel import NullGroup, check_temperature, perceptron, relaxed_segments
from rltok_rl.agents.segmenters.segmenter import (
    Evaluation,
    Segmenter,
    Segments,
    State,
    check_evaluation,
    rate_or_default,
)
from torch import Tensor, nn

from rltok_rl.functional.rate import binomial_cost, check_target
from rltok_rl.functional.scripts import SCRIPTS, running_script, script_told, scripts_of
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import draw_boundary

RATES = {"latin": 0.2, "devanagari": 0.08, "cyrillic": 0.1}
"""Boundaries per byte by script, as released."""
_REACH = 3  # bytes from the first byte of a character to its last


class MagnetSegmenter(Segmenter):
    """Boundaries of :class:`~rltok_rl.agents.segmenters.gumbel.GumbelSegmenter`, by the predictor of the script.

        l_t = MLP_{s_t}(X_t),        s_t the script of the text up to byte t
        L   = mean_b -(1/n_b) sum_s log Binomial(k_{s,b}; n_{s,b}, r_s)

    ``k_s`` and ``n_s`` count boundaries and bytes in script s, without the first byte of a row.

    Args:
        rates: boundaries per byte by script; other scripts keep MAGNET's.
        other_rate: boundaries per byte in all other scripts, and before the first letter.
        temperature: temperature of the relaxation; does not change the draws.
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
        rates = dict(rates or {})
        unknown = sorted(set(rates) - set(RATES))
        if unknown:
            raise ValueError(f"rates must be by script, one of {sorted(RATES)}, got {unknown}")
        by_script = {"other": other_rate, **RATES, **rates}
        self.rates = tuple(check_target(by_script[name]) for name in SCRIPTS)
        self.temperature, self.evaluation = check_temperature(temperature), check_evaluation(evaluation)
        self.predictors = nn.ModuleDict({name: perceptron(width, hidden) for name in SCRIPTS})
        self.tokens = NullGroup(width)

    @classmethod
    def from_model(
        cls,
        model: UNet,
        rate: float | None = None,
        rates: Mapping[str, float] | None = None,
        evaluation: Evaluation = "sample",
        hidden: int = 2048,
    ) -> MagnetSegmenter:
        """Build it for a model; ``rate`` is that of other scripts."""
        other = rate_or_default(model, rate)
        return cls(model.config.width, other_rate=other, rates=rates, evaluation=evaluation, hidden=hidden)

    @property
    def alternatives(self) -> tuple[nn.Module, ...]:
        """The predictors; each byte goes through exactly one."""
        return tuple(self.predictors.values())

    @property
    def by_script(self) -> dict[str, float]:
        """Target boundaries per byte, by script."""
        return dict(zip(SCRIPTS, self.rates, strict=True))

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``binomial``: minus the log-probability of the boundary counts at their scripts' rates, per byte."""
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
        return relaxed_segments(logits, uniforms, self.temperature, self.tokens)

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {
            "bytes": torch.zeros(num_rows, _REACH, dtype=torch.int64, device=device),
            "script": torch.zeros(num_rows, dtype=torch.int64, device=device),
        }

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        last_bytes = torch.cat((state["bytes"], byte_ids.long().unsqueeze(-1)), 1)  # [B, 4]
        script = running_script(script_told(last_bytes)[:, -1:], state["script"]).squeeze(-1)
        logits = self._logits(states, script)  # [B]
        segments = Segments(draw_boundary(logits, uniforms), logits=logits, mixing=self.tokens())
        return segments, {"bytes": last_bytes[:, 1:], "script": script}

    def _logits(self, states: Tensor, scripts: Tensor) -> Tensor:
        """Logits of each byte from the predictor of its script."""
        flat, which = states.flatten(0, -2), scripts.flatten()
        logits = flat.new_zeros(len(flat), dtype=torch.promote_types(flat.dtype, torch.float32))
        for number, name in enumerate(SCRIPTS):
            places = (which == number).nonzero().squeeze(-1)
            # Also without bytes, so that all predictors have a gradient in every process.
            logits = logits.index_copy(0, places, self.predictors[name](flat[places]).squeeze(-1).to(logits.dtype))
        return logits.view(scripts.shape)
