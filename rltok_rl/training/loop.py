"""The loop: rollout, joint loss, backward, clip, step; and all that it needs to go on elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rltok_rl.agents import LearnedBoundaryActor, RandomActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.models.flops import update_flops
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import BoundaryClipPPOLoss, JointLoss
from rltok_rl.training.alarms import Alarms
from rltok_rl.training.distributed import Processes
from rltok_rl.training.gradients import joint_gradients, policy_gradients
from rltok_rl.training.options import PRECISIONS, LoopOptions, make_optimizer
from rltok_rl.training.randomness import as_state, random_states, set_random_states
from rltok_rl.training.schedule import cosine_schedule
from rltok_rl.training.sharding import average_gradients, load_whole, prepare_model, whole

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
            next-byte losses alone.
        seed: of the boundaries; the same in all processes, as the environment's.
        processes: those that train together; they make the updates that one would make with all rows.
        strategy: a key of :data:`~rltok_rl.training.sharding.STRATEGIES`.

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
        actor: TensorDictModuleBase | None = None,
        alarms: Alarms | None = None,
        seed: int = 0,
        processes: Processes | None = None,
        strategy: str = "none",
    ) -> None:
        self.processes = Processes() if processes is None else processes
        _check_spans(loss, self.processes)
        # Of a byte, of a token, and of a token of tokens.
        self._flops = tuple(
            update_flops(model, *(float(level == k) for k in (0, 1)), num_second=float(level == 2))
            for level in range(3)
        )
        prepare_model(model, strategy, self.processes)
        self.model, self.env, self.loss, self.options = model, env, loss, options
        self.policy = LearnedBoundaryActor(model)
        self.actor = self.policy if actor is None else actor
        self.warm_actor = RandomActor(model.config.target_rate)
        self.trained = nn.ModuleList([model, loss])  # a critic is part of the loss; what is shared counts once
        self._weighs = _weighs_decisions(loss)
        if options.policy_epochs > 1 and not self._weighs:
            raise ValueError(
                f"policy_epochs={options.policy_epochs} needs a term 'policy' that weighs decisions by how likely they "
                f"have become (BoundaryClipPPOLoss, or BoundaryReinforceLoss with off_policy=True, and RolloutPolicy)"
            )
        self.alarms = Alarms() if alarms is None else alarms
        self.optimizer = make_optimizer(self.trained, options)
        self.generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
        self.updates = self.bytes_done = 0
        self.flops_done = 0.0
        self.warnings: list[str] = []
        """What the alarms said of the last update."""

    @property
    def bytes_per_update(self) -> int:
        """Bytes of one update's rollouts, of all processes."""
        return self.env.num_rows * self.processes.world_size * self.env.num_steps * self.options.micro_batches

    @property
    def done(self) -> bool:
        """Whether all bytes have been trained on."""
        return self.bytes_done >= self.options.total_bytes

    def update(self) -> dict[str, float]:
        """One update; returns the losses and figures of its batch, ``lr``, ``grad_norm`` and all ``flops`` so far."""
        options = self.options
        scale = cosine_schedule(
            self.bytes_done + self.bytes_per_update,  # the first update already learns
            options.total_bytes + self.bytes_per_update,
            warm_up=options.warm_up_bytes,
            floor=options.lr_floor,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = options.lr * scale
        self.warnings = []
        self.optimizer.zero_grad(set_to_none=True)
        precision = PRECISIONS[options.precision]
        batch: list[TensorDictBase] | None = [] if options.policy_epochs > 1 else None
        rates: list[Tensor] = []
        found = joint_gradients(
            self.model,
            lambda: self._draw(rates),
            self.loss,
            micro_batches=options.micro_batches,
            precision=precision,
            keep_in=batch,
            predict_only=self.warming and not self._weighs,
        )
        found.setdefault("rate", torch.stack(rates).mean())
        figures = self._step(found)
        for _ in range(options.policy_epochs - 1):
            assert batch is not None
            self.optimizer.zero_grad(set_to_none=True)
            again = self._step(policy_gradients(self.model, batch, self.loss, precision=precision), again=True)
            figures |= {name: again[name] for name in _MOVED if name in again}
        figures["lr"] = options.lr * scale
        self.updates += 1
        self.bytes_done += self.bytes_per_update
        per_byte, per_token, per_second = self._flops
        tokens = figures.get("rate", math.nan)  # per byte
        second = figures.get("second_rate", self.model.config.second_rate)  # per token
        self.flops_done += self.bytes_per_update * (per_byte + tokens * (per_token + second * per_second))
        return figures | {"flops": self.flops_done}

    @property
    def warming(self) -> bool:
        """Whether boundaries are still drawn at random."""
        return self.bytes_done < self.options.warm_start_bytes

    def _draw(self, rates: list[Tensor]) -> TensorDictBase:
        """A rollout with gradients; its rate is noted."""
        actor = self.warm_actor if self.warming else self.actor
        rollout = self.env.parallel_rollout(actor, generator=self.generator, part=self.processes.part)
        rates.append(rollout["action"].float().mean())
        if self.warming and self._weighs:  # the policy learns from decisions that were not its own
            scores = self.policy.get_dist(rollout)
            rollout["logits"], rollout["entropy"] = scores.logits, scores.entropy()
        return rollout

    def _step(self, found: dict[str, Tensor], *, again: bool = False) -> dict[str, float]:
        """Clip, look at the figures, step; the figures are those of all processes. Alarms count a batch once."""
        average_gradients(self.trained, self.processes.group)
        norm = whole(nn.utils.clip_grad_norm_(self.trained.parameters(), self.options.clip_norm))
        # Losses average to those of the whole batch; figures are its own already.
        figures = self.processes.mean({name: float(value) for name, value in found.items()})
        figures["grad_norm"] = float(norm)
        # Before a broken gradient reaches the weights.
        watched = {k: v for k, v in figures.items() if k in ("loss", "grad_norm")} if again else figures
        self.warnings += self.alarms.check(watched, self.updates + 1)
        self.optimizer.step()
        return figures

    def run(self, after_update: Callable[[dict[str, float]], bool | None] | None = None) -> None:
        """Train until all bytes are done, or until ``after_update`` returns True.

        Args:
            after_update: called with the figures of every update.
        """
        self.model.train()
        while not self.done:
            figures = self.update()
            if after_update is not None and after_update(figures):
                return

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on; all processes have to ask, and get the same."""
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
        self.updates, self.bytes_done = int(state["updates"]), int(state["bytes_done"])
        self.flops_done = float(state["flops_done"])


def _weighs_decisions(loss: JointLoss) -> bool:
    """Whether the policy's term can learn from decisions that the policy, as it is, did not draw."""
    if "policy" not in loss.terms:
        return False
    term = loss.terms["policy"]
    return isinstance(term, BoundaryClipPPOLoss) or bool(getattr(term, "off_policy", False))


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
