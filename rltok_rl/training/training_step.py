"""The training step as a module: rollout, losses and gradients, of a whole batch or of m micro-batches [B, T].

Micro-batches give the gradients of the whole batch. Next-byte losses are means over steps, so each micro-batch has its
own backward pass. Policy and rate losses depend on the model only through the boundary logits [m B, T]. Their gradient
with respect to all logits is computed first; then each micro-batch propagates its part through encoder and policy.
Further PPO epochs on a stored batch do the same. The ratio loss of a second level uses the rates of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, cat
from torch import Tensor, nn
from torchrl.envs import EnvBase

from rltok_rl.agents import EncodingBoundaryActor, LearnedBoundaryActor, RandomActor
from rltok_rl.agents.segmenters import Segmenter, SegmenterActor
from rltok_rl.envs.reward_transforms import reward_transforms
from rltok_rl.functional.episodes import return_sums
from rltok_rl.functional.policy import boundary_entropy, boundary_log_prob, imitation_loss
from rltok_rl.functional.rewards import RELATIVE, REWARDS
from rltok_rl.models.tokens import Layout, Packing, as_packing
from rltok_rl.objectives import (
    BoundaryClipPPOLoss,
    CriticAdvantage,
    EarlyExitLoss,
    JointLoss,
    LanguageModelLoss,
    SecondLevelLoss,
    Trials,
)
from rltok_rl.objectives.policy_loss import advantages_of
from rltok_rl.objectives.segmented import SegmenterLoss
from rltok_rl.utils import check_count

IMITATION_WEIGHT = 0.3
"""Weight of the loss by which a policy imitates a rule; the only value that was tried."""
_MEANS_OVER_STEPS = (LanguageModelLoss, EarlyExitLoss, SecondLevelLoss, SegmenterLoss)


class TrainingStep(nn.Module):
    """Rollout and joint loss of a batch, as one module.

    Calling it returns the sum of all losses under ``"loss"``, with gradients, and the batch's metrics without. It takes
    no data: the environment draws the text. Wrap the step, not the model, in ``DistributedDataParallel``, because a
    rollout calls methods of the model other than ``forward``.

    Args:
        env: the environment, or a ``TransformedEnv`` with transforms of single rewards, which are applied.
        loss: the joint loss. With micro-batches, every term is a next-byte loss, a loss of a segmenter or of the second
            level, or depends on the model only through boundary logits; rows are texts from their first byte on.
        actor: draws the boundaries; default: the model's policy. The segmenter of a ``SegmenterActor`` is trained too.
        part: rank and world size; all ranks together draw the batch that one process would draw.
        precision: dtype of matrix products under autocast, also of local flips; default: the model's own.
        keep_batch: keep the batch with its advantages in ``batch``, for :meth:`policy_epoch`.
        warm_start_rule: a segmenter without losses and random numbers that draws the boundaries of a warm start; the
            policy imitates it (behaviour cloning). None draws at random.

    Example:
        >>> from rltok_rl.envs import ByteBoundaryEnv
        >>> from rltok_rl.models import UNet, preset
        >>> env = ByteBoundaryEnv(UNet(preset("tiny")), "all happy families are alike", num_steps=8, batch_size=(2,))
        >>> step = TrainingStep(env, JointLoss.paper(target_rate=0.2))
        >>> metrics = step()
        >>> metrics["loss"].backward()
        >>> [name for name in metrics if name.startswith("loss")]
        ['loss_language_model', 'loss_policy', 'loss_rate', 'loss_early_exit', 'loss']
    """

    env: Any
    actor: Any
    policy: LearnedBoundaryActor
    warm_start_rule: SegmenterActor | None

    def __init__(
        self,
        env: EnvBase,
        loss: JointLoss,
        *,
        actor: Any = None,
        generator: torch.Generator | None = None,
        part: tuple[int, int] = (0, 1),
        precision: torch.dtype | None = None,
        keep_batch: bool = False,
        warm_start_rule: Segmenter | None = None,
    ) -> None:
        super().__init__()
        check_rewards(env, loss)
        self.model, self.loss = env.model, loss
        self.segmenter = actor.segmenter if isinstance(actor, SegmenterActor) else None
        policy = LearnedBoundaryActor(env.model)
        unregistered = {"env": env, "policy": policy, "actor": policy if actor is None else actor}
        for name, value in unregistered.items():  # they share the model's parameters, or are not trained
            object.__setattr__(self, name, value)
        self.generator, self.part, self.precision, self.keep_batch = generator, part, precision, keep_batch
        self.batch: list[TensorDictBase] = []
        object.__setattr__(
            self, "warm_start_rule", None if warm_start_rule is None else SegmenterActor(warm_start_rule)
        )
        if warm_start_rule is not None:
            _check_rule(warm_start_rule, alone=actor is None and not self.off_policy)
        for module in loss.modules():
            if isinstance(module, (Trials, CriticAdvantage, BoundaryClipPPOLoss)):
                # Passes of at most a rollout's rows, which round as a rollout does.
                module.rows_per_pass = min(module.rows_per_pass or env.num_rows, env.num_rows)
            if isinstance(module, Trials):
                module.precision = precision
        self.byte_ids = torch.empty(0, dtype=torch.int64)  # [B, T] of the last rollout
        self.row_sums: list[dict[str, Tensor]] = []
        """Of each rollout of the last update, sums [B, 2] of returns by metric."""
        self.texts: list[tuple[Tensor, Tensor]] = []
        """Of each rollout of the last update, bytes and log-likelihoods of :func:`read_bytes`, if ``keep_texts``."""
        self.keep_texts = False
        self._whole_rows = True

    @property
    def off_policy(self) -> bool:
        """Whether the policy's term can learn from decisions that another policy made."""
        term = self.loss.terms["policy"] if "policy" in self.loss.terms else None
        return isinstance(term, BoundaryClipPPOLoss) or bool(getattr(term, "off_policy", False))

    @property
    def gamma(self) -> float | Tensor | None:
        """The discount that the policy is trained with; None without a policy that learns from rewards."""
        return getattr(self.loss.policy_estimator, "gamma", None)

    @property
    def ran_trials(self) -> bool:
        """Whether the estimator ran its trials for the last batch, if it has any."""
        return bool(getattr(self.loss.policy_estimator, "ran_trials", True))

    def forward(self, *, warm_start: bool = False) -> dict[str, Tensor]:
        """Draw a rollout and compute all losses.

        In a warm start, advantages do not reach the policy; its other terms do. If its term is off-policy, boundaries
        are random and it learns from them; with a ``warm_start_rule`` the rule draws them, and the policy imitates it.
        """
        self._begin()
        rollout, rates = self._rollout(warm_start)
        if self.keep_batch:
            rollout = self._with_advantages(rollout)
            self.batch = [rollout.detach()]
        values: dict[str, list[Tensor]] = {}
        total = torch.stack([self._run_term(name, rollout, values) for name in self._terms(warm_start)]).sum()
        if warm_start and self.warm_start_rule is not None:
            total = total + self._imitate(rollout, values)
        return {**rates, **{name: value for name, (value,) in values.items()}, "loss": total}

    def accumulate(self, micro_batches: int, *, warm_start: bool = False) -> dict[str, Tensor]:
        """Add the gradients of m rollouts, equal to those of one batch with all their rows; returns its metrics."""
        check_count("micro_batches", micro_batches)
        self._begin()
        on_policy = True
        batch: list[TensorDictBase] = []
        values: dict[str, list[Tensor]] = {}
        all_rates: dict[str, list[Tensor]] = {}
        for _ in range(micro_batches):
            rollout, rates = self._rollout(warm_start)
            for name, value in rates.items():
                all_rates.setdefault(name, []).append(value)
            losses = [self._run_term(name, rollout, values) for name in self._prediction_terms]
            if warm_start and self.warm_start_rule is not None:
                losses.append(self._imitate(rollout, values))
            log_prob = rollout.get("action_log_prob", None)
            on_policy = on_policy and log_prob is not None and log_prob.requires_grad
            if losses:
                (torch.stack(losses).sum() / micro_batches).backward()
            batch.append(rollout.detach())
        metrics = _means(values)
        if terms := self._policy_terms(warm_start):
            if self.keep_batch and "policy" in terms:
                batch = self.batch = list(self._with_advantages(cat(batch, 0)).split(len(batch[0]), 0))
            metrics |= self.policy_epoch(batch, on_policy=on_policy, warm_start=warm_start)
        metrics["loss"] = torch.stack([value for name, value in metrics.items() if name.startswith("loss_")]).sum()
        return {**_means(all_rates), **metrics}  # a rate loss leaves forced boundaries out of its rate

    def policy_epoch(
        self, batch: Sequence[TensorDictBase], *, on_policy: bool = False, warm_start: bool = False
    ) -> dict[str, Tensor]:
        """Add the gradients of all terms other than next-byte losses, for a stored batch; returns its metrics.

        The batch is a list of micro-batches [B, T] without gradients. Encoder and policy run again; token layers and
        decoder do not. With ``on_policy``, the current policy drew the boundaries and wrote their ``logits``. Otherwise
        it scores them again, and ``action_log_prob`` stays that of the policy that drew them.
        """
        actor = EncodingBoundaryActor(self.model, whole_rows=self._whole_rows)

        def score(rows: TensorDictBase) -> Tensor:
            with self._autocast():
                return actor.get_dist(rows).logits

        scored: list[Tensor] = []  # logits [B, T] with their graph, if the batch has one part: it fits into memory
        rollout = cat(list(batch), 0)
        if on_policy:
            logits = rollout["logits"].clone()
        elif len(batch) == 1:
            scored = [score(batch[0])]
            logits = scored[0].detach().clone()
        else:
            with torch.no_grad():
                logits = torch.cat([score(rows) for rows in batch])
        rollout["logits"] = logits.requires_grad_()
        # Entries that losses read, as functions of these logits.
        rollout["entropy"] = boundary_entropy(logits, forced=rollout["forced"])
        if on_policy:
            rollout["action_log_prob"] = boundary_log_prob(logits, rollout["action"], forced=rollout["forced"])
        values: dict[str, list[Tensor]] = {}
        terms = self._policy_terms(warm_start)
        torch.stack([self._run_term(name, rollout, values) for name in terms]).sum().backward()
        assert logits.grad is not None
        for rows, gradient in zip(batch, logits.grad.split(len(batch[0])), strict=True):
            again = scored.pop() if scored else score(rows)
            again.backward(gradient.to(again.dtype))
        return {name: value for name, (value,) in values.items()}

    def draw(self, *, warm_start: bool = False) -> TensorDictBase:
        """Draw a rollout [B, T] with gradients; a warm start may draw the boundaries at random or by a rule."""
        actor = self.actor
        if warm_start and self.off_policy:
            actor = RandomActor(self.model.config.target_rate)
        elif warm_start and self.warm_start_rule is not None:
            actor = self.warm_start_rule
        rollout = self.env.parallel_rollout(actor, generator=self.generator, part=self.part)
        if warm_start and actor is not self.actor:
            scores = self.policy.get_dist(rollout)
            rollout["logits"], rollout["entropy"] = scores.logits, scores.entropy()
        return rollout

    def _begin(self) -> None:
        self._whole_rows, self.row_sums, self.texts = True, [], []

    def _rollout(self, warm_start: bool) -> tuple[TensorDictBase, dict[str, Tensor]]:
        """A rollout under autocast, and its rates."""
        with self._autocast():
            rollout = self.draw(warm_start=warm_start)
        self._whole_rows = self._whole_rows and self.env.whole_rows
        self.byte_ids = rollout["byte"]
        self.row_sums.append(rollout_returns(rollout, self.gamma))
        if self.keep_texts:
            self.texts.append(read_bytes(rollout, self.model.config.num_marks))
        return rollout, rollout_rates(rollout, self.env.layout)

    @property
    def _prediction_terms(self) -> list[str]:
        return [name for name, term in self.loss.terms.items() if isinstance(term, _MEANS_OVER_STEPS)]

    def _terms(self, warm_start: bool) -> list[str]:
        """The terms of an update; those of a warm start leave out advantages, or all that a rule is imitated for."""
        if not warm_start or self.off_policy:
            return [*self.loss.terms]
        if self.warm_start_rule is not None:
            return self._prediction_terms
        return [name for name in self.loss.terms if name != "policy"]

    def _policy_terms(self, warm_start: bool) -> list[str]:
        return [name for name in self._terms(warm_start) if name not in self._prediction_terms]

    def _run_term(self, name: str, rollout: TensorDictBase, values: dict[str, list[Tensor]]) -> Tensor:
        """The weighted loss of a term; its outputs are appended to ``values``."""
        outputs = self.loss.run_term(name, rollout)
        for key, value in outputs.items():
            values.setdefault(key, []).append(value.detach())
        losses = [value for key, value in outputs.items() if key.startswith("loss_")]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _imitate(self, rollout: TensorDictBase, values: dict[str, list[Tensor]]) -> Tensor:
        """The weighted imitation loss, which is ``loss_imitation`` in ``values``."""
        loss = IMITATION_WEIGHT * imitation_loss(rollout["logits"], rollout["action"], forced=rollout["forced"])
        values.setdefault("loss_imitation", []).append(loss.detach())
        return loss

    def draw_judged(self) -> tuple[TensorDictBase, Tensor]:
        """Draw a rollout [B, T] for the policy's term, and return it with its advantages [B, T]."""
        return self._judged(self.draw())

    def _judged(self, rollout: TensorDictBase) -> tuple[TensorDictBase, Tensor]:
        term = self.loss.terms["policy"]
        return advantages_of(rollout, term.tensor_keys.advantage, term._value_estimator)

    def _with_advantages(self, rollout: TensorDictBase) -> TensorDictBase:
        return self._judged(rollout)[0]

    def _autocast(self) -> torch.autocast:
        device = self.model.embedding.weight.device.type
        return torch.autocast(device, dtype=self.precision or torch.bfloat16, enabled=self.precision is not None)


