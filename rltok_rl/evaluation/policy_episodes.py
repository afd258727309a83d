"""Episodes of a policy on given texts, one for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase, set_interaction_type
from torch import Tensor, nn
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.modules.utils import get_env_transforms_from_module

from rltok_rl.agents import FixedStrideActor, LearnedBoundaryActor, RandomActor, UniformActor
from rltok_rl.agents.segmenters import SegmenterActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.envs.gym_env import observation_space
from rltok_rl.envs.gym_options import check_actions
from rltok_rl.utils import did_you_mean

POLICIES = ("learned", "random", "uniform", "never", "always")
"""Policies by name: the model's own, boundaries at random, evenly spaced, at the first byte only, after every byte."""
Policy = str | nn.Module | Callable[[dict[str, np.ndarray]], Any]
"""A name, a TorchRL actor, an object with the ``predict`` of Stable-Baselines3, or a function."""


@dataclass(frozen=True)
class Episodes:
    """Episodes of one policy, one for each of n texts of at most T steps."""

    policy: str
    returns: Tensor  # [n] float64, undiscounted
    boundaries: Tensor  # [n, T] bool, False after the end
    steps: Tensor  # [n]
    nats: Tensor  # [n] float64, cost of the predicted bytes under the whole model

    @property
    def rates(self) -> Tensor:
        """Boundaries per byte of each text, [n]; those at first bytes count."""
        return self.boundaries.sum(1).double() / self.steps

    @property
    def bits_per_byte(self) -> Tensor:
        """Bits per byte of each text under the whole model, [n]."""
        return self.nats / (math.log(2) * self.steps)


def _named_policy(argument: str, name: str, env: ByteBoundaryEnv, rate: float) -> nn.Module:
    """Return the actor of a name of :data:`POLICIES`; ``rate`` in [0, 1] is that of random and evenly spaced ones."""
    if name == "learned":
        return LearnedBoundaryActor(env.model)
    if name == "always" or (name == "random" and rate >= 1):
        return FixedStrideActor(1)
    if name == "never" or (name == "random" and rate <= 0):
        return FixedStrideActor(env.num_steps + 1)
    if name not in POLICIES:
        known = f"{argument} must be one of {[*POLICIES]}, an actor, an agent or a function"
        raise ValueError(f"{known}, got {name!r}{did_you_mean(name, POLICIES)}")
    return RandomActor(rate) if name == "random" else UniformActor(rate)


@torch.no_grad()
def read_episodes(
    env: ByteBoundaryEnv,
    policy: Policy,
    texts: Sequence[bytes],
    *,
    rate: float | None = None,
    deterministic: bool = False,
    batched: bool = True,
    seed: int = 0,
    argument: str = "policy",
) -> Episodes:
    """Read each text once, as many at a time as the environment has rows.

    ``rate`` is that of random and evenly spaced boundaries, by default the model's; ``argument`` is named in errors.
    For the others see :func:`~rltok_rl.evaluation.evaluate_policy`.
    """
    rate = env.model.config.target_rate if rate is None else rate
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    actor: Any = _named_policy(argument, policy, env, rate) if isinstance(policy, str) else policy
    read = _in_parallel if getattr(actor, "draws_windows", False) else _in_steps
    if isinstance(actor, nn.Module) and read is _in_steps and not isinstance(actor, TensorDictModuleBase):
        raise TypeError(f"{argument} must read a tensordict: wrap {name} in a NetworkActor or a TensorDictModule")
    if not isinstance(actor, nn.Module):
        actor, read = _client(argument, actor, env, deterministic, batched), _in_two_passes
    if env.model.config.byte_scope == "token" and not isinstance(actor, SegmenterActor):
        read = _in_steps  # the encoder stops at boundaries, which are known only in steps
    kind = InteractionType.DETERMINISTIC if deterministic else InteractionType.RANDOM
    parts: list[dict[str, Tensor]] = []
    with torch.random.fork_rng(devices=[]), set_interaction_type(kind):
        torch.manual_seed(seed)
        for start in range(0, len(texts), env.num_rows):
            batch = [*texts[start : start + env.num_rows]]
            env.set_seed(seed + start)  # target rates, the same for both policies
            rows = batch + batch[:1] * (env.num_rows - len(batch))
            longest = max(map(len, batch)) - 1 + env.model.config.num_marks
            rollout = read(env, actor, rows, longest)
            parts.append({key: values[: len(batch)] for key, values in _totals(rollout, env.num_steps).items()})
    return Episodes(name, **{key: torch.cat([part[key] for part in parts]) for key in parts[0]})


