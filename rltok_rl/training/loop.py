"""The training loop: schedule, training step, clipping, optimizer, metrics, and the state of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor
from torchrl.envs import EnvBase

from rltok_rl.agents.segmenters import (
    EntropyThreshold,
    Segmenter,
    SegmenterActor,
    calibrate,
    load_own_state,
    own_state,
)
from rltok_rl.data import RepeatedSource
from rltok_rl.data.languages import Language
from rltok_rl.models.tokens import watch_room
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import JointLoss
from rltok_rl.renamed import RenamedAttribute
from rltok_rl.sampling.sampler import NotFiniteError
from rltok_rl.training.alarms import Alarms, TrainingFailed
from rltok_rl.training.checkpoint import as_state, part_of, random_states, set_random_states
from rltok_rl.training.distributed import Processes
from rltok_rl.training.environment import Speed
from rltok_rl.training.metrics import Pending, UpdateFlops, UpdateMetrics, fetch, is_broken
from rltok_rl.training.options import PRECISIONS, LoopOptions, cosine_schedule, make_optimizer
from rltok_rl.training.sharding import (
    average_gradients,
    check_parallel,
    check_weights,
    full_state,
    load_moments,
    load_weights,
    prepare_model,
)
from rltok_rl.training.token_room import TokenRoom, largest_need
from rltok_rl.training.trainer_state import check_state
from rltok_rl.training.training_step import TrainingStep

Listener = Callable[[dict[str, float]], "bool | None"]
"""Takes an update's metrics; True ends the run."""


