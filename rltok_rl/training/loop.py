"""The loop: rollout, joint loss, backward, clip, step; and all that it needs to go on elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rltok_rl.agents import LearnedBoundaryActor, RandomActor
from rltok_rl.agents.segmenters import SegmenterActor, load_own_state, own_state
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.models.tokens import Layout, Packing, as_packing
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import BoundaryClipPPOLoss, JointLoss
from rltok_rl.training.alarms import Alarms, TrainingFailed
from rltok_rl.training.gradients import joint_gradients, policy_gradients
from rltok_rl.training.metrics import Pending, Told, broken, fetch
from rltok_rl.training.options import PRECISIONS, LoopOptions, cosine_schedule, make_optimizer
from rltok_rl.training.parallel import EarlyAverages, Processes, load_whole, prepare_model, whole
from rltok_rl.training.randomness import as_state, random_states, set_random_states
from rltok_rl.training.segmenting import calibrate_on
from rltok_rl.training.spending import Costs

_MOVED = ("ESS", "kl_approx", "clip_fraction")  # how far further epochs have moved the policy


class Trainer:
    """Trains language model, early exit, policy and rate in one backward pass per update.

    Everything that the next update depends on is in :meth:`state_dict`: a trainer that loads it goes on with
    the same losses to the last bit. It is of one piece, so that it can be loaded by any number of processes.

    Args:
        model: the U-Net; cut in pieces under ``"fsdp"``.
        env: whose rollouts are trained on; one rollout per micro-batch, one episode long. With several processes it
            has the rows of this one.
        loss: the joint loss. With several processes, its terms span them (``process_group``).
        options: how.
        actor: draws the boundaries; None is the model's own policy. With one that has no ``logits`` the loss holds
            next-byte losses alone. The segmenter of a :class:`~rltok_rl.agents.segmenters.SegmenterActor` is trained
            with the model, where the loss holds its terms.
        seed: of the boundaries; the same in all processes, as the environment's.
        processes: those that train together; they make the updates that one would make with all rows.
        strategy: a key of :data:`~rltok_rl.training.parallel.STRATEGIES`.

    Example:
        >>> from rltok_rl.data import local_prose
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> env = ByteBoundaryEnv(model, local_prose(), num_steps=32, batch_size=(4,), seed=0)
        >>> trainer = Trainer(model, env, JointLoss.paper(target_rate=0.2), LoopOptions(total_bytes=256))
        >>> trainer.run()
        >>> trainer.updates, trainer.bytes_done
        (2, 256)
    """

    def __init__(
        self,
        model: UNet,
        env: ByteBoundaryEnv,
        loss: JointLoss,
        options: LoopOptions,
        *,
        actor: TensorDictModuleBase | SegmenterActor | None = None,
        alarms: Alarms | None = None,
        seed: int = 0,
        processes: Processes | None = None,
        strategy: str = "none",
    ) -> None:
        self.processes = Processes() if processes is None else processes
        _check_spans(loss, self.processes)
        _check_pieces(model, loss, strategy, self.processes)
        self.segmenter = actor.segmenter if isinstance(actor, SegmenterActor) else None
        if self.segmenter is not None and strategy == "fsdp":
            raise ValueError(
                "strategy must be 'none' or 'ddp' with a segmenter, which is not cut in pieces, got 'fsdp'"
            )
        self._costs = Costs.of(model, loss, self.segmenter)
        prepare_model(model, strategy, self.processes)
        self.model, self.env, self.loss, self.options = model, env, loss, options
        loss.to(model.embedding.weight.device)  # what a loss remembers, and its own parameters
        self.policy = LearnedBoundaryActor(model)
        self.actor = self.policy if actor is None else actor
        self.warm_actor = RandomActor(model.config.target_rate)
        parts: list[nn.Module] = [model, loss] if self.segmenter is None else [model, loss, self.segmenter]
        self.trained = nn.ModuleList(parts)  # a critic is part of the loss; what is shared counts once
        self._weighs = _weighs_decisions(loss)
        if options.policy_epochs > 1 and not self._weighs:
            raise ValueError(
                f"policy_epochs={options.policy_epochs} needs a term 'policy' that weighs decisions by how likely they "
                f"have become (BoundaryClipPPOLoss, or BoundaryReinforceLoss with off_policy=True, and RolloutPolicy)"
            )
        self.alarms = Alarms() if alarms is None else alarms
        self._averages = EarlyAverages(self.trained, self.processes.group)
        self.optimizer = make_optimizer(self.trained, options, model=model)
        self.generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
        self.updates = self.bytes_done = 0
        self.flops_done = self.padded_flops_done = self.tried_flops_done = 0.0
        self.told: Told | None = None
        """The update that was told of last; with ``figures_every`` there may be others since."""
        self._pending: list[Pending] = []
        self._to_tell: list[Told] = []
        self._broken: Tensor | None = None  # 1 once a loss or a gradient was no number
        self._failed: TrainingFailed | None = None  # since then weights stay as they are, which nobody should miss

    @property
    def bytes_per_update(self) -> int:
        """Bytes of one update's rollouts, of all processes."""
        return self.env.num_rows * self.processes.world_size * self.env.num_steps * self.options.micro_batches

    @property
    def done(self) -> bool:
        """Whether all bytes have been trained on, or all FLOPs been spent."""
        return self.way >= 1.0

    @property
    def total_flops_done(self) -> float:
        """FLOPs of all updates, the estimator's trials included."""
        return self.flops_done + self.tried_flops_done

    @property
    def way(self) -> float:
        """Share of the training that is done: of ``total_flops`` if that is given, else of ``total_bytes``."""
        if self.options.total_flops is not None:
            return self.total_flops_done / self.options.total_flops
        return self.bytes_done / self.options.total_bytes

    @property
    def scheduled_bytes(self) -> float:
        """Where the schedule stands, in bytes of ``total_bytes``."""
        if self.options.total_flops is None:
            return self.bytes_done
        return self.way * self.options.total_bytes

    @property
    def expected_bytes(self) -> int:
        """Bytes of the whole training, as far as that can be told."""
        if self.options.total_flops is None or not self.bytes_done:
            return self.options.total_bytes
        return max(self.bytes_done, round(self.bytes_done / self.way))

    def update(self) -> dict[str, float]:
        """One update; returns losses and figures of its batch, ``lr``, ``grad_norm``, and FLOPs so far."""
        self.advance()
        return self.tell()[-1].figures

    def advance(self) -> None:
        """One update, whose figures stay where they were computed until :meth:`tell` asks for them."""
        if self._failed is not None:
            raise self._failed
        options = self.options
        scale = cosine_schedule(
            self.scheduled_bytes + self.bytes_per_update,  # the first update already learns
            options.total_bytes + self.bytes_per_update,
            warm_up=options.warm_up_bytes,
            floor=options.lr_floor,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = options.lr * scale * group.get("lr_factor", 1.0)
        made = Pending(self.updates + 1, self.bytes_done + self.bytes_per_update, options.lr * scale)
        self.optimizer.zero_grad(set_to_none=True)
        precision = PRECISIONS[options.precision]
        batch: list[TensorDictBase] | None = [] if options.policy_epochs > 1 else None
        rates: list[Tensor] = []  # of every micro-batch, see _rates_of
        self._whole_rows = True
        with self._averages.last_pass(options.micro_batches == 1):  # several add up to gradients that are final late
            found = joint_gradients(
                self.model,
                lambda: self._draw(rates),
                self.loss,
                micro_batches=options.micro_batches,
                precision=precision,
                keep_in=batch,
                predict_only=self.warming and not self._weighs,
                whole_rows=lambda: self._whole_rows,
            )
        drawn, tokens, most, *above = torch.stack(rates).mean(0)
        found.setdefault("rate", drawn)
        found["tokens"], found["padded_rate"] = tokens, most
        if above:
            found.setdefault("second_rate", above[0])
            found["padded_second_rate"] = above[1]
        self._step(found, made)
        for _ in range(options.policy_epochs - 1):
            assert batch is not None
            self.optimizer.zero_grad(set_to_none=True)
            stored: dict[str, Any] = {"precision": precision, "whole_rows": self._whole_rows}
            self._step(policy_gradients(self.model, batch, self.loss, **stored), made)
        self.updates, self.bytes_done = made.update, made.bytes_done
        self._pending.append(made)
        if options.total_flops is not None:
            self._take_in()  # where the schedule stands hangs on what was drawn
        if self.segmenter is not None:
            calibrate_on(self.segmenter, self.model, self._read, self.updates, last=self.done, processes=self.processes)

    def tell(self) -> list[Told]:
        """Updates that were not told of yet, in their order: figures, averaged over processes, and warnings.

        All processes have to ask. The host waits for the device here, once for all of them.
        """
        self._take_in()
        told, self._to_tell = self._to_tell, []
        return told

    def _take_in(self) -> None:
        """Fetch what is pending; FLOPs and alarms follow, update by update."""
        if self._failed is not None:  # the state is that of updates which were not made
            raise self._failed
        pending, self._pending = self._pending, []
        for made, steps in zip(pending, fetch(pending, self.processes), strict=True):
            figures, warnings = steps[0], self._look(steps[0], made.update)
            for again in steps[1:]:  # alarms count a batch once
                watched: dict[str, float] = {name: again[name] for name in ("loss", "grad_norm") if name in again}
                warnings += self._look(watched, made.update)
                figures |= {name: again[name] for name in _MOVED if name in again}
            figures["lr"] = made.lr
            rate, padded = figures.pop("tokens"), figures["padded_rate"]  # the policy's rate leaves forced ones out
            second = figures.get("second_rate", 0.0)
            self.flops_done += self._costs.update(self.bytes_per_update, rate, second)
            self.padded_flops_done += self._costs.update(
                self.bytes_per_update, padded, figures.get("padded_second_rate", 0.0)
            )
            self.tried_flops_done += self._costs.tried(self.bytes_per_update, rate, second)
            figures |= {
                "flops": self.flops_done,
                "padded_flops": self.padded_flops_done,
                "total_flops": self.total_flops_done,
            }
            self.told = Told(made.update, made.bytes_done, figures, warnings)
            self._to_tell.append(self.told)

    def _look(self, figures: dict[str, float], update: int) -> list[str]:
        """What the alarms say; a training that failed has failed for good."""
        try:
            return self.alarms.check(figures, update)
        except TrainingFailed as error:
            self._failed = error
            raise

    @property
    def warnings(self) -> list[str]:
        """What the alarms said of the update that was told of last."""
        return [] if self.told is None else self.told.warnings

    @property
    def warming(self) -> bool:
        """Whether boundaries are still drawn at random."""
        return self.bytes_done < self.options.warm_start_bytes

    def _draw(self, rates: list[Tensor]) -> TensorDictBase:
        """A rollout with gradients; its rate is noted."""
        actor = self.warm_actor if self.warming else self.actor
        rollout = self.env.parallel_rollout(actor, generator=self.generator, part=self.processes.part)
        self._whole_rows = self._whole_rows and self.env.whole_rows
        rates.append(_rates_of(rollout, self.env.layout))
        self._read = rollout["byte"]
        if self.warming and self._weighs:  # the policy learns from decisions that were not its own
            scores = self.policy.get_dist(rollout)
            rollout["logits"], rollout["entropy"] = scores.logits, scores.entropy()
        return rollout

    def _step(self, found: dict[str, Tensor], made: Pending) -> None:
        """Clip and step, unless something is no number; figures are noted.

        The host does not look at them: a gradient that is no number reaches neither weights nor moments, in this step
        and all further ones, because the optimizer is told on the device. What is told of the update ends the training.
        """
        self._averages.finish()
        norm = whole(nn.utils.clip_grad_norm_(self.trained.parameters(), self.options.clip_norm))
        # Losses average to those of the whole batch; figures are its own already, and the norm is everybody's.
        figures = {**found, "grad_norm": norm}
        made.add(figures)
        self._broken = broken(figures, self._broken)
        self.optimizer.found_inf = self._broken  # type: ignore[attr-defined]
        self.optimizer.step()

    def run(
        self,
        after_update: Callable[[dict[str, float]], bool | None] | None = None,
        *,
        tell_when: Callable[[], bool] | None = None,
    ) -> None:
        """Train until all bytes are done, or until ``after_update`` returns True.

        Args:
            after_update: called with the figures of every update, in their order: after each, or, with the option
                ``figures_every``, of several at a time. ``trainer.told`` says which update it is; where it returns
                True, updates that are done by then stay done.
            tell_when: asked after every update whether to tell at once, because something else is due; the same in all
                processes.
        """
        self.model.train()
        if self.segmenter is not None:
            self.segmenter.train()
        every = 1 if self.options.total_flops is not None else self.options.figures_every
        while not self.done:
            try:
                self.advance()
            except Exception:
                if self.processes.group is None and self._failed is None:  # others would wait for an answer
                    self._tell_to(after_update)  # what led there is not lost
                raise
            due = self.updates % every == 0 or self.done or (tell_when is not None and tell_when())
            if due and self._tell_to(after_update):
                return

    def _tell_to(self, listener: Callable[[dict[str, float]], bool | None] | None) -> bool:
        """Call a listener with all that was not told yet; whether it asks to stop."""
        try:
            self._take_in()
        finally:  # a training that failed tells what came before
            told, self._to_tell = self._to_tell, []
            stop = False
            for self.told in told:
                stop = bool(listener is not None and listener(self.told.figures)) or stop
        return stop

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on; all processes have to ask.

        They get the same, if their random numbers were seeded alike (``seed_everything``).
        """
        self._take_in()  # FLOPs and alarms are part of it
        return {
            "model": whole(self.model.state_dict()),
            "optimizer": whole(self.optimizer.state_dict()),
            "loss": self.loss.state_dict(),
            "texts": self.env.random_state(),
            "boundaries": self.generator.get_state(),
            "random": random_states(self.model.embedding.weight.device),
            "updates": self.updates,
            "bytes_done": self.bytes_done,
            "flops_done": self.flops_done,
            "flops_beside": {"padded": self.padded_flops_done, "tried": self.tried_flops_done},
            "segmenter": None if self.segmenter is None else own_state(self.segmenter, self.model),
            "alarms": self.alarms.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where a state was taken.

        Args:
            state: of a trainer of the same model, loss and options, in as many processes as it was.
        """
        load_whole(self.model, self.optimizer, state["model"], state["optimizer"])
        self.loss.load_state_dict(state["loss"])
        self.env.set_random_state(state["texts"])
        self.generator.set_state(as_state(state["boundaries"]))
        set_random_states(state["random"], self.model.embedding.weight.device)
        self.alarms.load_state_dict(state["alarms"])
        self._pending, self._to_tell, self._broken, self.told, self._failed = [], [], None, None, None
        self.updates, self.bytes_done = int(state["updates"]), int(state["bytes_done"])
        self.flops_done = float(state["flops_done"])
        self.padded_flops_done, self.tried_flops_done = (float(state["flops_beside"][k]) for k in ("padded", "tried"))
        if self.segmenter is not None:
            load_own_state(self.segmenter, self.model, state["segmenter"])


def _rates_of(rollout: TensorDictBase, layout: Layout = "padded") -> Tensor:
    """Boundaries decided and tokens, per byte, and tokens with their padding; two more of a second level, per token."""
    length, packing = rollout.shape[-1], as_packing(layout)
    drawn = (rollout["action"].bool() | rollout["forced"]).float().mean(-1)  # [B]
    room = None if packing is None else packing.room_for(length * len(drawn), len(drawn))
    padded = _with_padding(drawn, length, packing, length * len(drawn))
    rates = [rollout["action"].float().mean(), drawn.mean(), padded]
    if ("next", "second_boundary") in rollout.keys(include_nested=True):
        second = rollout["next", "second_boundary"].float().mean(-1)  # [B]
        above = None if packing is None else packing.above
        rates += [second.mean() / drawn.mean(), _with_padding(second, length, above, room or 0) / padded]
    return torch.stack(rates)


def _with_padding(rates: Tensor, length: int, packing: Packing | None, num_below: int) -> Tensor:
    """Tokens per byte that are computed on, of rows with ``rates`` [B], made of ``num_below`` bytes or tokens."""
    if packing is None:
        return rates.max()
    total = (rates.double().sum() * length).round().long()
    return (packing.places(total, num_below, len(rates)) / (length * len(rates))).float()


def _weighs_decisions(loss: JointLoss) -> bool:
    """Whether the policy's term can learn from decisions that the policy, as it is, did not draw."""
    if "policy" not in loss.terms:
        return False
    term = loss.terms["policy"]
    return isinstance(term, BoundaryClipPPOLoss) or bool(getattr(term, "off_policy", False))


def _check_pieces(model: UNet, loss: JointLoss, strategy: str, processes: Processes) -> None:
    """Refuse to train whole parameters beside pieces: one optimizer step and one norm take tensors of one kind."""
    own = {id(p) for p in loss.parameters()} - {id(p) for p in model.parameters()}
    if own and strategy == "fsdp" and processes.group is not None:
        raise ValueError("strategy must be 'ddp' with a critic, which is not cut in pieces, got 'fsdp'")


def _check_spans(loss: JointLoss, processes: Processes) -> None:
    """Refuse terms that would take the rows of one process for the batch."""
    if processes.group is None:
        return
    for name, term in loss.terms.items():
        for part in (term, getattr(term, "_value_estimator", None)):
            if part is not None and getattr(part, "process_group", processes.group) is not processes.group:
                raise ValueError(
                    f"process_group of {type(part).__name__} in term {name!r} must be that of the processes that train "
                    f"together, got {part.process_group}"
                )
