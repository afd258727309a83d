"""Local flips: advantages from counterfactual decisions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Generator, Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.flops import decoding_flops
from rltok_rl.models.tokens import Layout, as_packing
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read, under_next
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View
from rltok_rl.sampling import sample_boundaries
from rltok_rl.utils import check_count, joined


@register_value_estimator("local_flips", default_kwargs={"gamma": 0.99})
class LocalFlips(ReturnEstimator):
    """Advantages from flipping one decision in every ``span`` bytes, registered as ``"local_flips"``.

        A_t = pi(a_t) / (n q_t)  sum_{k < span} gamma^k (R_{t+1+k} - R^flip_{t+1+k})

    Every row runs ``num_flips`` more times, without encoder and gradient. In each of these rows one decision per block
    of ``span`` bytes is flipped, drawn with probability ``q_t`` proportional to ``p_t (1 - p_t)`` within its block. The
    others are redrawn with random numbers conditioned on the rollout's decisions. This measures the effect of a
    decision directly, without the noise of all decisions after it.

    The expected gradient is exact if each of these rows has a single flip and the sum reaches the end (``span`` at
    least T, gamma 1). A shorter span ignores later effects, and flips of neighbouring blocks interact: a bias, for
    many more flips per forward pass. The rollout must have whole texts, each row from the first byte of its text.

    This is a stochastic local-expectation gradient (Titsias and Lázaro-Gredilla 2015): both values of a decision are
    summed exactly, with one sample of all others. COMA's counterfactual baseline (Foerster et al. 2018) has the same
    expected gradient. Related: DisARM (Dong et al. 2020; Yin et al. 2020), ARMS (Dimitriev and Zhou 2021), MuProp (Gu
    et al. 2016), RELAX (Grathwohl et al. 2018), VIMCO (Mnih and Rezende 2016), counterfactual credit assignment
    (Mesnard et al. 2021).

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        num_flips: n, extra rows per row of the rollout.
        span: bytes per block, and bytes after a decision that count.
        price: nats per boundary in the rewards.
        layout: of the tokens of the extra rows, as for :class:`~rltok_rl.models.tokens.Packing`.
        generator: source of the random numbers, with equal seeds in all processes.
        every: flip decisions in one random row of each group of ``every`` consecutive rows. Its advantages are
            multiplied by ``every``; those of the other rows are 0. It must divide the rows of a process.
        rows_per_pass: rows whose extra rows run together, to save memory; None runs all. Results are equal up to
            rounding. A :class:`~rltok_rl.training.TrainingStep` runs at most the rows of a micro-batch.
        precision: dtype of matrix products under autocast; default: the model's own. A training step sets its own.
        **options: of :class:`~rltok_rl.objectives.estimators.ReturnEstimator`. Processes of a ``process_group`` flip
            the decisions that one process with all rows would flip, in batches of one micro-batch.
    """

    def __init__(
        self,
        model: UNet,
        *,
        gamma: float,
        num_flips: Annotated[int, "[1, 1000]"] = 3,
        span: Annotated[int, "[1, 1e6]"] = 16,
        every: Annotated[int, "[1, 1e6]"] = 1,
        price: float = 0.0,
        layout: Layout = "padded",
        generator: Generator | None = None,
        rows_per_pass: Annotated[int, "[1, inf)"] | None = None,
        precision: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, **options)
        as_packing(layout)
        self.num_flips, self.span = check_count("num_flips", num_flips), check_count("span", span)
        self.every = check_count("every", every)
        self.__dict__["model"] = model  # not a submodule: the loss must not own it
        self.price, self.layout, self.generator = price, layout, generator
        self.rows_per_pass = None if rows_per_pass is None else check_count("rows_per_pass", rows_per_pass)
        self.precision = precision

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards, decisions, states and likelihoods."""
        names = ["action", "logits", "forced", "position", "encoder_state"]
        return [*super().in_keys, *names, ("next", "byte"), ("next", "final_log_prob")]

    def flops(self, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
        """Return the FLOPs of the extra rows: forward passes of token layers, decoder and the last head.

        The rollout has ``num_bytes``, ``num_tokens`` and ``num_second`` tokens of tokens (None: at the target rate).
        """
        decoding = decoding_flops(self.model, num_bytes, num_tokens, num_second=num_second)
        return self.num_flips / self.every * decoding

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        _check_whole_texts(view.rollout)
        if self.every == 1:
            return self._flip_advantages(view.rollout).to(returns.dtype)
        rows = self._drawn_rows(len(returns), returns.device)
        advantages = self.every * self._flip_advantages(view.rollout[rows]).to(returns.dtype)
        return torch.zeros_like(returns).index_copy(0, rows, advantages)

    def _drawn_rows(self, num_rows: int, device: torch.device) -> Tensor:
        """One row of every group of ``every`` consecutive ones, by its index among this process's rows."""
        groups, rest = divmod(num_rows, self.every)
        if rest:
            raise ValueError(f"every must divide the rows of the rollout, {num_rows}, got {self.every}")
        world_size = self.process_group.size() if self.process_group else 1
        places = torch.randint(self.every, (groups * world_size,), generator=self.generator, device=device)
        return places[self._rows(groups)] + self.every * torch.arange(groups, device=device)

    def _flip_advantages(self, rollout: TensorDictBase) -> Tensor:
        """Advantages [B, T] of a rollout, 0 where no decision was flipped."""
        forced, probs = read(rollout, "forced"), read(rollout, "logits").sigmoid()
        drawn = read(rollout, "action").bool() | forced
        where, chance = self._choose((probs * (1 - probs)).masked_fill(forced, 0.0))  # [B, n, blocks] each
        fixed = chance == 0  # no decision of the block is free
        flipped, log_probs = self._run_flipped(rollout, drawn, probs, forced, where.masked_fill(fixed, -1))
        gained = read(rollout, under_next("final_log_prob")) - self.price * drawn
        lost = gained.unsqueeze(1) - (log_probs - self.price * flipped)  # [B, n, T]
        ahead = discounted_return(lost, self.gamma)
        beyond = self.gamma**self.span * F.pad(ahead[..., self.span :], (0, self.span))[..., : lost.shape[-1]]
        value = (ahead - beyond).gather(-1, where)  # [B, n, blocks] sums over the span from each flip
        prob = torch.where(drawn, probs, 1 - probs).unsqueeze(1).expand_as(lost).gather(-1, where)  # pi(a_t)
        weight = (prob / (self.num_flips * chance.clamp(min=1e-30))).masked_fill(fixed, 0.0)
        return torch.zeros_like(probs).scatter_add_(1, where.flatten(1), (weight * value).flatten(1).to(probs.dtype))

    def _choose(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """One decision per block and flipped row, and its probability; 0 in blocks without free decisions."""
        mine = self._rows(len(weights))
        if self.process_group is not None:  # [B, T] of this process to [W B, T] of all, in the order of their ranks
            gathered = [torch.empty_like(weights) for _ in range(self.process_group.size())]
            dist.all_gather(gathered, weights.contiguous(), group=self.process_group)
            weights = torch.cat(gathered)
        num_rows, length = weights.shape
        blocks = F.pad(weights, (0, -length % self.span)).unflatten(-1, (-1, self.span))  # [B, blocks, span]
        total = blocks.sum(-1, keepdim=True)
        chances = blocks / total.clamp(min=1e-30)
        first = torch.arange(self.span, device=weights.device) == 0
        drawn_from = torch.where(total > 0, chances, first.to(chances.dtype)).flatten(0, 1)
        picks = torch.multinomial(drawn_from, self.num_flips, replacement=True, generator=self.generator)
        picks = picks.view(num_rows, -1, self.num_flips)  # [B, blocks, n]
        chance = chances.gather(-1, picks)
        start = self.span * torch.arange(blocks.shape[1], device=weights.device)
        return (picks + start[:, None]).transpose(1, 2)[mine], chance.transpose(1, 2)[mine]

    def _rows(self, num_rows: int) -> slice:
        """This process's rows among those of all."""
        first = 0 if self.process_group is None else self.process_group.rank() * num_rows
        return slice(first, first + num_rows)

    def _run_flipped(
        self, rollout: TensorDictBase, drawn: Tensor, probs: Tensor, forced: Tensor, where: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Boundaries and log-likelihoods [B, n, T] of the rows with flips; ``where`` is -1 in blocks without one."""
        # Uniforms for which the policy decides as in the rollout.
        shape = (len(probs) * (self.process_group.size() if self.process_group else 1), probs.shape[1])
        fresh = torch.rand(shape, generator=self.generator, device=probs.device, dtype=probs.dtype)
        fresh = fresh[self._rows(len(probs))]
        uniforms = torch.where(drawn, fresh * probs, probs + fresh * (1 - probs))
        uniforms = uniforms.clamp(max=1 - torch.finfo(probs.dtype).eps)
        size = self.rows_per_pass or len(drawn)
        passes = zip(*(x.split(size) for x in (rollout, drawn, forced, where, uniforms)), strict=True)
        narrow = self.precision is not None
        with torch.autocast(probs.device.type, dtype=self.precision) if narrow else nullcontext():
            flipped, log_probs = zip(*(self._run_pass(*rows) for rows in passes), strict=True)
        return joined(flipped), joined(log_probs)

    def _run_pass(
        self, rollout: TensorDictBase, drawn: Tensor, forced: Tensor, where: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Boundaries and log-likelihoods [b, n, T] of some rows with flips, in one forward pass."""

        def repeated(x: Tensor) -> Tensor:
            return x.repeat_interleave(self.num_flips, 0)

        fixed = repeated(torch.where(forced, drawn.long(), -1))  # -1 is free
        # Blocks without free decisions (-1) write into an extra column.
        target = where.flatten(0, 1) % (drawn.shape[1] + 1)  # [b n, blocks]
        other = F.pad(repeated((~drawn).long()), (0, 1)).gather(1, target)
        fixed = F.pad(fixed, (0, 1)).scatter(1, target, other)[:, :-1]
        rates = rollout.get("target_rate", None)  # [b, T, 1], constant along rows, which are whole texts
        rates = None if rates is None else rates[:, 0, 0]
        states = rollout["encoder_state"].to(self.model.embedding.weight.dtype)  # [b, T, D]
        terms = (repeated(x) for x in self.model.boundary_terms(states, target_rate=rates))
        options = {"cap": self.model.boundary_cap, "forced": fixed, "force_first": False}
        flipped = sample_boundaries(*terms, uniforms=repeated(uniforms), **options)
        rates = None if rates is None else repeated(rates)
        decoded = self.model.decode(repeated(states), flipped, layout=self.layout, target_rate=rates)
        log_probs = self.model.final_log_prob(decoded, repeated(rollout["next", "byte"]))
        shape = (-1, self.num_flips)
        return flipped.unflatten(0, shape), log_probs.unflatten(0, shape)


def _check_whole_texts(rollout: TensorDictBase) -> None:
    if rollout.batch_dims != 2:
        raise ValueError(f"the rollout must be [B, T], got {[*rollout.batch_size]}")
    position = read(rollout, "position")
    expected = torch.arange(position.shape[-1], device=position.device)
    if position.device.type != "cpu":  # reading it would stall the device
        torch._assert_async((position == expected).all())
    elif bool((position != expected).any()):
        row = int((position != expected).any(-1).nonzero()[0])
        raise ValueError(
            f"every row must be one text from its first byte on; the positions of row {row} are not 0, 1, 2, ... "
            f"(roll out with max_steps of at most num_steps, on texts that long)"
        )