def _check_rule(rule: Segmenter, *, alone: bool) -> None:
    """Require a rule that a policy can imitate; ``alone`` is whether there is no actor and no off-policy loss."""
    if not alone:
        raise ValueError(f"warm_start_rule must be None with an actor or an off-policy loss, got {type(rule).__name__}")
    if rule.coefficients or rule.draws_at_random or rule.looks_ahead:
        raise ValueError(
            f"warm_start_rule must have no losses, draw nothing at random and read no later bytes, got "
            f"{type(rule).__name__}"
        )


def check_rewards(env: EnvBase, loss: JointLoss) -> None:
    """Require rewards that a parallel rollout can transform and that the estimator reads."""
    transforms = [type(transform).__name__ for transform in reward_transforms(env)]
    changed = transforms or env.reward_name not in (*REWARDS, RELATIVE)
    if changed and isinstance(loss.policy_estimator, Trials):
        raise ValueError(
            f"reward must be one of {[*REWARDS, RELATIVE]}, without transforms, with estimators that run trials and "
            f"measure log-likelihoods themselves, got {env.reward_name!r} and transforms {transforms}"
        )


def _means(values: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack(parts).mean(0) for name, parts in values.items()}


def rollout_returns(rollout: TensorDictBase, gamma: float | Tensor | None = None) -> dict[str, Tensor]:
    """Return sums [B, 2] of a rollout's rewards and returns (:func:`~rltok_rl.functional.episodes.return_sums`)."""
    rewards, done = (rollout["next", name].squeeze(-1) for name in ("reward", "done"))
    return return_sums(rewards, done, free=~rollout["forced"], gamma=gamma)


