"""Learners of the study ``solve``: fixed policies, PPO of three libraries, and REINFORCE with each estimator.

A learner is a function ``(course, report)`` that trains on the course and calls ``report(policy)`` before its first
update and after each, with a policy that :func:`~rltok_rl.evaluation.evaluate_policy` takes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from rltok_rl.agents import BoundaryCritic, LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.studies.worlds import simple_policies
from rltok_rl.experiments.texts import LANGUAGES
from torch.nn.utils import clip_grad_norm_

from rltok_rl.data import RepeatedSource, packaged_novel
from rltok_rl.objectives import BoundaryReinforceLoss, make_estimator

Report = Callable[[Any], None]
WORLDS = {"recall": "rltok_rl/Recall-v1", "lexicon": "rltok_rl/Lexicon-v1", "novel": "rltok_rl/ByteBoundary-v1"}
"""Environments by the names of their texts."""
ROWS, GAMMA = 32, 0.95
HELD_OUT_BYTES = 20_000
"""Bytes at the end of the novel that learners never read; of languages, other texts are drawn to evaluate."""
CLIENTS = Path(__file__).parents[2] / "docs" / "clients"


@dataclass(frozen=True)
class Course:
    """A world to learn in: ``updates`` batches of :data:`ROWS` episodes with ``num_steps`` decisions each."""

    world: str
    seed: int
    updates: int
    num_steps: int

    @property
    def batch(self) -> int:
        """Decisions per update."""
        return ROWS * self.num_steps

    def env_options(self, *, held_out: bool = False) -> dict[str, Any]:
        """Return id and options of the environment, to train or to evaluate in."""
        options = {"env_id": WORLDS[self.world], "num_steps": self.num_steps}
        if self.world != "novel":
            return options
        text = packaged_novel()
        return options | {"text": text[-HELD_OUT_BYTES:] if held_out else text[:-HELD_OUT_BYTES]}

    def make_vec(self, num_envs: int = ROWS, *, held_out: bool = False) -> Any:
        """Make the vector environment, to train or to evaluate in."""
        options = self.env_options(held_out=held_out)
        return gymnasium.make_vec(options.pop("env_id"), num_envs=num_envs, autoreset_mode="SameStep", **options)

    def make_env(self, rows_per_text: int = 1) -> ByteBoundaryEnv:
        """Make the TorchRL environment; of its model, only the boundary policy can be trained, which the seed draws."""
        torch.manual_seed(self.seed)
        env: ByteBoundaryEnv = self.make_vec().unwrapped.env
        env.source = RepeatedSource(env.source, rows_per_text)
        env.set_seed(self.seed)
        env.model.requires_grad_(False)
        env.model.boundary_head.requires_grad_(True).projection.reset_parameters()
        return env


def evaluate_fixed(course: Course, report: Report, *, name: str) -> None:
    """Report a fixed policy."""
    report(simple_policies(LANGUAGES[course.world]())[name] if course.world in LANGUAGES else name)


def reinforce(
    course: Course, report: Report, *, estimator: str = "discounted_return", lr: float = 0.0125, **options: Any
) -> None:
    """Train the boundary policy by REINFORCE, one step per batch; ``lr`` is of weights times the logits' factor."""
    env = course.make_env(options.get("group_size", 1))
    if estimator == "local_flips":
        options |= {"model": env.model, "price": env.price}
    if options.get("baseline") == "running_mean":
        options["num_steps"] = course.num_steps
    loss = BoundaryReinforceLoss(make_estimator(estimator, gamma=GAMMA, **options))
    actor, weights = LearnedBoundaryActor(env.model), [*env.model.boundary_head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=lr / env.model.config.boundary_scale)
    report(actor)
    for _ in range(course.updates):
        optimizer.zero_grad()
        loss(env.parallel_rollout(actor))["loss_policy"].backward()
        clip_grad_norm_(weights, 1.0)
        optimizer.step()
        report(actor)