class Trainer:
    """Trains language model, early exit, policy and rate in one backward pass per update.

    :meth:`state_dict` is complete: a trainer that loads it continues with the same losses to the last bit. It is
    unsharded, so it loads with any world size.

    Args:
        env: draws one rollout per micro-batch, one episode long. With several processes it has this rank's rows. May be
            a ``TransformedEnv`` with transforms of single rewards.
        loss: the joint loss. With several processes, its terms span them (``process_group``).
        actor: draws the boundaries; default: the model's policy. Without ``logits``, the loss holds next-byte losses
            alone. The segmenter of a ``SegmenterActor`` is trained with the model if the loss has its terms.
        seed: of the boundaries; the same in all processes, as the environment's.
        processes: the ranks that train together; they make the updates that one process would make with all rows.
        strategy: ``"ddp"`` or ``"fsdp"`` with several processes, which shards the model in place.
        warm_start_rule: a rule that the policy imitates during ``warm_start_bytes``.

    Example:
        >>> from rltok_rl.data import local_prose
        >>> from rltok_rl.envs import ByteBoundaryEnv
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
        env: EnvBase,
        loss: JointLoss,
        options: LoopOptions,
        *,
        actor: TensorDictModuleBase | SegmenterActor | None = None,
        alarms: Alarms | None = None,
        seed: int = 0,
        processes: Processes | None = None,
        strategy: str = "none",
        warm_start_rule: Segmenter | None = None,
    ) -> None:
        self.processes = Processes() if processes is None else processes
        self.segmenter = actor.segmenter if isinstance(actor, SegmenterActor) else None
        check_parallel(model, loss, self.segmenter or warm_start_rule, strategy, self.processes)
        self._flops = UpdateFlops.of(
            model, loss, self.segmenter, reference=env.has_reference, policy_epochs=options.policy_epochs
        )
        prepare_model(model, strategy, self.processes)
        self.model, self.env, self.loss, self.options = model, env, loss, options
        device = model.embedding.weight.device
        loss.to(device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.step = TrainingStep(
            env,
            loss,
            actor=actor,
            generator=self.generator,
            part=self.processes.part,
            precision=PRECISIONS[options.precision],
            keep_batch=options.policy_epochs > 1,
            warm_start_rule=warm_start_rule,
        )
        if warm_start_rule is not None and not options.warm_start_bytes:
            raise ValueError("warm_start_bytes must be above 0 with a warm_start_rule, got 0")
        self.policy, self.actor = self.step.policy, self.step.actor
        source = env.source.source if isinstance(env.source, RepeatedSource) else env.source
        self.language = source if isinstance(source, Language) else None
        """The language of the text, if its optimum is known."""
        self.step.keep_texts = self.language is not None
        self.room = TokenRoom(env, self.step)
        self.speed = Speed.of(device, self.processes.world_size)
        if options.policy_epochs > 1 and not self.step.off_policy:
            raise ValueError(
                f"policy_epochs={options.policy_epochs} needs a term 'policy' that weighs decisions by how likely they "
                f"have become (BoundaryClipPPOLoss, or BoundaryReinforceLoss with off_policy=True, and RolloutPolicy)"
            )
        self.alarms = Alarms() if alarms is None else alarms
        self.optimizer = make_optimizer(self.step, options, model=model)
        self.updates = self.bytes_done = 0
        self.flops_done = self.padded_flops_done = self.tried_flops_done = 0.0
        self.last_update: UpdateMetrics | None = None
        """The last update whose metrics were fetched; ``figures_every`` above 1 delays fetching."""
        self._pending: list[Pending] = []
        self._fetched: list[UpdateMetrics] = []
        self._broken: Tensor | None = None  # 1 after a loss or gradient that is not finite
        self._failed: TrainingFailed | None = None

    @property
    def bytes_per_update(self) -> int:
        """Bytes of one update's rollouts, of all processes."""
        return self.env.num_rows * self.processes.world_size * self.env.num_steps * self.options.micro_batches

    @property
    def done(self) -> bool:
        """Whether all bytes have been trained on, or all FLOPs spent."""
        return self.fraction_done >= 1.0

    @property
    def warming(self) -> bool:
        """Whether the run is in its warm start."""
        return self.bytes_done < self.options.warm_start_bytes

    @property
    def warnings(self) -> list[str]:
        """Warnings of the last update whose metrics were fetched."""
        return [] if self.last_update is None else self.last_update.warnings

    @property
    def total_flops_done(self) -> float:
        """FLOPs of all updates: passes, trials of the estimator, critics, and further epochs of the policy."""
        return self.flops_done + self.tried_flops_done

    @property
    def fraction_done(self) -> float:
        """Fraction of ``total_flops`` that is done if given, else of ``total_bytes``."""
        if self.options.total_flops is not None:
            return self.total_flops_done / self.options.total_flops
        return self.bytes_done / self.options.total_bytes

    @property
    def expected_bytes(self) -> int:
        """Bytes of the whole training; an estimate if ``total_flops`` ends it."""
        if self.options.total_flops is None or not self.bytes_done:
            return self.options.total_bytes
        return max(self.bytes_done, round(self.bytes_done / self.fraction_done))

    def leave_out_shares(self) -> None:
        """Leave the share of a language's optimum out of the metrics: it takes a fifth of an update of `knapsack`."""
        self.language, self.step.keep_texts = None, False

    def update(self) -> dict[str, float]:
        """Make one update; returns its losses and metrics, ``lr``, ``grad_norm``, and FLOPs so far."""
        number, fetched = self.updates + 1, self._fetched
        while self.last_update is None or self.last_update.update < number:  # an update may have to be repeated
            self.advance()
            fetched = self.fetch_metrics()
        return fetched[-1].metrics

    def advance(self) -> None:
        """Make one update; its metrics stay on the device until :meth:`fetch_metrics`."""
        if self._failed is not None:
            raise self._failed
        options = self.options
        self.speed.start()
        position = self.bytes_done if options.total_flops is None else self.fraction_done * options.total_bytes
        ahead = self.bytes_per_update if options.lr_at == "end" else 0
        scale = cosine_schedule(
            position + ahead,  # without warm_up_start, the first update learns nothing at its start
            options.total_bytes + ahead,
            warm_up=options.warm_up_bytes,
            floor=options.lr_floor,
            start=options.warm_up_start,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = options.lr * scale * group.get("lr_factor", 1.0)
        update = Pending(self.updates + 1, self.bytes_done + self.bytes_per_update, options.lr * scale)
        update.state_to_repeat = self.room.state_to_repeat(self.progress_state)
        update.warnings, self.room.warnings = self.room.warnings, []
        self.optimizer.zero_grad(set_to_none=True)
        try:
            with watch_room() as needs:
                if options.micro_batches == 1:
                    metrics = self.step(warm_start=self.warming)
                    metrics["loss"].backward()
                else:
                    metrics = self.step.accumulate(options.micro_batches, warm_start=self.warming)
        except NotFiniteError as error:
            raise TrainingFailed(
                f"logits of the policy are not finite at update {update.update}: lower the learning rate or the loss "
                f"weights; the last checkpoint is from before ({error})"
            ) from error
        # A warm start reads no advantages of a policy that learns only from its own decisions.
        update.judged = self.step.off_policy or not self.warming
        update.tried = self.step.ran_trials and update.judged
        if needs:
            metrics["token_need"] = largest_need(needs, self.processes.group)
        self._step_optimizer(metrics, update)
        for _ in range(options.policy_epochs - 1):
            self.optimizer.zero_grad(set_to_none=True)
            self._step_optimizer(self.step.policy_epoch(self.step.batch), update)
        update.row_sums, update.texts = self.step.row_sums, self.step.texts
        self.updates, self.bytes_done = update.update, update.bytes_done
        self._pending.append(update)
        if options.total_flops is not None:
            self._fetch()  # the schedule depends on the FLOPs of what was drawn
        calibrated = self.done or self.updates in (1, 2, 4, 8) or self.updates % 16 == 0
        calibrated = calibrated and self.updates == update.update  # not if it has to be repeated
        if isinstance(self.segmenter, EntropyThreshold) and calibrated:
            threshold = calibrate(self.segmenter, self.model, [self.step.byte_ids])
            self.segmenter.threshold.fill_(self.processes.mean({"threshold": threshold})["threshold"])

    def _step_optimizer(self, metrics: dict[str, Tensor], update: Pending) -> None:
        """Average and clip the gradients, and step, unless a loss or gradient is or was not finite.

        The optimizer reads a flag on the device, without waiting for the host. Fetching the metrics raises the error.
        """
        average_gradients(self.step.parameters(), self.processes.group)
        norm = nn.utils.clip_grad_norm_(self.step.parameters(), self.options.clip_norm)
        metrics = {**metrics, "grad_norm": norm.full_tensor() if isinstance(norm, DTensor) else norm}
        update.add(metrics)
        self._broken = is_broken(metrics, self._broken)
        self.optimizer.found_inf = self._broken  # type: ignore[attr-defined]
        self.optimizer.step()

    def fetch_metrics(self) -> list[UpdateMetrics]:
        """Return all updates since the last call, with metrics averaged over processes; all of them call it."""
        self._fetch()
        fetched, self._fetched = self._fetched, []
        return fetched

    tell = RenamedAttribute("fetch_metrics")
    told = RenamedAttribute("last_update")
    way = RenamedAttribute("fraction_done")

    def _fetch(self) -> None:
        """Fetch pending metrics, check alarms and count FLOPs, update by update."""
        if self._failed is not None:
            raise self._failed
        pending, self._pending = self._pending, []
        num_bytes, flops = self.bytes_per_update, self._flops
        counted: list[tuple[dict[str, float], float]] = []  # metrics and FLOPs
        try:
            updates = fetch(pending, self.processes, self.alarms, self.language)
            for entry, update in zip(pending, updates, strict=False):
                metrics = update.metrics
                if (need := metrics.pop("token_need", 0.0)) > 0:
                    self.load_progress(self.room.repeat(entry, need))
                    self._broken = None
                    break  # later updates were skipped on the device
                before = self.total_flops_done
                rates = metrics.pop("token_rate"), metrics.get("second_rate", 0.0)
                padded_rates = metrics["padded_rate"], metrics.get("padded_second_rate", 0.0)
                self.flops_done += flops.total(flops.passes, num_bytes, *rates)
                self.padded_flops_done += flops.total(flops.passes, num_bytes, *padded_rates)
                self.tried_flops_done += flops.total(flops.trials, num_bytes, *rates) if entry.tried else 0.0
                if any(flops.trials):
                    metrics["trials"] = float(entry.tried)
                self.tried_flops_done += flops.total(flops.reference, num_bytes, *rates)
                self.tried_flops_done += flops.total(flops.learning, num_bytes, *rates) if entry.judged else 0.0
                metrics["flops"], metrics["padded_flops"] = self.flops_done, self.padded_flops_done
                metrics["total_flops"] = self.total_flops_done
                counted.append((metrics, self.total_flops_done - before))
                self.last_update = update
                self._fetched.append(update)
        except TrainingFailed as error:
            self._failed = error
            raise
        finally:
            self.speed.add_to(counted, num_bytes)

    def run(self, after_update: Listener | None = None, *, fetch_when: Callable[[], bool] | None = None) -> None:
        """Train until all bytes are done, or until ``after_update`` returns True.

        ``after_update`` gets the metrics of every update in order, with ``figures_every`` those of several at a time;
        ``trainer.last_update`` has its number. They are fetched at once if ``fetch_when`` returns True after an update,
        in all processes.
        """
        self.model.train()
        if self.segmenter is not None:
            self.segmenter.train()
        every = 1 if self.options.total_flops is not None else self.options.figures_every
        while not self.done:
            try:
                self.advance()
            except Exception:
                if self.processes.group is None and self._failed is None:  # other processes would wait for an answer
                    self._report(after_update)
                raise
            due = self.updates % every == 0 or self.done or (fetch_when is not None and fetch_when())
            if due and self._report(after_update):
                return

    def _report(self, listener: Listener | None) -> bool:
        """Call a listener with all updates since the last report; returns whether it asks to stop."""
        try:
            self._fetch()
        finally:  # updates before a failure are reported too
            fetched, self._fetched = self._fetched, []
            stop = False
            for self.last_update in fetched:
                stop = bool(listener is not None and listener(self.last_update.metrics)) or stop
        return stop

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on; all processes call it. Equal if seeded alike.

        Weights that are not finite are an error, so that no checkpoint replaces an intact one.
        """
        self._fetch()  # FLOPs and alarms are part of the state
        self._check_weights()
        return {
            **full_state(self.model, self.optimizer),
            **self.progress_state(),
            "token_room": self.room.state(),
            "flops_done": self.flops_done,
            "flops_beside": {"padded": self.padded_flops_done, "tried": self.tried_flops_done},
            "segmenter": None if self.segmenter is None else own_state(self.segmenter, self.model),
            "alarms": self.alarms.state_dict(),
        }

    def _check_weights(self) -> None:
        """Require finite weights, by their largest sizes; an update may overflow them although its loss is finite."""
        weights = {name: p.to_local() if isinstance(p, DTensor) else p for name, p in self.step.named_parameters()}
        sizes = torch.stack(torch._foreach_norm([x.detach() for x in weights.values() if x.numel()], math.inf))
        if self.processes.any(not bool(sizes.isfinite().all())):
            wrong = [name for name, x in weights.items() if not x.isfinite().all()]
            raise TrainingFailed(
                f"weights must be finite, got others in {wrong[0] if wrong else 'another process'} after update "
                f"{self.updates}: lower the learning rate; the last checkpoint is from before"
            )

    def progress_state(self) -> dict[str, Any]:
        """Return counts, and the states of losses, texts and random numbers."""
        return {
            "loss": self.loss.state_dict(),
            "texts": self.env.random_state(),
            "boundaries": self.generator.get_state(),
            "random": random_states(self.model.embedding.weight.device),
            "updates": self.updates,
            "bytes_done": self.bytes_done,
        }

    def load_progress(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`progress_state`."""
        with part_of(state, "loss") as part:
            self.loss.load_state_dict(part)
        with part_of(state, "texts") as part:
            self.env.set_random_state(part)
        with part_of(state, "boundaries") as part:
            self.generator.set_state(as_state(part))
        with part_of(state, "random") as part:
            set_random_states(part, self.model.embedding.weight.device)
        self.updates, self.bytes_done = state["updates"], state["bytes_done"]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a trainer with the same model, loss and options; an error names the part that differs."""
        check_state(state, partial(check_weights, get_model_state_dict(self.model)))
        load_weights(self.model, state["model"])
        with part_of(state, "optimizer") as part:
            load_moments(self.optimizer, part)
        self.load_progress(state)
        self.room.load(state["token_room"])
        self.alarms.load_state_dict(state["alarms"])
        self._pending, self._fetched, self._broken, self.last_update, self._failed = [], [], None, None, None
        self.flops_done, beside = float(state["flops_done"]), state["flops_beside"]
        self.padded_flops_done, self.tried_flops_done = float(beside["padded"]), float(beside["tried"])
        if self.segmenter is not None:
            with part_of(state, "segmenter") as part:
                load_own_state(self.segmenter, self.model, part)
