"""TorchRL's own Trainer on the environment: collector, replay buffer, clipped objective, logger, all of TorchRL.

    python docs/clients/torchrl_trainer.py                       # the packaged model's boundary policy, at a price
    python docs/clients/torchrl_trainer.py --model runs/mine --updates 100

The language model is the world and stays as it is; its boundary policy is trained, from encoder states that are stored.
What Trainer cannot do here, training the language model along with the policy, is what ``rltok train`` is for.
"""

from __future__ import annotations

import argparse

import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv, ParallelCollector
from tensordict import TensorDictBase
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.record.loggers import CSVLogger, Logger
from torchrl.trainers import DefaultOptimizationStepper, LogScalar, ReplayBufferTrainer, Trainer

from rltok_rl import UNet
from rltok_rl.data import local_prose
from rltok_rl.objectives import BoundaryClipPPOLoss, make_estimator


class Stepper(DefaultOptimizationStepper):
    """Optimizer step that logs numbers; TorchRL's own passes their graphs to the logger."""

    def step(self, trainer: Trainer, sub_batch: TensorDictBase) -> TensorDictBase:
        """One optimizer step."""
        return super().step(trainer, sub_batch).detach()


def make_trainer(
    env: ByteBoundaryEnv,
    *,
    updates: int = 50,
    epochs: int = 4,
    rows_per_step: int = 16,
    learning_rate: float = 1e-2,
    gamma: float = 0.95,
    entropy_coeff: float = 0.01,
    logger: Logger | None = None,
    progress_bar: bool = False,
) -> Trainer:
    """A Trainer for the boundary policy of the environment's model.

    Args:
        env: the environment; its model is trained in place, the boundary projection alone.
        updates: batches to collect, one episode of every row each.
        epochs: passes over a batch.
        rows_per_step: windows per optimizer step, at most the environment's rows.
        learning_rate: of Adam.
        gamma: discount.
        entropy_coeff: weight of the entropy bonus.
        logger: receives rewards, rates and losses.
        progress_bar: show one.
    """
    actor = LearnedBoundaryActor(env.model)
    frames = env.num_rows * env.num_steps
    collector = ParallelCollector(env, actor, total_frames=updates * frames, frames_per_batch=frames)
    trainer = Trainer(
        collector=collector,
        total_frames=updates * frames,
        frame_skip=1,
        num_epochs=epochs,
        optim_steps_per_batch=None,  # as many as the buffer has
        loss_module=BoundaryClipPPOLoss(actor, entropy_coeff=entropy_coeff),
        optimizer=torch.optim.Adam(env.model.boundary_head.parameters(), lr=learning_rate),
        optimization_stepper=Stepper(),
        clip_norm=1.0,
        logger=logger,
        log_interval=frames - 1,  # every batch: Trainer logs where more than this many frames have passed
        save_trainer_interval=2 * updates * frames,
        progress_bar=progress_bar,
    )
    # Rows of one batch are each other's baseline, so that advantages are made of whole batches, before they are cut.
    trainer.register_op("batch_process", make_estimator("discounted_return", gamma=gamma, baseline="leave_one_out"))
    # An item is a window: a decision is scored with those before it.
    storage = LazyTensorStorage(env.num_rows)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(), batch_size=rows_per_step)
    windows = ReplayBufferTrainer(buffer, iterate=True)
    trainer.register_op("batch_process", windows.extend)
    trainer.register_op("process_optim_batch", windows.sample)
    trainer.register_op("pre_steps_log", LogScalar(("next", "reward"), "reward", log_pbar=True, include_std=False))
    trainer.register_op("pre_steps_log", LogScalar("action", "rate", log_pbar=True, include_std=False))
    return trainer


def main(arguments: list[str] | None = None) -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket", help="a folder, a run, a hub id, or a packaged name")
    parser.add_argument("--price", type=float, default=0.05, help="nats that a boundary costs")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/torchrl_trainer", help="folder of the figures, one CSV file each")
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    env = ByteBoundaryEnv(
        UNet.from_pretrained(args.model),
        local_prose(),
        num_steps=128,
        batch_size=(32,),
        seed=args.seed,
        price=args.price,
    )
    logger = CSVLogger(exp_name="figures", log_dir=args.out)
    trainer = make_trainer(env, updates=args.updates, logger=logger, progress_bar=True)
    trainer.train()
    print(
        f"reward per byte: {trainer._log_dict['reward'][0]:.3f} at first, {trainer._log_dict['reward'][-1]:.3f} at last"
    )


if __name__ == "__main__":
    main()