def torchrl_ppo(course: Course, report: Report) -> None:
    """Train the boundary policy with TorchRL's clipped objective and generalised advantages."""
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    env = course.make_env()
    actor, critic = LearnedBoundaryActor(env.model), BoundaryCritic(env.model.config)
    advantage = GAE(gamma=GAMMA, lmbda=0.95, value_network=critic, deactivate_vmap=True)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01, normalize_advantage=True)
    parts = [*env.model.boundary_head.parameters()], [*critic.parameters()]
    of_policy = 0.003125 / env.model.config.boundary_scale
    optimizer = torch.optim.Adam([{"params": parts[0], "lr": of_policy}, {"params": parts[1], "lr": 1e-3}])
    report(actor)
    for _ in range(course.updates):
        with torch.no_grad():
            rollout = env.parallel_rollout(actor)
        for _ in range(4):
            advantage(rollout)
            for rows in torch.randperm(ROWS).chunk(4):
                losses = loss(rollout[rows])
                optimizer.zero_grad()
                sum(losses[f"loss_{name}"] for name in ("objective", "critic", "entropy")).backward()
                for weights in parts:
                    clip_grad_norm_(weights, 0.5)
                optimizer.step()
        report(actor)


def sb3_ppo(course: Course, report: Report) -> None:
    """Train PPO of Stable-Baselines3 with its default networks, and as many epochs as the other two."""
    from rltok_rl.envs import SB3VecEnv
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Reporter(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:  # the previous update is over
            report(self.model)

        _on_training_end = _on_rollout_start

    options: Any = {"n_steps": course.num_steps, "batch_size": course.batch // 4, "n_epochs": 4, "learning_rate": 1e-3}
    options |= {"gamma": GAMMA, "ent_coef": 0.01, "seed": course.seed, "device": "cpu"}
    agent = PPO("MultiInputPolicy", SB3VecEnv(ROWS, **course.env_options()), **options)
    agent.learn(course.updates * course.batch, Reporter())


def cleanrl_ppo(course: Course, report: Report) -> None:
    """Train PPO in one file, ``docs/clients/cleanrl_ppo.py``."""
    if not CLIENTS.is_dir():
        raise FileNotFoundError(f"cleanrl_ppo needs {CLIENTS}, which a checkout has and a wheel does not")
    sys.path.append(str(CLIENTS))
    client, env = importlib.import_module("cleanrl_ppo"), course.make_vec()
    steps = {"num_steps": course.num_steps, "total_steps": course.updates * course.batch}
    args = client.Args(seed=course.seed, num_envs=ROWS, gamma=GAMMA, **steps)
    torch.manual_seed(course.seed)
    agent = client.Agent(env.single_observation_space, args.hidden)

    def policy(observation: dict[str, np.ndarray]) -> np.ndarray:
        decisions: torch.Tensor = agent(*client.tensors(observation))[0].sample()
        return decisions.numpy()

    report(policy)
    client.train(args, env, lambda row: report(policy), agent)


FIXED = ("optimum", "random", "never", "always")
"""Policies that learn nothing, of which one evaluation is enough; the optimum is known of languages only."""
_ESTIMATORS: dict[str, dict[str, Any]] = {
    **{name: {"baseline": name} for name in ("none", "running_mean", "batch_mean", "leave_one_out", "z_score")},
    "group_mean": {"baseline": "group_mean", "group_size": 2},
    "local_flips": {"estimator": "local_flips", "num_flips": 2},
    "control_variate": {"estimator": "control_variate"},
}
LEARNERS: dict[str, Callable[[Course, Report], None]] = {
    **{name: partial(evaluate_fixed, name=name) for name in FIXED},
    **{function.__name__: function for function in (sb3_ppo, cleanrl_ppo, torchrl_ppo)},
    **{f"reinforce_{name}": partial(reinforce, **options) for name, options in _ESTIMATORS.items()},
}
"""Learners by name."""
