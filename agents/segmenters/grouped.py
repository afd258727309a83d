"""Group-relative policy gradients at an exact rate (ReinPatch): rows with the same text compete.

Shapes: B rows, T bytes, D width. Reference: https://arxiv.org/abs/2603.26097
"""

from __future__ import annotations

from typing import Literal

import torch
from rltok_rl.agents.rules import check_rate
from rltok_rl.agents.segmenters.gumbel import Perceptron
from rltok_rl.agents.segmenters.segmenter import (
    Evaluation,
    GroupSize,
    Hidden,
    Rate,
    Reach,
    Segmenter,
    Segments,
    State,
    check_choice,
    rate_or_default,
)
from torch import Tensor, nn

from rltok_rl.functional.baselines import group_mean
from rltok_rl.functional.budget import budget_offsets, draw_next, draw_within_budget, string_log_prob
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.functional.policy_gradient import score_function
from rltok_rl.models.unet import UNet
from rltok_rl.utils import check_count

Advantage = Literal["centred", "leave_one_out", "normalised"]


def group_advantages(returns: Tensor, group_size: int, advantage: Advantage) -> Tensor:
    """Compare each row's return with those of its group.

        centred:        A_b = R_b - mean_g R                         (g - 1)/g of the exact gradient in expectation
        leave_one_out:  A_b = R_b - mean_{g without b} R             the exact gradient in expectation
        normalised:     A_b = (R_b - mean_g R) / (std_g R + 1e-4)    every group has equal weight

    The rows of a group are adjacent in returns R, [B]. The standard deviation is the group's own (divided by g).
    """
    check_choice("advantage", advantage, Advantage)
    exclude = advantage == "leave_one_out"
    centred = group_mean(returns.unsqueeze(-1), group_size=group_size, exclude_self=exclude).squeeze(-1)  # [B]
    if advantage != "normalised":
        return centred
    spread = centred.unflatten(0, (-1, group_size)).square().mean(-1).sqrt()  # [B / g]
    return centred / (spread.repeat_interleave(group_size) + 1e-4)


class GroupedSegmenter(Segmenter):
    """A policy on encoder states with an exact number of boundaries, trained by the returns of whole rows.

        a_t ~ Bernoulli(sigmoid(l_t + logit(m_t / n_t)))         m_t boundaries left for n_t bytes of a block
        R_b = mean_t log p(x_{t+1} | x_<=t, a_<=t)
        L   = -mean_b A_b sum_t log pi(a_t)                      A_b within the group, see :func:`group_advantages`

    The policy starts at l = 0, where all strings with the right count are equally likely. A block of bytes has
    ``ceil(rate * block)`` boundaries, also where ``evaluation="round"`` takes the likelier decision. A group is
    ``group_size`` adjacent rows that read the same text. ``detached`` keeps the policy's gradient out of the encoder.
    """

    coefficients = {"policy": 1.0}
    target_rate: float

    def __init__(
        self,
        model: UNet,
        rate: Rate | None = None,
        block: Reach = 64,
        group_size: GroupSize = 4,
        advantage: Advantage = "centred",
        detached: bool = True,
        evaluation: Evaluation = "sample",
        hidden: Hidden | None = None,
    ) -> None:
        super().__init__()
        self.target_rate = check_rate(rate_or_default(model, rate))
        self.block, self.group_size = check_count("block", block), check_count("group_size", group_size, minimum=2)
        self.advantage = check_choice("advantage", advantage, Advantage)
        self.evaluation = check_choice("evaluation", evaluation, Evaluation)
        self.detached = detached
        width = model.config.width
        self.policy = Perceptron(width, width if hidden is None else hidden)
        for parameter in self.policy[-1].parameters():
            nn.init.zeros_(parameter)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``policy``: the score-function loss, whose gradient is that of nats per byte; in training only."""
        if not self.training or byte_ids.shape[1] < 2:
            return {}
        self._check_groups(byte_ids)
        assert segments.logits is not None
        returns = next_byte_log_prob(final_logits.detach(), byte_ids).mean(-1)  # [B]
        advantages = group_advantages(returns, self.group_size, self.advantage)
        # The last decision only affects the byte after the window, which is in no return.
        log_probs = string_log_prob(segments.logits, segments.boundaries)[:, :-1].sum(-1)  # [B]
        return {"policy": -score_function(log_probs, advantages.to(log_probs.dtype)).mean()}

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        logits = self._logits(states)  # [B, T]
        uniforms = None if uniforms is None else uniforms.cpu()
        # On the CPU: launching thousands of tiny steps on an accelerator costs more than copying.
        drawn = draw_within_budget(logits.detach().cpu(), uniforms, self.target_rate, self.block).to(logits.device)
        offsets = budget_offsets(drawn, self.target_rate, self.block)
        return Segments(drawn, logits=logits + offsets.to(logits.dtype))

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        logits, numbers = self._logits(states), None if uniforms is None else uniforms.cpu()  # [B, n]
        on_cpu, position, drawn = logits.cpu(), state["position"].cpu(), state["drawn"].cpu()
        out = []
        for t in range(byte_ids.shape[1]):
            number = None if numbers is None else numbers[:, t]
            *decision, drawn, offset = draw_next(
                on_cpu[:, t], number, position + t, drawn, self.target_rate, self.block
            )
            out.append((*decision, offset))
        boundaries, offsets = (torch.stack(column, 1).to(logits.device) for column in zip(*out, strict=True))
        return Segments(boundaries, logits=logits + offsets.to(logits.dtype)), {"drawn": drawn}

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"drawn": torch.zeros(num_rows, dtype=torch.int64, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        logits, position = self._logits(states), state["position"]
        boundaries, drawn, offset = draw_next(logits, uniforms, position, state["drawn"], self.target_rate, self.block)
        return Segments(boundaries, logits=logits + offset.to(logits.dtype)), {"drawn": drawn}

    def _logits(self, states: Tensor) -> Tensor:
        return self.policy(states.detach() if self.detached else states)

    def _check_groups(self, byte_ids: Tensor) -> None:
        size = self.group_size
        if len(byte_ids) % size:
            raise ValueError(
                f"byte_ids must hold whole groups of group_size={size} rows of one text (RepeatedSource deals them), "
                f"got {len(byte_ids)} rows"
            )
        if byte_ids.device.type != "cpu":
            return  # comparing would stall the device
        grouped = byte_ids.unflatten(0, (-1, size))  # [B / g, g, T]
        for group in (grouped != grouped[:, :1]).flatten(1).any(1).nonzero().flatten().tolist():
            raise ValueError(
                f"byte_ids must repeat one text in every group of group_size={size} rows (RepeatedSource deals them "
                f"so), got others in group {group}"
            )
