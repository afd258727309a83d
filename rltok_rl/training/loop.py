"""The loop: rollout, joint loss, backward, clip, step; and all that it needs to go on elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.models.flops import update_flops
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import JointLoss
from rltok_rl.training.alarms import Alarms
from rltok_rl.training.distributed import Processes
from rltok_rl.training.gradients import joint_gradients
from rltok_rl.training.schedule import cosine_schedule
from rltok_rl.training.sharding import average_gradients, load_whole, prepare_model, whole

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """How a model is trained."""

    total_bytes: int
    """Bytes to train on in all."""
    lr: float = 2e-3
    """Peak learning rate of AdamW."""
    warm_up_bytes: int = 0
    """Bytes of linear warm-up."""
    lr_floor: float = 0.1
    """Share of the learning rate that is left at the end."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    """Of weight matrices; norms and the embedding have none."""
    clip_norm: float = 1.0
    """Largest norm of the gradient.  # released code"""
    micro_batches: int = 1
    """Rollouts per update."""
    precision: str = "float32"
    """Of matrix products: float32 or bfloat16."""
    policy_epochs: int = 1
    """Updates of the policy per batch: the first with all losses, the others of the policy's alone, on the stored batch.
    More than one needs a policy loss that weighs decisions by how likely they have become."""
    warm_start_bytes: int = 0
    """Bytes to begin with whose boundaries are drawn at random, at the target rate."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run, by name."""
        for name in ("total_bytes", "micro_batches", "policy_epochs"):
            check_count(name, getattr(self, name))
        check_count("warm_start_bytes", self.warm_start_bytes, minimum=0)
        for name in ("lr", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {list(PRECISIONS)}, got {self.precision!r}")
        cosine_schedule(0, self.total_bytes, warm_up=self.warm_up_bytes, floor=self.lr_floor)


def make_optimizer(model: nn.Module, options: LoopOptions) -> torch.optim.AdamW:
    """AdamW with weight decay on weight matrices alone.

    Args:
        model: what to train.
        options: learning rate, betas, weight decay.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed = [p for p in model.parameters() if p.dim() >= 2 and id(p) not in embeddings]
    others = [p for p in model.parameters() if p.dim() < 2 or id(p) in embeddings]
    groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, fused=True)


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
        actor: draws the boundaries; None is the model's own policy.
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
        self._flops = update_flops(model, 1, 0), update_flops(model, 0, 1)  # of a byte, of a token
        prepare_model(model, strategy, self.processes)
        self.model, self.env, self.loss, self.options = model, env, loss, options
        self.actor = LearnedBoundaryActor(model) if actor is None else actor
        self.alarms = Alarms() if alarms is None else alarms
        self.optimizer = make_optimizer(model, options)
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
        self.optimizer.zero_grad(set_to_none=True)
        found = joint_gradients(
            self.model,
            lambda: self.env.parallel_rollout(self.actor, generator=self.generator, part=self.processes.part),
            self.loss,
            micro_batches=options.micro_batches,
            precision=PRECISIONS[options.precision],
        )
        average_gradients(self.model, self.processes.group)
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), options.clip_norm))
        # Losses average to those of the whole batch; figures are its own already.
        figures = self.processes.mean({name: float(value) for name, value in found.items()})
        figures |= {"grad_norm": float(norm), "lr": options.lr * scale}
        # Before a broken gradient reaches the weights.
        self.warnings = self.alarms.check(figures, self.updates + 1)
        self.optimizer.step()
        self.updates += 1
        self.bytes_done += self.bytes_per_update
        per_byte, per_token = self._flops
        self.flops_done += self.bytes_per_update * (per_byte + per_token * figures.get("rate", math.nan))
        return figures | {"flops": self.flops_done}

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
            "torch": torch.get_rng_state(),
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
        self.generator.set_state(_cpu(state["boundaries"]))
        torch.set_rng_state(_cpu(state["torch"]))
        self.alarms.load_state_dict(state["alarms"])
        self.updates, self.bytes_done = int(state["updates"]), int(state["bytes_done"])
        self.flops_done = float(state["flops_done"])


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


def _cpu(state: Tensor) -> Tensor:
    return state.to("cpu", torch.uint8)