def read_bytes(rollout: TensorDictBase, marks: int = 0) -> tuple[Tensor, Tensor]:
    """Return the bytes [B, T + 1] of rows that are one text each, and log p [B, T] of all but the first, detached."""
    byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
    return byte_ids[:, marks:], rollout["next", "final_log_prob"].detach().squeeze(-1)[:, marks:]


def rollout_rates(rollout: TensorDictBase, layout: Layout = "padded") -> dict[str, Tensor]:
    """Return boundaries, tokens, and tokens with padding, each per byte; of a second level two more, per token."""
    length, packing = rollout.shape[-1], as_packing(layout)
    drawn = (rollout["action"].bool() | rollout["forced"]).float().mean(-1)  # [B]
    room = None if packing is None else packing.room_for(length * len(drawn), len(drawn))
    padded = _with_padding(drawn, length, packing, length * len(drawn))
    rates = {"rate": rollout["action"].float().mean(), "token_rate": drawn.mean(), "padded_rate": padded}
    if ("next", "second_boundary") in rollout.keys(include_nested=True):
        second = rollout["next", "second_boundary"].float().mean(-1)  # [B]
        above = None if packing is None else packing.above
        rates["second_rate"] = second.mean() / drawn.mean()
        rates["padded_second_rate"] = _with_padding(second, length, above, room or 0) / padded
    return rates


def _with_padding(rates: Tensor, length: int, packing: Packing | None, num_below: int) -> Tensor:
    """Tokens per byte, padding included, of rows with ``rates`` [B], made of ``num_below`` bytes or tokens."""
    if packing is None:
        return rates.max()
    total = (rates.double().sum() * length).round().long()
    return (packing.places(total, num_below, len(rates)) / (length * len(rates))).float()