def _in_parallel(env: ByteBoundaryEnv, actor: Any, texts: list[bytes], num_steps: int) -> TensorDictBase:
    return env.parallel_rollout(actor, text=texts, max_steps=num_steps, exclude=("encoder_state",))


def _in_steps(env: ByteBoundaryEnv, actor: Any, texts: list[bytes], num_steps: int) -> TensorDictBase:
    """Roll out as TorchRL does, keeping only what the totals need; rows that end read on in other texts."""
    stepping: EnvBase = env
    if not {*getattr(actor, "in_keys", ())} <= {*env.observation_spec.keys()}:  # also states of a recurrent policy
        stepping = TransformedEnv(env, get_env_transforms_from_module(actor))
    seen, kept = stepping.reset(text=texts), []
    names = ("reward", "done", "final_log_prob")
    with env.seeded_actions():  # as parallel rollouts draw them
        for _ in range(num_steps):
            seen, forced = actor(seen), seen["forced"]
            stepped, seen = stepping.step_and_maybe_reset(seen)
            after = stepped["next"].select(*names)
            kept.append(TensorDict({"action": stepped["action"], "forced": forced, "next": after}, env.batch_size))
    return torch.stack(kept, 1)


def _in_two_passes(env: ByteBoundaryEnv, actor: Any, texts: list[bytes], num_steps: int) -> TensorDictBase:
    """Roll out a policy of gymnasium's observations, of which only ``recent`` depends on decisions.

    A first pass makes the others, a second one the rewards of what the policy decides; both draw the same texts.
    """
    options: dict[str, Any] = {"text": texts, "max_steps": num_steps}
    start, actions = env.random_state(), torch.zeros(env.num_rows, num_steps, dtype=torch.int64, device=env.device)
    seen = env.parallel_rollout(actions=actions, **options).select(*observation_space(env), "forced")
    env.set_random_state(start)
    recent = seen["recent"][:, 0]
    with env.seeded_actions():  # as parallel rollouts draw them
        for t in range(num_steps):
            forced = seen["forced"][:, t]
            recent = recent.masked_fill(forced[:, None], 0)
            actions[:, t] = actor(seen[:, t].set("recent", recent))["action"]
            drawn = (actions[:, t].bool() | forced).to(recent.dtype)
            recent = torch.cat((drawn[:, None], recent), 1)[:, : recent.shape[1]]
    return env.parallel_rollout(actions=actions, **options)


def _totals(rollout: TensorDictBase, num_steps: int) -> dict[str, Tensor]:
    """Sum up the first episode of each row of a rollout [B, T]."""
    after = rollout["next"].select("reward", "done", "final_log_prob").cpu()
    reward, done, log_prob = (after[name].squeeze(-1) for name in ("reward", "done", "final_log_prob"))
    first = done.cumsum(1) - done.long() == 0  # [B, T] steps of the first episode
    boundaries = (rollout["action"].bool() | rollout["forced"]).cpu() & first
    return {
        "returns": (reward.double() * first).sum(1),
        "boundaries": nn.functional.pad(boundaries, (0, num_steps - boundaries.shape[1])),
        "steps": first.sum(1),
        "nats": -(log_prob.double() * first).sum(1),
    }


def _client(
    argument: str, policy: Any, env: ByteBoundaryEnv, deterministic: bool, batched: bool
) -> Callable[[TensorDictBase], TensorDictBase]:
    """Turn a function or an agent of Stable-Baselines3 into an actor on tensordicts."""
    space, rows, state = observation_space(env), env.num_rows, None
    agent = hasattr(policy, "predict")
    if not agent and not callable(policy):
        raise TypeError(f"{argument} must be a name, an actor, an agent or a function, got {type(policy).__name__}")
    if agent and getattr(policy, "observation_space", space) != space:
        raise ValueError(
            f"{argument} must have the observations of this environment, {space}, got {policy.observation_space}: "
            f"give the model and the options that it was trained with"
        )

    hint = "" if agent or not batched else "; batched=False calls it for one text at a time"

    def act(seen: TensorDictBase) -> TensorDictBase:
        nonlocal state
        observation = {name: seen[name].numpy(force=True) for name in space}
        if agent:
            begins = observation["position"][:, 0] == 0
            chosen, state = policy.predict(observation, state, begins, deterministic)
        elif batched:
            chosen = policy(observation)
        else:
            chosen = [policy({name: values[row] for name, values in observation.items()}) for row in range(rows)]
        actions = check_actions(chosen, rows, f"{argument} must return", hint)
        return seen.set("action", torch.as_tensor(actions.astype(np.int64), device=env.device))

    return act
