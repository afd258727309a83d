"""Base of estimators that run a rollout's texts again with other boundaries, to measure the effect of decisions."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Annotated, Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Generator, Tensor

from rltok_rl.functional.policy import boundary_entropy
from rltok_rl.functional.reduction import masked_mean, zero_masked
from rltok_rl.models.flops import trial_flops
from rltok_rl.models.tokens import Layout, as_packing
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read, under_next
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View
from rltok_rl.ranges import check_number
from rltok_rl.sampling import sample_boundaries
from rltok_rl.utils import check_count, joined

_REAL = ("trials", "real")  # the mask of a rollout whose padding is left out


class Trials(ReturnEstimator):
    """Advantages from further forward passes over a rollout's texts, in some rows and while the policy is undecided.

        A_t = k [row drawn] A^trial_t    if the mean entropy of the batch before was at least ``settled``, k = every
        A_t = baseline(G)_t              otherwise

    A settled policy learns little from either, so that returns, which cost nothing, take over; trials come back if its
    entropy rises. The batch before decides, because a choice by the batch itself would depend on its decisions. A
    subclass overrides ``_trial_advantages``. The rollout must have whole texts, each row from the first byte of its
    text, with masked steps, if any, behind it.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        every: run trials in one random row of each group of ``every`` consecutive rows. Its advantages are multiplied
            by ``every``; those of the other rows are 0. It must divide the rows of a process.
        settled: mean entropy of free decisions, in nats, below which the next batch has no trials, and its
            advantages are returns minus the ``baseline``, which should then be set; None always runs trials, and
            ``baseline`` must be ``"none"``.
        price: nats per boundary in the rewards.
        layout: token layout of the extra passes, as for :class:`~rltok_rl.models.tokens.Packing`.
        generator: source of the random numbers, with equal seeds in all processes.
        rows_per_pass: rows of the rollout whose trials run together, to save memory; None runs all. Results are equal
            up to rounding. A :class:`~rltok_rl.training.TrainingStep` runs at most the rows of a micro-batch.
        precision: dtype of autocast in the extra passes; None disables it. A
            :class:`~rltok_rl.training.TrainingStep` sets the dtype of the update.
        **options: of :class:`~rltok_rl.objectives.estimators.ReturnEstimator`. Processes of a ``process_group`` draw
            the random numbers that one process with all rows would draw, in batches of one micro-batch.
    """

    def __init__(
        self,
        model: UNet,
        *,
        gamma: float,
        every: Annotated[int, "[1, 1e6]"] = 1,
        settled: Annotated[float, "[0, inf)"] | None = None,
        price: float = 0.0,
        layout: Layout = "padded",
        generator: Generator | None = None,
        rows_per_pass: Annotated[int, "[1, inf)"] | None = None,
        precision: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        # Set before the base class checks it.
        self.__dict__["uses_baseline"] = type(self).uses_baseline or settled is not None
        super().__init__(gamma=gamma, **options)
        as_packing(layout)
        self.every = check_count("every", every)
        self.settled = None if settled is None else check_number("settled", settled, "[0, inf)")
        self.__dict__["model"] = model  # not a submodule: the loss must not own it
        self.price = check_number("price", price, "[0, inf)")
        self.layout, self.generator = layout, generator
        self.rows_per_pass = None if rows_per_pass is None else check_count("rows_per_pass", rows_per_pass)
        self.precision = precision
        self._entropy: Tensor | float = math.inf

    def flops(self, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
        """Return the FLOPs of one pass of every row that has trials: boundary head, token layers, decoder, last head.

        The rollout has ``num_bytes``, ``num_tokens`` and ``num_second`` tokens of tokens (None: at the target rate). A
        subclass with another number of passes overrides this.
        """
        return trial_flops(self.model, num_bytes, num_tokens, num_second=num_second) / self.every

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        """Return the advantages [B, T] of a rollout [B, T]; a subclass overrides this."""
        raise NotImplementedError

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards, decisions, states and likelihoods."""
        names = ["action", "logits", "forced", "position", "encoder_state"]
        return [*super().in_keys, *names, ("next", "byte"), ("next", "final_log_prob")]

    @property
    def entropy(self) -> float:
        """Mean entropy of the last batch's free decisions, part of the state; infinite before the first batch."""
        return float(self._entropy)

    @entropy.setter
    def entropy(self, value: float) -> None:
        self._entropy = check_number("entropy", value, "[0, inf]")

    def get_extra_state(self) -> dict[str, float]:
        """Return the non-tensor state."""
        return {**super().get_extra_state(), **({} if self.settled is None else {"entropy": self.entropy})}

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        if self.settled is not None:
            self.ran_trials = self.entropy >= self.settled
            self._entropy = self._mean_entropy(view)
            if not self.ran_trials:
                return super()._advantages(returns, view)
        _check_whole_texts(view)
        rollout = self._without_padding(view)
        if self.every == 1:
            return self._trial_advantages(rollout).to(returns.dtype)
        rows = self._drawn_rows(len(returns), returns.device)
        advantages = self.every * self._trial_advantages(rollout[rows]).to(returns.dtype)
        return torch.zeros_like(returns).index_copy(0, rows, advantages)

    def _without_padding(self, view: View) -> TensorDictBase:
        """Return a rollout whose masked steps are forced, of no text, and known to ``_gained``; entries are copies."""
        if view.mask is None:
            return view.rollout
        rollout, padding = view.rollout.copy(), ~view.mask
        rollout["forced"] = read(rollout, "forced") | padding
        rollout["logits"] = read(rollout, "logits").masked_fill(padding, 0.0)
        rollout["encoder_state"] = rollout["encoder_state"].masked_fill(padding.unsqueeze(-1), 0.0)
        rollout[_REAL] = view.mask
        return rollout

    @staticmethod
    def _real(rollout: TensorDictBase) -> Tensor | None:
        """Return the mask [B, T] of a rollout of :meth:`_without_padding`."""
        mask: Tensor | None = rollout.get(_REAL, None)
        return mask

    def _mean_entropy(self, view: View) -> Tensor:
        """Return the mean entropy of all processes' free decisions, so that all decide alike."""
        logits, forced = view.read("logits"), view.read("forced").bool()
        free = ~forced if view.mask is None else view.mask & ~forced
        return masked_mean(boundary_entropy(logits.detach(), forced=forced), free, process_group=self.process_group)

    def _drawn_rows(self, num_rows: int, device: torch.device) -> Tensor:
        """Draw one row of every group of ``every`` consecutive ones: indices among this process's rows."""
        groups, rest = divmod(num_rows, self.every)
        if rest:
            raise ValueError(f"every must divide the rows of the rollout, {num_rows}, got {self.every}")
        places = torch.randint(self.every, (self._rows_of_all(groups),), generator=self.generator, device=device)
        return places[self._own_rows(groups)] + self.every * torch.arange(groups, device=device)

    def _rows_of_all(self, num_rows: int) -> int:
        """Return the number of rows of all processes, each of which has ``num_rows``."""
        return num_rows * (self.process_group.size() if self.process_group else 1)

    def _own_rows(self, num_rows: int) -> slice:
        """Return the place of this process's rows among those of all."""
        first = 0 if self.process_group is None else self.process_group.rank() * num_rows
        return slice(first, first + num_rows)

    def _redraw(self, rollout: TensorDictBase, fixed: Tensor) -> tuple[Tensor, Tensor]:
        """Run each row n times with some decisions fixed; return boundaries and log-likelihoods [B, n, T].

        ``fixed`` [B, n, T] has 0, 1, or -1 for free decisions, which are drawn anew with random numbers for which the
        policy decides as in the rollout.
        """
        return self._run_passes(rollout, fixed, self._random_numbers(rollout))

    def _random_numbers(self, rollout: TensorDictBase) -> Tensor:
        """Draw random numbers [B, T] for which the policy decides as in the rollout."""
        probs = read(rollout, "logits").sigmoid()
        fresh = self._uniforms(probs)
        uniforms = torch.where(drawn_boundaries(rollout), fresh * probs, probs + fresh * (1 - probs))
        return below_one(uniforms)

    def _uniforms(self, like: Tensor) -> Tensor:
        """Draw random numbers in [0, 1) with the shape of this process's rows [B, T]."""
        shape = (self._rows_of_all(len(like)), *like.shape[1:])
        drawn = torch.rand(shape, generator=self.generator, device=like.device, dtype=like.dtype)
        return drawn[self._own_rows(len(like))]

    def _run_passes(self, rollout: TensorDictBase, fixed: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Run each row n times, with ``fixed`` decisions [B, n, T]: boundaries and log-likelihoods [B, n, T]."""
        size, narrow = self.rows_per_pass or len(uniforms), self.precision is not None
        passes = zip(*(x.split(size) for x in (rollout, fixed, uniforms)), strict=True)
        with torch.autocast(uniforms.device.type, dtype=self.precision) if narrow else nullcontext():
            boundaries, log_probs = zip(*(self._run_pass(*rows) for rows in passes), strict=True)
        return joined(boundaries), joined(log_probs)

    def _run_second_row(self, rollout: TensorDictBase, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Run another row of each text with ``uniforms`` [B, T]: its boundaries, and what the first gains, [B, T]."""
        fixed = torch.where(read(rollout, "forced"), 1, -1).unsqueeze(1)  # [B, 1, T]
        boundaries, log_probs = self._run_passes(rollout, fixed, uniforms)
        return boundaries.squeeze(1), self._gained(rollout, boundaries, log_probs).squeeze(1)

    def _states_and_rates(self, rollout: TensorDictBase) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's states [B, T, D] and the target rates [B] of a rollout, None without any."""
        rates = rollout.get("target_rate", None)  # [B, T, 1], constant along rows, which are whole texts
        states = rollout["encoder_state"].to(self.model.embedding.weight.dtype)
        return states, None if rates is None else rates[:, 0, 0]

    def _gained(self, rollout: TensorDictBase, boundaries: Tensor, log_probs: Tensor) -> Tensor:
        """Return the rewards of the rows minus those of their passes with other boundaries, [B, n, T] each."""
        drawn = drawn_boundaries(rollout).unsqueeze(1)
        extra_price = self.price * (drawn.to(log_probs.dtype) - boundaries.to(log_probs.dtype))
        gained = read(rollout, under_next("final_log_prob")).unsqueeze(1) - log_probs - extra_price
        real = self._real(rollout)
        return gained if real is None else zero_masked(gained, real.unsqueeze(1).expand_as(gained))

    def _run_pass(self, rollout: TensorDictBase, fixed: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return boundaries and log-likelihoods [b, n, T] of some rows, from one forward pass."""
        copies, length = fixed.shape[1:]

        def repeated(x: Tensor) -> Tensor:
            return x.repeat_interleave(copies, 0)

        states, rates = self._states_and_rates(rollout)
        terms = (repeated(x) for x in self.model.boundary_terms(states, target_rate=rates))
        options = {"cap": self.model.boundary_cap, "forced": fixed.reshape(-1, length), "force_first": False}
        boundaries = sample_boundaries(*terms, uniforms=repeated(uniforms), **options)
        rates = None if rates is None else repeated(rates)
        decoded = self.model.decode(repeated(states), boundaries, layout=self.layout, target_rate=rates)
        log_probs = self.model.final_log_prob(decoded, repeated(rollout["next", "byte"]))
        return boundaries.unflatten(0, (-1, copies)), log_probs.unflatten(0, (-1, copies))


def drawn_boundaries(rollout: TensorDictBase) -> Tensor:
    """Return the boundaries [B, T] of a rollout, forced ones included."""
    return read(rollout, "action").bool() | read(rollout, "forced")


def below_one(uniforms: Tensor) -> Tensor:
    """Replace 1, to which rounding may lead, by the next smaller number: samplers take [0, 1)."""
    return uniforms.clamp(max=1 - torch.finfo(uniforms.dtype).eps)


def _check_whole_texts(view: View) -> None:
    if view.rollout.batch_dims != 2 or view.time_dim % 2 != 1:
        shape = [*view.rollout.batch_size]
        raise ValueError(f"the rollout must be [B, T], got {shape} with time in dimension {view.time_dim}")
    position, mask = view.read("position"), view.mask
    expected = torch.arange(position.shape[-1], device=position.device)
    if mask is not None:
        position = torch.where(mask, position, expected)
        later = mask[:, 1:] & ~mask[:, :-1]
    if position.device.type != "cpu":  # reading it would stall the device
        torch._assert_async((position == expected).all())
        if mask is not None:
            torch._assert_async(~later.any())
    elif bool((position != expected).any()):
        row = int((position != expected).any(-1).nonzero()[0])
        raise ValueError(
            f"every row must be one text from its first byte on; the positions of row {row} are not 0, 1, 2, ... "
            f"(roll out with max_steps of at most num_steps, on texts that long)"
        )
    elif mask is not None and bool(later.any()):
        row = int(later.any(-1).nonzero()[0])
        raise ValueError(f"masked steps must end a row, got real steps behind masked ones in row {row}")
