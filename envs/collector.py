"""A TorchRL collector that yields whole parallel rollouts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv
from rltok_rl.envs.reward_transforms import reward_transforms, without_transforms
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import set_exploration_type


class ParallelCollector(Collector):
    """Collector at the speed of the forward pass: ``for batch in collector``.

    Every batch is one :func:`~rltok_rl.envs.parallel_rollout` of fresh windows, ``[B, T]``, with the keys of the stock
    collector, including ``("collector", "traj_ids")``. Batches carry no gradient.

    Args:
        env: the environment, or a ``TransformedEnv`` with transforms of single rewards.
        policy: a module that draws whole windows (``draws_windows``).
        total_frames: bytes to collect in all.
        frames_per_batch: bytes per batch, a multiple of the environment's rows; None is one episode of every row.
        **options: options of :class:`torchrl.collectors.Collector` that need no single steps.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: TensorDictModuleBase,
        *,
        total_frames: int,
        frames_per_batch: int | None = None,
        **options: Any,
    ) -> None:
        stock = "torchrl.collectors.Collector"
        if not isinstance(without_transforms(env), ByteBoundaryEnv):
            raise TypeError(f"env must be a ByteBoundaryEnv, got {type(env).__name__}; {stock} steps any environment")
        reward_transforms(env)  # refuses others now
        for name in ("max_frames_per_traj", "init_random_frames"):
            if options.get(name):
                raise ValueError(f"{name} needs an environment that is stepped ({stock}), got {options[name]!r}")
        if not getattr(policy, "draws_windows", False):
            raise ValueError(
                f"policy must draw whole windows (an actor of rltok_rl.agents does), got {type(policy).__name__}; "
                f"{stock} steps any policy"
            )
        frames = env.num_rows * env.num_steps if frames_per_batch is None else frames_per_batch
        if frames < 1 or frames % env.num_rows:
            raise ValueError(f"frames_per_batch must be a multiple of the {env.num_rows} rows, got {frames}")
        self._steps_per_batch = frames // env.num_rows
        options = {"auto_register_policy_transforms": False, "use_buffers": False, **options}
        super().__init__(env, policy, frames_per_batch=frames, total_frames=total_frames, **options)

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """Collect one batch."""
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        with set_exploration_type(self.exploration_type):
            batch = self.env.parallel_rollout(self._wrapped_policy, max_steps=self._steps_per_batch)
        if self.track_traj_ids:
            first = batch.get("forced")  # a text begins wherever its boundary is forced
            fresh = self._traj_pool.get_traj_and_increment(int(first.sum()), device=first.device).to(first.device)
            number = first.reshape(-1).long().cumsum(0) - 1  # each row begins with the first byte of a text
            batch.set(("collector", "traj_ids"), fresh[number].view(first.shape))
        return self._maybe_set_truncated(batch)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return the state of TorchRL's collector, and the environment's position in the data."""
        return OrderedDict({**super().state_dict(), "texts": without_transforms(self.env).state_dict()})

    def load_state_dict(self, state_dict: OrderedDict[str, Any], **options: Any) -> None:
        """Restore a state of :meth:`state_dict`, or of TorchRL's collector without a position in the data."""
        super().load_state_dict(state_dict, **options)
        without_transforms(self.env).load_state_dict(state_dict.get("texts", {}))
