"""Group-relative policy gradients at an exact rate, after ReinPatch: rows of one text compete with each other.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments, State, check_rate
from rltok_rl.agents.segmenters.gumbel import Evaluation, check_evaluation, perceptron
from torch import Tensor, nn

from rltok_rl.functional.baselines import group_mean
from rltok_rl.functional.budget import budget_offsets, draw_next, draw_within_budget, string_log_prob
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.functional.policy_gradient import score_function
from rltok_rl.utils import check_count

Advantage = Literal["centred", "leave_one_out", "normalised"]


def group_advantages(returns: Tensor, group_size: int, advantage: Advantage, *, eps: float = 1e-4) -> Tensor:
    """How much better each row did than the rows of its group.

        centred:        A_b = R_b - mean_g R                         (g - 1)/g of the exact gradient, in the mean
        leave_one_out:  A_b = R_b - mean_{g without b} R             the exact gradient, in the mean
        normalised:     A_b = (R_b - mean_g R) / (std_g R + eps)     every group weighs the same

    Args:
        returns: [B] R, rows of a group one after the other.
        group_size: g.
        advantage: which.
        eps: added to the spread, which is that of the group itself (divided by g).

    Returns:
        [B].

    Example:
        >>> group_advantages(torch.tensor([1.0, 3.0, 5.0, 5.0]), 2, "normalised", eps=0.0).nan_to_num()
        tensor([-1.,  1.,  0.,  0.])
    """
    if advantage not in ("centred", "leave_one_out", "normalised"):
        allowed = ["centred", "leave_one_out", "normalised"]
        raise ValueError(f"advantage must be one of {allowed}, got {advantage!r}")
    exclude = advantage == "leave_one_out"
    centred = group_mean(returns.unsqueeze(-1), group_size=group_size, exclude_self=exclude).squeeze(-1)  # [B]
    if advantage != "normalised":
        return centred
    spread = centred.unflatten(0, (-1, group_size)).square().mean(-1).sqrt()  # [B / g]
    return centred / (spread.repeat_interleave(group_size) + eps)


class GroupedSegmenter(Segmenter):
    """A policy on encoder states that draws as many boundaries as the rate says, and learns from whole rows.

        a_t ~ Bernoulli(sigmoid(l_t + logit(m_t / n_t)))         m_t boundaries left for n_t bytes of a block
        R_b = mean_t log p(x_{t+1} | x_<=t, a_<=t)
        L   = -mean_b A_b sum_t log pi(a_t)                      A_b against the rows of its group

    The policy starts at l = 0, where all strings with the right count are equally likely.

    Args:
        width: D.
        target_rate: boundaries per byte.
        block: bytes that the count is kept over.
        group_size: rows that read one text, next to each other.
        hidden: hidden width of the policy.
        advantage: what a row's return is compared with; see :func:`group_advantages`.
        detached: keep the policy's gradient out of the encoder, as a segmenter with a network of its own would.
        evaluation: outside training, ``"sample"``, or ``"round"`` to the likelier decision; the count is exact in both.

    Reference: https://arxiv.org/abs/2603.26097
    """

    coefficients = {"policy": 1.0}

    def __init__(
        self,
        width: int,
        *,
        target_rate: float,
        block: int = 64,
        group_size: int = 4,
        hidden: int | None = None,
        advantage: Advantage = "centred",
        detached: bool = True,
        evaluation: Evaluation = "sample",
    ) -> None:
        super().__init__()
        self.target_rate, self.block = check_rate(target_rate), check_count("block", block)
        self.group_size = check_count("group_size", group_size, minimum=2)
        group_advantages(torch.zeros(group_size), group_size, advantage)  # refuses unknown words
        self.advantage, self.detached, self.evaluation = advantage, detached, check_evaluation(evaluation)
        self.policy = perceptron(width, width if hidden is None else hidden)
        for parameter in self.policy[-1].parameters():
            nn.init.zeros_(parameter)

    @property
    def draws_at_random(self) -> bool:
        """In training always; in evaluation where it samples."""
        return self.training or self.evaluation == "sample"

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """``policy``: the score-function loss, whose gradient is that of nats per byte; in training alone.

        Args:
            segments: what ``forward`` gave.
            byte_ids: [B, T], rows of one text next to each other in groups.
            final_logits: [B, T, 256].
        """
        if not self.training or byte_ids.shape[1] < 2:
            return {}
        self._check_groups(byte_ids)
        assert segments.logits is not None
        returns = next_byte_log_prob(final_logits.detach(), byte_ids).mean(-1)  # [B]
        advantages = group_advantages(returns, self.group_size, self.advantage)
        # The last decision serves the byte after the window alone, which is in no return.
        log_probs = string_log_prob(segments.logits, segments.boundaries)[:, :-1].sum(-1)  # [B]
        objective = score_function(log_probs, advantages.to(log_probs.dtype)).mean()
        return {"policy": -objective}

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        logits = self._logits(states)  # [B, T]
        given = None if uniforms is None else uniforms.cpu()
        assert self.target_rate is not None
        # Thousands of tiny steps: launching them on an accelerator costs more than the way to the CPU and back.
        drawn = draw_within_budget(logits.detach().cpu(), given, self.target_rate, self.block).to(logits.device)
        offsets = budget_offsets(drawn, self.target_rate, self.block)
        return Segments(drawn, logits=logits + offsets.to(logits.dtype))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"drawn": torch.zeros(num_rows, dtype=torch.int64, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        assert self.target_rate is not None
        logits, position = self._logits(states), state["position"]
        boundaries, drawn, offset = draw_next(logits, uniforms, position, state["drawn"], self.target_rate, self.block)
        return Segments(boundaries, logits=logits + offset.to(logits.dtype)), {"drawn": drawn}

    def _logits(self, states: Tensor) -> Tensor:
        logits = self.policy(states.detach() if self.detached else states).squeeze(-1)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _check_groups(self, byte_ids: Tensor) -> None:
        if len(byte_ids) % self.group_size:
            raise ValueError(
                f"byte_ids must hold whole groups of group_size={self.group_size} rows of one text (RepeatedSource "
                f"deals them), got {len(byte_ids)} rows"
            )
        if byte_ids.device.type != "cpu":
            return  # looking would stall the device
        grouped = byte_ids.unflatten(0, (-1, self.group_size))  # [B / g, g, T]
        wrong = (grouped != grouped[:, :1]).flatten(1).any(1)
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise ValueError(
                f"byte_ids must repeat one text in every group of group_size={self.group_size} rows (RepeatedSource "
                f"deals them so), got others in group {first}"
            )
